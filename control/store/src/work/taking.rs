//! Taking woken keys.

use std::time::Duration;

use super::{Claimed, Queue, statements as sql};
use crate::lease::millis;
use crate::{ErrorKind, StoreError, Tx};

/// Where one taker of a queue begins to look.
///
/// Wake-ups stand in the order of the transactions that woke. What was taken stays in the index until it is cleaned up,
/// which an old snapshot holds up; whoever began at the front each time would pass all of it each time. Below the oldest
/// transaction that runs, nothing is added any more, so what has been seen to be empty there is empty for good.
///
/// Of one queue of one database: the numbers of another database's transactions say nothing. A server that was started
/// anew may be another one, so the floor goes with the server's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor {
    xid: i64,
    server: i64,
}

impl Floor {
    /// After a look from here that saw `first` as the oldest wake-up, at a time when everything below `settled` had ended.
    fn after(self, first: Option<i64>, settled: i64, server: i64) -> Self {
        if server != self.server {
            return Self { xid: 0, server };
        }
        if kit::mutant::on("store.floor-passes-what-is-not-settled") {
            return Self { xid: settled + 4_096, server };
        }
        Self { xid: first.map_or(settled, |first| first.min(settled)).max(self.xid), server }
    }
}

/// Keys that are ours until the transaction ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Sorted, each once.
    pub keys: Vec<String>,
    /// Wake-ups that were looked at. Not fewer than were asked for means that there may be more.
    pub seen: u32,
    /// How many of them were left, since others have their keys at the moment.
    pub held: u32,
    /// Keys that have a row in `work` and are due there now, unless they are parked.
    pub folded: u32,
}

/// Takes `wakes_max` wake-ups of a queue, oldest first, with their keys, for as long as the transaction lasts: fewer when there
/// are no more, and up to 31 more, since what one transaction woke is taken together (see [`put_back`](super::put_back)). With
/// `acting`, takes none while the deployment is observe-only.
///
/// Whatever was committed before a wake-up that this takes, the statements that follow see. The wake-ups are gone with the
/// commit and back with a rollback; `floor` holds either way. Keys that another transaction has taken or another worker
/// runs are left alone.
pub async fn take(
    tx: &mut Tx<'_>,
    queue: Queue,
    floor: &mut Floor,
    wakes_max: u32,
    acting: bool,
) -> Result<Taken, StoreError> {
    let rows_max = i32::try_from(wakes_max).unwrap_or(i32::MAX);
    let row = tx.query_one(&sql::TAKE, &[&queue.name, &floor.xid, &rows_max, &acting]).await?;
    *floor = floor.after(row.get("first"), row.get("settled"), row.get("server"));
    let count = |column: &str| u32::try_from(row.get::<_, i32>(column)).unwrap_or(0);
    Ok(Taken { keys: row.get("keys"), seen: count("seen"), held: count("held"), folded: count("folded") })
}

/// Puts taken keys under a lease of `worker`, so that they outlast the transaction.
pub async fn start(
    tx: &mut Tx<'_>,
    queue: Queue,
    keys: &[String],
    worker: &str,
    lease: Duration,
) -> Result<Vec<Claimed>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let params: [&(dyn crate::Param + Sync); 5] =
        [&queue.name, &keys, &queue.attempts_max, &worker, &millis(lease)];
    let rows = tx.query(&sql::START, &params).await?;
    if rows.len() != keys.len() {
        // Only a program that knows no locks of keys can have claimed one since: the wake-ups come back.
        return Err(StoreError::new("work_start", ErrorKind::RowCount { found: rows.len() }));
    }
    Ok(rows.iter().map(|row| Claimed::of(queue, row)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_rises_to_what_is_settled_or_seen_and_starts_over_with_the_server() {
        let floor = Floor::default().after(Some(7), 9, 1);
        assert_eq!(floor, Floor { xid: 0, server: 1 }, "nothing is known of this server yet");
        let floor = floor.after(Some(7), 9, 1);
        assert_eq!(floor.xid, 7, "the wake-up that is there");
        let floor = floor.after(Some(30), 20, 1);
        assert_eq!(floor.xid, 20, "a transaction that runs may add below what is seen");
        let floor = floor.after(None, 25, 1);
        assert_eq!(floor.xid, 25);
        assert_eq!(floor.after(Some(30), 40, 2), Floor { xid: 0, server: 2 }, "another server may be older");
    }
}
