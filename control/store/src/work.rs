//! The work queue: keys that a pass should look at.
//!
//! Durable: every row, until a pass has completed the very version of it that it was given. A wake-up raises the
//! version; a completion that finds another version makes the key ready again instead of removing it, so a wake-up
//! during a pass means another pass. Claims are leases: one that lapsed is taken over, and a raised claim number
//! keeps the slow worker's completion out.
//!
//! ```text
//!            enqueue                claim                   complete, same version
//!   (absent) ───────▶ ready ──────────────────▶ running ──────────────────────────▶ (absent)
//!                      ▲  ▲  complete, newer version │ │
//!                      │  ├──── reschedule, fail ────┘ │ fail for the last time,
//!                      │  └──── the claim lapsed ──────┤ the claim lapsed for the last time
//!                      └─────────── requeue ──────── parked ◀┘
//! ```
//!
//! A wake-up folds into a parked key without waking it: [`requeue`] does, when a human has looked.

use std::time::Duration;

use kit::Rng;
use model::{Timestamp, WorkId};
use serde_json::Value;

use crate::lease::millis;
use crate::{RowExt, StoreError, Tx};

mod statements;
use statements as sql;
pub(crate) use statements::STATEMENTS;

/// Told once per transaction that made work ready.
pub const CHANNEL: &str = "bc_work";
/// Lapsed claims taken back per claiming pass; the rest waits for the next.
const RECLAIM_MAX: i64 = 100;
/// A stored error text is cut here: it is for a human to read.
const ERROR_LEN_MAX: usize = 2_000;
/// Pauses after a failed pass: uniform between half of and the whole of a bound that doubles from the first.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// A queue and how often a key of it may fail in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    name: &'static str,
    attempts_max: i32,
}

impl Queue {
    /// `attempts_max` failed passes in a row park a key; `i32::MAX` never does.
    pub const fn new(name: &'static str, attempts_max: i32) -> Self {
        assert!(attempts_max > 0, "a key is tried at least once");
        Self { name, attempts_max }
    }

    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// What an enqueue found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    New,
    /// The key was there already, ready or running, and will run for this wake-up too.
    Folded,
    /// The key is parked and stays so.
    Parked,
}

/// A key to look at, ours until the claim lapses.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub work_id: WorkId,
    pub queue: Queue,
    pub key: String,
    pub payload: Value,
    /// Failed passes in a row so far.
    pub attempts: i32,
    version: i64,
    claim: i64,
}

/// What became of a completed or rescheduled key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    Done,
    /// It is ready again: woken during the pass, or rescheduled.
    Again,
    /// The claim had lapsed and the key is another's. The transaction should roll back.
    Lost,
}

/// What became of a failed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Retry,
    Parked,
    Lost,
}

/// A key that failed too often.
#[derive(Debug, Clone, PartialEq)]
pub struct Parked {
    pub work_id: WorkId,
    pub queue: String,
    pub key: String,
    pub payload: Value,
    pub attempts: i32,
    pub last_error: Option<String>,
    pub parked_at: Timestamp,
}

/// Makes the key due in `delay`, or earlier if it was already. The payload replaces an earlier one.
pub async fn enqueue(
    tx: &mut Tx<'_>,
    queue: Queue,
    key: &str,
    payload: &Value,
    delay: Duration,
) -> Result<Enqueued, StoreError> {
    let row = tx
        .query_one(&sql::ENQUEUE, &[&queue.name, &key, payload, &millis(delay), &queue.attempts_max])
        .await?;
    tx.notify(CHANNEL, "");
    Ok(match (row.get("fresh"), row.get("state")) {
        (true, _) => Enqueued::New,
        (false, "parked") => Enqueued::Parked,
        (false, _) => Enqueued::Folded,
    })
}

/// Makes many keys due now in one statement, with an empty payload for those that are new.
pub async fn enqueue_all(tx: &mut Tx<'_>, queue: Queue, keys: &[String]) -> Result<(), StoreError> {
    if keys.is_empty() {
        return Ok(());
    }
    // Sorted inside, so that two of these cannot deadlock; distinct, as one statement may touch a row once.
    tx.execute(&sql::ENQUEUE_ALL, &[&queue.name, &keys, &queue.attempts_max]).await?;
    tx.notify(CHANNEL, "");
    Ok(())
}

