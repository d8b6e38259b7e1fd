//! Domain events: written with the change they tell of, numbered afterwards.
//!
//! Durable: an outbox row commits with its change or not at all, and holds what its transaction tells, up to
//! 16 events. Commits come in no order that readers could follow, so a relay, one at a time under a lease,
//! moves the events to `events` and numbers them there: `seq` has no gaps and never falls, and whoever has read up to some
//! `seq` has missed nothing below it.

use model::{EventId, TenantId, Timestamp};
use serde_json::Value;

use crate::lease::Lease;
use crate::tx::Later;
use crate::{Op, Owned, Param, RowExt, Sql, Store, StoreError, Tx, sql};

/// Told once per transaction that wrote an event.
pub const OUTBOX_CHANNEL: &str = "bc_outbox";
/// Told once per relay pass that moved something.
pub const EVENTS_CHANNEL: &str = "bc_events";
/// The relay's lease.
pub const RELAY_LEASE: &str = "outbox_relay";
/// Events of one row at most: few enough that a row of them fits a page, and one relay pass is hardly more than was asked for.
const BATCH_EVENTS_MAX: usize = 16;
/// Events of one read at most: a page of a list, or what an event stream catches up with at once.
pub const EVENTS_PAGE_MAX: u32 = 1_000;

const RELAY: Op = Op::new("outbox_relay");

const APPEND: Sql = sql(
    "outbox_append",
    "INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data) VALUES ($1, $2, $3, $4, $5)",
);
const ENSURE: Sql = sql(
    "events_partition_ensure",
    "SELECT partition_ensure('events', month) FROM (
       SELECT DISTINCT date_trunc('month', at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS month FROM outbox_batches) AS months",
);
/// Nobody else deletes here while the lease is held, and nothing is updated, so a row stays where it was seen. Whole rows,
/// until they hold as many events as asked for, of the `$7` rows that are next. Numbers are behind a SELECT, where the planner
/// plans once.
const MOVE: Sql = sql(
    "outbox_move",
    concat!(
        "WITH held AS MATERIALIZED (SELECT ",
        crate::lease_guard!(1, 2, 3),
        " AS holds),
     server AS MATERIALIZED (SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started),
     near AS MATERIALIZED (
       SELECT ctid AS place, batch_id, cardinality(event_ids) AS told FROM outbox_batches
       WHERE batch_id >= (SELECT CASE WHEN started = $6::bigint THEN $4::bigint ELSE 0 END FROM server) AND (SELECT holds FROM held)
       ORDER BY batch_id LIMIT (SELECT $7::bigint)
     ), seen AS MATERIALIZED (
       SELECT place, batch_id FROM (
         SELECT place, batch_id, sum(told) OVER (ORDER BY batch_id) - told AS before FROM near) AS n
       WHERE before < $5::bigint
     ), moved AS (
       DELETE FROM outbox_batches WHERE ctid = ANY (ARRAY(SELECT place FROM seen))
       RETURNING batch_id, at, event_ids, kinds, subjects, tenant_ids, data
     ), of AS MATERIALIZED (
       SELECT batch_id AS id, sum(cardinality(event_ids)) OVER (ORDER BY batch_id) - cardinality(event_ids) AS before FROM moved
     ), told AS MATERIALIZED (SELECT coalesce(sum(cardinality(event_ids)), 0)::bigint AS events FROM moved),
     head AS (
       UPDATE event_head SET seq = seq + (SELECT events FROM told) WHERE EXISTS (SELECT 1 FROM seen)
       RETURNING seq - (SELECT events FROM told) AS base
     ), put AS (
       INSERT INTO events (seq, at, event_id, kind, subject, tenant_id, data)
       SELECT base + before + place, at, event_id, kind, subject, tenant_id, e.data
       FROM moved m JOIN of ON id = batch_id, head, unnest(event_ids, kinds, subjects, tenant_ids, m.data)
         WITH ORDINALITY AS e (event_id, kind, subject, tenant_id, data, place)
     )
     SELECT (SELECT holds FROM held) AS held, (SELECT events FROM told) AS moved, (SELECT min(batch_id) FROM seen) AS first,
       (SELECT count(*) FROM near) AS near, (SELECT count(*) FROM seen) AS rows,
       (SELECT started FROM server) AS server,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next"
    ),
);
/// For the transaction: the rows that are next are found by their key. The plan of a table that was empty when it was planned
/// would read all of it for every pass, until somebody cleans it up.
const BY_KEY: Sql = sql(
    "outbox_by_key",
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)",
);
/// All of them, as whoever hands them on reads them behind every change. Behind a SELECT the numbers are as good as any to the
/// planner, which plans once then.
const AFTER_ALL: Sql = sql(
    "events_after_all",
    "SELECT seq, at, event_id, kind, subject, tenant_id, data FROM events
     WHERE seq > (SELECT $1::bigint) ORDER BY seq LIMIT (SELECT $2::bigint)",
);
const AFTER: Sql = sql(
    "events_after",
    "SELECT seq, at, event_id, kind, subject, tenant_id, data FROM events
     WHERE seq > $1 AND ($2::text IS NULL OR subject = $2) AND ($3::text[] IS NULL OR kind = ANY($3))
     ORDER BY seq LIMIT $4",
);
const AFTER_OF_TENANT: Sql = sql(
    "events_after_of_tenant",
    "SELECT seq, at, event_id, kind, subject, tenant_id, data FROM events
     WHERE seq > $1 AND ($2::text IS NULL OR subject = $2) AND ($3::text[] IS NULL OR kind = ANY($3))
       AND tenant_id = $5
     ORDER BY seq LIMIT $4",
);
const RANGE: Sql = sql(
    "events_range",
    "SELECT (SELECT min(seq) FROM events) AS first, (SELECT seq FROM event_head) AS head",
);

