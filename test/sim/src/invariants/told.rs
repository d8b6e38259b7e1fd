//! Changes beside the events that tell of them.
//!
//! Ids are text in an event and UUIDs in a row, so the two are joined here and not in the database.

use std::collections::BTreeMap;

use model::ReservationId;
use store::{RowExt, Sql, Store, StoreError, sql};

use super::{Invariant, Violation};

const STATES: Sql =
    sql("sim_states", "SELECT reservation_id, state FROM reservations WHERE state <> 'draft' ORDER BY 1");

/// The last word on each reservation. What still waits for its number came after what has one.
const LAST_TOLD: Sql = sql(
    "sim_last_told",
    "SELECT DISTINCT ON (subject) subject, coalesce(data->>'state', '') AS state FROM (
       SELECT 0 AS part, seq AS n, kind, subject, data FROM events
       UNION ALL SELECT 1, row_number() OVER (ORDER BY batch_id, place), kind, subject, data FROM outbox_events) told
     WHERE kind LIKE 'reservation.%' ORDER BY subject, part DESC, n DESC",
);

/// Both are read in one snapshot each, the rows first: a change in between is told after it is seen, so ask while nothing moves.
pub(super) async fn all(store: &Store) -> Result<Vec<Violation>, StoreError> {
    let states = store.read(&STATES, &[]).await?;
    let told: BTreeMap<String, String> =
        store.read(&LAST_TOLD, &[]).await?.iter().map(|row| (row.get("subject"), row.get("state"))).collect();
    let mut found = Vec::new();
    for row in &states {
        let (id, state): (ReservationId, &str) = (row.id("reservation_id"), row.get("state"));
        let last = told.get(&format!("reservation/{id}")).map_or("nothing", String::as_str);
        if last != state {
            found.push(Violation::new(
                Invariant::EventsWithTheirChange,
                format!("{id} is {state}, and the last that was told of it is {last}"),
            ));
        }
    }
    let known: std::collections::BTreeSet<String> = states
        .iter()
        .map(|row| format!("reservation/{}", row.id::<ReservationId>("reservation_id")))
        .collect();
    // A refused draft is deleted, and nothing was ever told of it.
    found.extend(told.keys().filter(|subject| !known.contains(*subject)).map(|subject| {
        Violation::new(Invariant::EventsWithTheirChange, format!("{subject} was told of and does not exist"))
    }));
    Ok(found)
}
