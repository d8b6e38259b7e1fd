//! What is told: each event once and in order, and each change beside the events that tell of it.
//!
//! Events only grow, so each look reads what is new since the one before, and remembers the rest; whether something old was
//! changed is asked at rest. Ids are text in an event and UUIDs in a row, so the two are joined here and not in the database.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use model::{InstanceId, ReservationId};
use store::{Row, RowExt, Sql, Store, StoreError, sql};
use uuid::Uuid;

use super::past::SNAPSHOT;
use super::{Invariant, Violation};

const STATES: Sql = sql(
    "sim_states",
    "SELECT reservation_id, NULL::uuid AS instance_id, state FROM reservations WHERE state <> 'draft'
     UNION ALL SELECT NULL, instance_id, state FROM instances ORDER BY 1, 2",
);

const NUMBERED: Sql = sql(
    "sim_numbered",
    "SELECT seq, event_id, kind, subject, data->>'allocationId' AS allocation, coalesce(data->>'state', '') AS state,
       md5(concat_ws('|', event_id, at, kind, subject, tenant_id, data))::uuid AS digest
     FROM events WHERE seq > $1 ORDER BY seq",
);
/// Written, or written again, since a look before.
const CHANGED: Sql = sql(
    "sim_changed",
    "SELECT seq, event_id, kind, subject, data->>'allocationId' AS allocation, coalesce(data->>'state', '') AS state,
       md5(concat_ws('|', event_id, at, kind, subject, tenant_id, data))::uuid AS digest
     FROM events WHERE xmin::text::bigint >= $1 ORDER BY seq",
);
const WAITING: Sql = sql(
    "sim_waiting",
    "SELECT event_id, kind, subject, data->>'allocationId' AS allocation, coalesce(data->>'state', '') AS state
     FROM outbox_events ORDER BY batch_id, place",
);
const GAPS: Sql = sql(
    "sim_event_gaps",
    "SELECT count(*) AS count, coalesce(min(seq), 1) AS first, coalesce(max(seq), 0) AS last FROM events",
);

/// Told once of each subject.
const ONCE: &[&str] = &[
    "command.settled",
    "reservation.released",
    "reservation.expired",
    "reservation.failed",
    "instance.created",
    "instance.deleted",
];
/// Told once of each allocation.
const ONCE_OF_ALLOCATION: &[&str] =
    &["reservation.placed", "reservation.active", "reservation.replacing", "instance.scheduled"];

#[derive(Default)]
pub(super) struct Told {
    /// What is older was read before, whatever became of it.
    from: i64,
    /// The last number that was read.
    last_seq: i64,
    by_seq: BTreeMap<i64, Uuid>,
    ids: HashMap<Uuid, i64>,
    once: HashMap<(&'static str, String), Uuid>,
    /// The number and the state of the last word on each reservation and each instance.
    last: BTreeMap<String, (i64, String)>,
}

impl Told {
    /// The rows are read in one snapshot each: ask while nothing moves.
    pub async fn look(&mut self, store: &Store) -> Result<Vec<Violation>, StoreError> {
        let mut found = Vec::new();
        for row in store.read(&NUMBERED, &[&self.last_seq]).await? {
            let seq: i64 = row.get("seq");
            if self.last_seq > 0 && seq != self.last_seq + 1 {
                let what = format!("{} is followed by {seq}", self.last_seq);
                found.push(Violation::new(Invariant::EventsOnceInOrder, what));
            }
            self.last_seq = seq;
            self.numbered(&row, &mut found);
        }
        let waiting = store.read(&WAITING, &[]).await?;
        let states = store.read(&STATES, &[]).await?;
        let mut last: BTreeMap<&str, &str> =
            self.last.iter().map(|(subject, (_, state))| (subject.as_str(), state.as_str())).collect();
        let (mut ids, mut once) = (HashSet::new(), HashMap::new());
        for row in &waiting {
            let id: Uuid = row.get("event_id");
            if self.ids.contains_key(&id) || !ids.insert(id) {
                found.push(twice(id));
            }
            if let Some(key) = told_once(row) {
                let before = self.once.get(&key).copied().or_else(|| once.insert(key.clone(), id));
                found.extend(before.filter(|before| *before != id).map(|_| again(&key)));
            }
            let subject: &str = row.get("subject");
            if has_state(subject) {
                last.insert(subject, row.get("state"));
            }
        }
        beside(&states, &last, &mut found);
        Ok(found)
    }