pub(crate) const STATEMENTS: &[Sql] =
    &[APPEND, ENSURE, BY_KEY, MOVE, AFTER_ALL, AFTER, AFTER_OF_TENANT, RANGE];

/// An event to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub id: EventId,
    pub kind: &'static str,
    /// What it is about: an id in text form.
    pub subject: String,
    /// Whose event it is; `None` for the operator's alone.
    pub tenant_id: Option<TenantId>,
    pub data: Value,
}

/// An event as readers see it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub seq: i64,
    /// When the change was written.
    pub at: Timestamp,
    pub id: EventId,
    pub kind: String,
    pub subject: String,
    pub tenant_id: Option<TenantId>,
    pub data: Value,
}

/// Which events to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only this tenant's; all, and those of no tenant, when absent.
    pub tenant_id: Option<TenantId>,
    pub subject: Option<String>,
    pub kinds: Option<Vec<String>>,
}

/// The events there are to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRange {
    /// The oldest one kept. A reader that stopped before it has missed some.
    pub first: Option<i64>,
    /// The last number given out.
    pub head: i64,
}

/// What a relay pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relayed {
    /// This many events; there may be more when they are not fewer than the batch.
    Moved(usize),
    /// The lease is not held: nothing was moved.
    NotHolder,
}

/// Writes an event with the caller's transaction: all of one transaction together at its end, in their order.
pub async fn append(tx: &mut Tx<'_>, event: Event) -> Result<(), StoreError> {
    tx.later_event(event);
    tx.notify(OUTBOX_CHANNEL, "");
    Ok(())
}

/// A statement for each row.
pub(crate) fn append_all(events: Vec<Event>) -> Vec<Later> {
    let mut statements = Vec::with_capacity(events.len().div_ceil(BATCH_EVENTS_MAX));
    let mut events = events.into_iter();
    while events.len() > 0 {
        statements.push(append_batch(events.by_ref().take(BATCH_EVENTS_MAX)));
        if events.len() < BATCH_EVENTS_MAX && kit::mutant::on("store.rest-of-a-batch-is-dropped") {
            break;
        }
    }
    statements
}

fn append_batch(events: impl Iterator<Item = Event>) -> Later {
    let mut columns = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Event { id, kind, subject, tenant_id, data } in events {
        columns.0.push(id.uuid());
        columns.1.push(kind);
        columns.2.push(subject);
        columns.3.push(tenant_id.map(TenantId::uuid));
        columns.4.push(data);
    }
    let params: Vec<Owned> = vec![
        Box::new(columns.0),
        Box::new(columns.1),
        Box::new(columns.2),
        Box::new(columns.3),
        Box::new(columns.4),
    ];
    Later { sql: APPEND, params }
}

/// Moves events while its process has the lease, and remembers where it is.
///
/// While somebody holds an old snapshot, what was moved cannot be cleaned up, and each look would pass all of it again. So a
/// relay begins where everything before is gone for good: at a row that was the oldest one at some look, once all
/// transactions of that time have ended. One number of a row is given out before its transaction is counted among them, for
/// an instant, so it begins at the very front now and then. A server that was started anew may be an older database, whose
/// rows have numbers that were seen and gone before: there it begins at the very front too.
#[derive(Debug, Default)]
pub struct Relay {
    /// When the server of this floor was started, in microseconds.
    server: i64,
    floor: i64,
    /// A floor to be, when every transaction below the second has ended.
    candidate: Option<(i64, i64)>,
    passes: u32,
    /// Events of a row of the last pass, so that no more rows are looked at than are moved; none as long as nothing is known.
    of_a_row: i64,
    /// Its months have their partitions, as far as is known.
    ensured: bool,
}

/// What one transaction of a relay moved, and of how many rows that were there to be looked at.
struct Step {
    events: i64,
    near: i64,
}

/// Rows that are looked at beside those that are expected to do.
const ROWS_MORE: i64 = 16;
/// Passes between two looks from the very front: seconds of a busy relay.
const FROM_THE_FRONT_EVERY: u32 = 10_000;