/// Claims up to `batch` due keys for `lease`, earliest first. Takes back what lapsed claims left before that.
pub async fn claim(
    tx: &mut Tx<'_>,
    queue: Queue,
    worker: &str,
    batch: u32,
    lease: Duration,
) -> Result<Vec<Claimed>, StoreError> {
    tx.execute(&sql::RECLAIM, &[&queue.name, &RECLAIM_MAX]).await?;
    let rows = tx.query(&sql::CLAIM, &[&queue.name, &i64::from(batch), &worker, &millis(lease)]).await?;
    Ok(rows
        .iter()
        .map(|row| Claimed {
            work_id: row.id("work_id"),
            queue,
            key: row.get("key"),
            payload: row.get("payload"),
            attempts: row.get("attempts"),
            version: row.get("version"),
            claim: row.get("claim"),
        })
        .collect())
}

/// Keeps the claim for `lease` from now. False when it had been taken over.
pub async fn extend(tx: &mut Tx<'_>, item: &Claimed, lease: Duration) -> Result<bool, StoreError> {
    Ok(tx.execute(&sql::EXTEND, &[&item.work_id.uuid(), &item.claim, &millis(lease)]).await? == 1)
}

/// The pass did what there was to do. Best in the transaction of the pass's own writes, so that both happen.
pub async fn complete(tx: &mut Tx<'_>, item: &Claimed) -> Result<Completion, StoreError> {
    if tx.execute(&sql::COMPLETE, &[&item.work_id.uuid(), &item.claim, &item.version]).await? == 1 {
        return Ok(Completion::Done);
    }
    again(tx, item, None).await
}

/// The pass went well and wants to look again in `delay`, or when woken.
pub async fn reschedule(tx: &mut Tx<'_>, item: &Claimed, delay: Duration) -> Result<Completion, StoreError> {
    again(tx, item, Some(delay)).await
}

async fn again(tx: &mut Tx<'_>, item: &Claimed, delay: Option<Duration>) -> Result<Completion, StoreError> {
    let params: &[&(dyn crate::Param + Sync)] = &[&item.work_id.uuid(), &item.claim, &delay.map(millis)];
    if tx.execute(&sql::AGAIN, params).await? == 0 {
        return Ok(Completion::Lost);
    }
    tx.notify(CHANNEL, "");
    Ok(Completion::Again)
}

/// The pass failed: look again in `delay` (see [`backoff`]), or park the key after its last attempt.
pub async fn fail(
    tx: &mut Tx<'_>,
    item: &Claimed,
    error: &str,
    delay: Duration,
) -> Result<Failure, StoreError> {
    let error: String = error.chars().take(ERROR_LEN_MAX).collect();
    let row = tx.query_opt(&sql::FAIL, &[&item.work_id.uuid(), &item.claim, &error, &millis(delay)]).await?;
    let Some(row) = row else { return Ok(Failure::Lost) };
    if row.get::<_, &str>("state") == "parked" {
        return Ok(Failure::Parked);
    }
    tx.notify(CHANNEL, "");
    Ok(Failure::Retry)
}

/// How long to wait after this many failed passes in a row.
pub fn backoff(attempts: i32, rng: &dyn Rng) -> Duration {
    let doublings = u32::try_from(attempts).unwrap_or(0).min(16);
    let bound = BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_MAX);
    let half = bound / 2;
    half + Duration::from_micros(rng.below(u64::try_from(half.as_micros()).unwrap_or(u64::MAX)))
}

/// When a claiming pass would next find something: the earliest due key or lapsing claim.
pub async fn next_due(tx: &mut Tx<'_>, queue: Queue) -> Result<Option<Timestamp>, StoreError> {
    Ok(tx.query_one(&sql::NEXT_DUE, &[&queue.name]).await?.opt_ts("due"))
}

/// Parked keys, longest parked first, of one queue or of all.
pub async fn list_parked(
    tx: &mut Tx<'_>,
    queue: Option<&str>,
    limit: u32,
) -> Result<Vec<Parked>, StoreError> {
    let rows = tx.query(&sql::LIST_PARKED, &[&queue, &i64::from(limit)]).await?;
    Ok(rows
        .iter()
        .map(|row| Parked {
            work_id: row.id("work_id"),
            queue: row.get("queue"),
            key: row.get("key"),
            payload: row.get("payload"),
            attempts: row.get("attempts"),
            last_error: row.get("last_error"),
            parked_at: row.ts("parked_at"),
        })
        .collect())
}

/// Gives a parked key all its attempts again, due now. False when it is not parked.
pub async fn requeue(tx: &mut Tx<'_>, work_id: WorkId) -> Result<bool, StoreError> {
    let woken = tx.execute(&sql::REQUEUE, &[&work_id.uuid()]).await? == 1;
    if woken {
        tx.notify(CHANNEL, "");
    }
    Ok(woken)
}

#[cfg(test)]
mod tests;
