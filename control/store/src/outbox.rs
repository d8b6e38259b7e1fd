//! Domain events: written with the change they tell of, numbered afterwards.
//!
//! Durable: an outbox row commits with its change or not at all. Commits come in no order that readers could follow,
//! so a relay, one at a time under a lease, moves the rows to `events` and numbers them there: `seq` has no gaps
//! and never falls, and whoever has read up to some `seq` has missed nothing below it.

use model::{EventId, TenantId, Timestamp};
use serde_json::Value;

use crate::lease::{self, Lease};
use crate::{Op, Param, RowExt, Sql, Store, StoreError, Tx, sql};

/// Told once per transaction that wrote an event.
pub const OUTBOX_CHANNEL: &str = "bc_outbox";
/// Told once per relay pass that moved something.
pub const EVENTS_CHANNEL: &str = "bc_events";
/// The relay's lease.
pub const RELAY_LEASE: &str = "outbox_relay";
/// Events of one read at most: a page of a list, or what an event stream catches up with at once.
pub const EVENTS_PAGE_MAX: u32 = 1_000;

const RELAY: Op = Op::new("outbox_relay");

const APPEND: Sql = sql(
    "outbox_append",
    "INSERT INTO outbox (event_id, kind, subject, tenant_id, data) VALUES ($1, $2, $3, $4, $5)",
);
/// In the order they are given in, which is the order they are numbered in.
const APPEND_ALL: Sql = sql(
    "outbox_append_all",
    "INSERT INTO outbox (event_id, kind, subject, tenant_id, data)
     SELECT event_id, kind, subject, tenant_id, data
     FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::jsonb[])
       WITH ORDINALITY AS e (event_id, kind, subject, tenant_id, data, place) ORDER BY place",
);
const TAKE: Sql = sql("outbox_take", "SELECT outbox_id FROM outbox ORDER BY outbox_id LIMIT $1 FOR UPDATE");
const ENSURE: Sql = sql(
    "events_partition_ensure",
    "SELECT partition_ensure('events', month) FROM (
       SELECT DISTINCT date_trunc('month', at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS month
       FROM outbox WHERE outbox_id = ANY($1)) AS months",
);
const MOVE: Sql = sql(
    "outbox_move",
    "WITH head AS (UPDATE event_head SET seq = seq + cardinality($1::bigint[]) RETURNING seq - cardinality($1::bigint[]) AS base),
       moved AS (DELETE FROM outbox WHERE outbox_id = ANY($1) RETURNING *)
     INSERT INTO events (seq, at, event_id, kind, subject, tenant_id, data)
     SELECT base + row_number() OVER (ORDER BY outbox_id), at, event_id, kind, subject, tenant_id, data
     FROM moved, head",
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
    &[APPEND, APPEND_ALL, TAKE, ENSURE, MOVE, AFTER, AFTER_OF_TENANT, RANGE];

/// An event to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<'a> {
    pub id: EventId,
    pub kind: &'a str,
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
    /// This many; there may be more when it equals the batch.
    Moved(usize),
    /// The lease is not held: nothing was moved.
    NotHolder,
}

/// Writes an event in the caller's transaction.
pub async fn append(tx: &mut Tx<'_>, event: Event<'_>) -> Result<(), StoreError> {
    let tenant_id = event.tenant_id.map(TenantId::uuid);
    tx.execute(&APPEND, &[&event.id.uuid(), &event.kind, &event.subject, &tenant_id, &event.data]).await?;
    tx.notify(OUTBOX_CHANNEL, "");
    Ok(())
}

/// Writes many events in the caller's transaction by one statement.
pub async fn append_all(tx: &mut Tx<'_>, events: &[Event<'_>]) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let ids: Vec<uuid::Uuid> = events.iter().map(|event| event.id.uuid()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind).collect();
    let subjects: Vec<&str> = events.iter().map(|event| event.subject.as_str()).collect();
    let tenants: Vec<Option<uuid::Uuid>> =
        events.iter().map(|event| event.tenant_id.map(TenantId::uuid)).collect();
    let data: Vec<&Value> = events.iter().map(|event| &event.data).collect();
    tx.execute(&APPEND_ALL, &[&ids, &kinds, &subjects, &tenants, &data]).await?;
    tx.notify(OUTBOX_CHANNEL, "");
    Ok(())
}

/// Moves up to `batch` events, oldest first, and numbers them.
pub async fn relay_pass(store: &Store, lease: &Lease, batch: u32) -> Result<Relayed, StoreError> {
    store
        .tx(RELAY, |tx| {
            Box::pin(async move {
                if !lease::guard(tx, lease).await? {
                    return Ok(Relayed::NotHolder);
                }
                let rows = tx.query(&TAKE, &[&i64::from(batch)]).await?;
                let ids: Vec<i64> = rows.iter().map(|row| row.get("outbox_id")).collect();
                if !ids.is_empty() {
                    tx.query(&ENSURE, &[&ids]).await?;
                    tx.execute(&MOVE, &[&ids]).await?;
                    tx.notify(EVENTS_CHANNEL, "");
                }
                Ok::<_, StoreError>(Relayed::Moved(ids.len()))
            })
        })
        .await
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