impl Relay {
    /// For when the lease was not held in between: whoever held it may have left off anywhere, at another database too.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Moves `batch` events, oldest first, and numbers them: fewer when there are no more, and up to the rest of a row more.
    pub async fn pass(&mut self, store: &Store, lease: &Lease, batch: u32) -> Result<Relayed, StoreError> {
        let (batch, mut moved) = (i64::from(batch), 0);
        loop {
            let asked = self.rows_of(batch - moved);
            let Some(Step { events, near }) = self.step(store, lease, batch - moved, asked).await? else {
                return Ok(Relayed::NotHolder);
            };
            moved += events;
            // Rows that were looked at may have been of fewer events than those before.
            if moved >= batch || near < asked {
                return Ok(Relayed::Moved(usize::try_from(moved).unwrap_or(0)));
            }
        }
    }

    /// How many rows are looked at for so many events: twice what it takes if they are like the last ones.
    fn rows_of(&self, events: i64) -> i64 {
        match self.of_a_row {
            0 => events,
            of_a_row => (2 * events / of_a_row + ROWS_MORE).min(events),
        }
    }

    /// None when the lease is not held.
    async fn step(
        &mut self,
        store: &Store,
        lease: &Lease,
        events: i64,
        rows: i64,
    ) -> Result<Option<Step>, StoreError> {
        self.passes += 1;
        if self.passes >= FROM_THE_FRONT_EVERY {
            *self = Self { server: self.server, ensured: self.ensured, ..Self::default() };
        }
        let (server, floor, ensure) = (self.server, self.floor, !self.ensured);
        self.ensured = false;
        let row = store
            .tx(RELAY, |tx| {
                Box::pin(async move {
                    if ensure {
                        tx.query(&ENSURE, &[]).await?;
                    }
                    tx.query_one(&BY_KEY, &[]).await?;
                    let lease: [&(dyn Param + Sync); 3] = [&lease.name, &lease.holder, &lease.epoch];
                    let [name, holder, epoch] = lease;
                    let row =
                        tx.query_one(&MOVE, &[name, holder, epoch, &floor, &events, &server, &rows]).await?;
                    if row.get::<_, i64>("moved") > 0 {
                        tx.notify(EVENTS_CHANNEL, "");
                    }
                    Ok::<_, StoreError>(row)
                })
            })
            .await?;
        if !row.get::<_, bool>("held") {
            self.forget();
            return Ok(None);
        }
        if row.get::<_, i64>("server") != self.server {
            *self = Self { server: row.get("server"), ..Self::default() };
        }
        self.ensured = true;
        self.advance(row.get("first"), row.get("oldest"), row.get("next"));
        let (moved, of): (i64, i64) = (row.get("moved"), row.get("rows"));
        if of > 0 {
            self.of_a_row = moved / of;
        }
        Ok(Some(Step { events: moved, near: row.get("near") }))
    }

    /// `first` was the oldest event there was; transactions below `oldest` had ended, and none from `next` on had begun.
    fn advance(&mut self, first: Option<i64>, oldest: i64, next: i64) {
        if let Some((floor, ended)) = self.candidate
            && oldest >= ended
        {
            self.floor = floor;
            self.candidate = None;
        }
        if self.candidate.is_none() {
            self.candidate = first.map(|first| (first, next));
        }
    }
}

/// One pass of a relay that remembers nothing.
pub async fn relay_pass(store: &Store, lease: &Lease, batch: u32) -> Result<Relayed, StoreError> {
    Relay::default().pass(store, lease, batch).await
}

/// Events with a higher `seq` than `after`, in its order, [`EVENTS_PAGE_MAX`] at most.
pub async fn events_after(
    store: &Store,
    after: i64,
    limit: u32,
    filter: &EventFilter,
) -> Result<Vec<StoredEvent>, StoreError> {
    let limit = i64::from(limit.min(EVENTS_PAGE_MAX));
    let params: [&(dyn Param + Sync); 4] = [&after, &filter.subject, &filter.kinds, &limit];
    let rows = match filter.tenant_id {
        None if filter.subject.is_none() && filter.kinds.is_none() => {
            store.read(&AFTER_ALL, &[&after, &limit]).await?
        }
        None => store.read(&AFTER, &params).await?,
        Some(tenant_id) => {
            let [after, subject, kinds, limit] = params;
            store.read(&AFTER_OF_TENANT, &[after, subject, kinds, limit, &tenant_id.uuid()]).await?
        }
    };
    Ok(rows
        .iter()
        .map(|row| StoredEvent {
            seq: row.get("seq"),
            at: row.ts("at"),
            id: row.id("event_id"),
            kind: row.get("kind"),
            subject: row.get("subject"),
            tenant_id: row.opt_id("tenant_id"),
            data: row.get("data"),
        })
        .collect())
}

/// The oldest and newest numbers, for a reader that resumes.
pub async fn events_range(store: &Store) -> Result<EventRange, StoreError> {
    let row = store.read_one(&RANGE, &[]).await?;
    Ok(EventRange { first: row.get("first"), head: row.get("head") })
}