    /// Reads what was written again since it was last asked, and counts all.
    pub async fn again(&mut self, store: &Store) -> Result<Vec<Violation>, StoreError> {
        let mut found = Vec::new();
        let snapshot = store.read_one(&SNAPSHOT, &[]).await?.get("xmin");
        for row in store.read(&CHANGED, &[&self.from]).await? {
            self.numbered(&row, &mut found);
        }
        self.from = snapshot;
        let gaps = store.read_one(&GAPS, &[]).await?;
        let (count, first, last): (i64, i64, i64) = (gaps.get("count"), gaps.get("first"), gaps.get("last"));
        if last - first + 1 != count {
            let what = format!("{count} are numbered from {first} to {last}");
            found.push(Violation::new(Invariant::EventsOnceInOrder, what));
        }
        Ok(found)
    }

    fn numbered(&mut self, row: &Row, found: &mut Vec<Violation>) {
        let (seq, id, digest): (i64, Uuid, Uuid) = (row.get("seq"), row.get("event_id"), row.get("digest"));
        if self.by_seq.insert(seq, digest).is_some_and(|before| before != digest) {
            let what = format!("event {seq} is not what it was");
            found.push(Violation::new(Invariant::EventsOnceInOrder, what));
        }
        if self.ids.insert(id, seq).is_some_and(|before| before != seq) {
            found.push(twice(id));
        }
        if let Some(key) = told_once(row)
            && self.once.insert(key.clone(), id).is_some_and(|before| before != id)
        {
            found.push(again(&key));
        }
        let subject: &str = row.get("subject");
        if has_state(subject) {
            let last = self.last.entry(subject.to_owned()).or_default();
            if last.0 <= seq {
                *last = (seq, row.get("state"));
            }
        }
    }
}

/// Whatever is told of it says in which state it is.
fn has_state(subject: &str) -> bool {
    subject.starts_with("reservation/") || subject.starts_with("instance/")
}

fn told_once(row: &Row) -> Option<(&'static str, String)> {
    let kind: &str = row.get("kind");
    if let Some(kind) = ONCE.iter().find(|once| **once == kind) {
        return Some((kind, row.get("subject")));
    }
    let kind = ONCE_OF_ALLOCATION.iter().find(|once| **once == kind)?;
    Some((kind, row.get::<_, Option<String>>("allocation")?))
}

fn twice(id: Uuid) -> Violation {
    Violation::new(Invariant::EventsOnceInOrder, format!("{id} is told twice"))
}

fn again((kind, of): &(&'static str, String)) -> Violation {
    Violation::new(Invariant::EffectsOnce, format!("{kind} was told twice of {of}"))
}

fn beside(states: &[Row], told: &BTreeMap<&str, &str>, found: &mut Vec<Violation>) {
    let mut known = BTreeSet::new();
    for row in states {
        let state: &str = row.get("state");
        let subject = match row.opt_id::<InstanceId>("instance_id") {
            Some(id) => format!("instance/{id}"),
            None => format!("reservation/{}", row.id::<ReservationId>("reservation_id")),
        };
        let last = told.get(subject.as_str()).copied().unwrap_or("nothing");
        if last != state {
            found.push(Violation::new(
                Invariant::EventsWithTheirChange,
                format!("{subject} is {state}, and the last that was told of it is {last}"),
            ));
        }
        known.insert(subject);
    }
    // A refused draft is deleted, and nothing was ever told of it.
    found.extend(told.keys().filter(|subject| !known.contains(**subject)).map(|subject| {
        Violation::new(Invariant::EventsWithTheirChange, format!("{subject} was told of and does not exist"))
    }));
}
