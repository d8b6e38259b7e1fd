//! `events.list`.

use std::sync::Arc;
use std::time::SystemTime;

use api::Cursor;
use api::events::{Event, ListEvents};
use kernel::events::StoredEvent;
use kernel::{ApiError, Call, Fault};
use store::{Row, RowExt};

use crate::{Ledger, sql};

/// Rows looked at for one page. A caller who sees few of many events gets a shorter page with a cursor.
const LOOKED_AT_MAX: usize = 2_000;
/// Rows of one read.
const READ_MAX: i64 = 200;

fn stored(row: &Row) -> StoredEvent {
    StoredEvent {
        seq: row.get("seq"),
        at: row.ts("at"),
        id: row.id("event_id"),
        kind: row.get("kind"),
        subject: row.get("subject"),
        tenant_id: row.opt_id("tenant_id"),
        data: row.get("data"),
    }
}

/// Where the list begins, and which way it goes.
#[derive(Clone, Copy)]
struct Place {
    seq: i64,
    oldest_first: bool,
}

impl Place {
    fn of(request: &ListEvents) -> Result<Self, ApiError> {
        let oldest_first = request.after_seq.is_some();
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let seq = match &request.cursor {
            Some(cursor) => match cursor.as_str().parse() {
                Ok(seq) if seq >= 0 => seq,
                _ => return Err(ApiError::invalid("/cursor", "the cursor is not one that this list gave")),
            },
            None => request.after_seq.map_or(i64::MAX, |after| number(after.get())),
        };
        Ok(Self { seq, oldest_first })
    }
}

impl Ledger {
    async fn events(&self, request: &ListEvents, place: Place) -> Result<Vec<StoredEvent>, Fault> {
        let tenant_id = request.tenant.map(|id| id.get().uuid());
        let kind = request.kind.as_ref().map(|kind| kind.as_str().trim_end_matches('.'));
        let subject = request.subject.as_ref().map(api::Text::as_str);
        let time = |time: Option<api::Time>| time.map(|time| SystemTime::from(time.0));
        let (since, until) = (time(request.since), time(request.until));
        let statement = if place.oldest_first { &sql::EVENTS_AFTER } else { &sql::EVENTS_BEFORE };
        let params: [&(dyn store::Param + Sync); 7] =
            [&place.seq, &tenant_id, &kind, &subject, &since, &until, &READ_MAX];
        Ok(self.store.read(statement, &params).await?.iter().map(stored).collect())
    }
}

pub(crate) async fn list(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    request: ListEvents,
) -> Result<api::List<Event>, Fault> {
    ledger.reader.require(&call, request.tenant.map(api::Id::get)).await?;
    let limit = api::limit_or_default(request.limit) as usize;
    let mut place = Place::of(&request)?;
    let (mut items, mut looked_at) = (Vec::new(), 0);
    loop {
        let read = ledger.events(&request, place).await?;
        let Some(last) = read.last().map(|event| event.seq) else {
            return Ok(api::List::new(items, None));
        };
        let full = read.len() as i64 == READ_MAX;
        looked_at += read.len();
        for event in ledger.reader.visible(&call, read, |event| event.tenant_id).await? {
            if items.len() == limit {
                return Ok(api::List::new(items, cursor(place.seq)));
            }
            place.seq = event.seq;
            items.push(ledger.reader.view(&event).await?);
        }
        if !full {
            return Ok(api::List::new(items, None));
        }
        place.seq = last;
        if looked_at >= LOOKED_AT_MAX {
            return Ok(api::List::new(items, cursor(last)));
        }
    }
}

fn cursor(seq: i64) -> Option<Cursor> {
    Cursor::parse(&seq.to_string()).ok()
}
