//! The work queue: keys that a pass should look at.
//!
//! Durable: every wake-up, until a pass that began after it has committed. What a transaction wakes of a queue is a row of
//! `work_wake_batches`, which is only inserted and deleted, so that who wakes waits for nobody. A pass takes the wake-ups of
//! many keys at once, in one of two ways:
//!
//! - **In its own transaction** ([`take`]): what it does and that it is done commit together; a failure brings the wake-ups
//!   back. Meanwhile its keys are locked, and nobody else takes them. This costs one transaction for all of them.
//! - **Under a lease** ([`start`], then [`settle`]): for a pass with transactions of its own, and for keys that failed. The
//!   key gets a row in `work`.
//!
//! ```text
//!           wake            take, commit
//! (absent) ──────▶ woken ─────────────────▶ (absent)
//!    │               │ start                    ▲
//!    │ enqueue later ▼                          │ complete, same version
//!    └──▶ ready ──▶ running ────────────────────┘
//!         ▲ ▲ claim  │ │ │
//!         │ │ complete, newer version; reschedule, fail
//!         │ └────────┘ │ the claim lapsed
//!         ├────────────┘ │ fail for the last time, the claim lapsed for the last time
//!         └─ requeue ── parked
//! ```
//!
//! A wake-up of a key that has a row folds into it: a ready one becomes due, a running one gets a higher version, which
//! makes its completion another pass; a parked one stays parked until [`requeue`], when a human has looked. Claims are
//! leases: one that lapsed is taken over, and a raised claim number keeps the slow worker's completion out.

use std::time::Duration;

use kit::{Rng, mutant};
use model::{Timestamp, WorkId};

use crate::lease::millis;
use crate::tx::Later;
use crate::{Owned, RowExt, StoreError, Tx};

mod statements;
mod taking;

use statements as sql;
pub(crate) use statements::STATEMENTS;
pub use taking::{Floor, Taken, start, take};

/// Told once per transaction and queue that made work ready, with the queue's name, or with none for any queue.
pub const CHANNEL: &str = "bc_work";
/// Lapsed claims taken back per claiming pass; the rest waits for the next.
const RECLAIM_MAX: i64 = 100;
/// Keys of one row at most, which is taken as a whole: by up to one less a taker takes more than it wanted.
const BATCH_KEYS_MAX: usize = 32;
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

/// A key to look at, ours until the claim lapses.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    pub work_id: WorkId,
    pub queue: Queue,
    pub key: String,
    /// Failed passes in a row so far.
    pub attempts: i32,
    version: i64,
    claim: i64,
}

impl Claimed {
    fn of(queue: Queue, row: &crate::Row) -> Self {
        Self {
            work_id: row.id("work_id"),
            queue,
            key: row.get("key"),
            attempts: row.get("attempts"),
            version: row.get("version"),
            claim: row.get("claim"),
        }
    }
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

/// How a pass over one key ended, for [`settle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Look again after this long, or when woken.
    Again(Duration),
    /// Why, and how long to wait before the next attempt (see [`backoff`]).
    Failed(String, Duration),
}

/// A key that failed too often.
#[derive(Debug, Clone, PartialEq)]
pub struct Parked {
    pub work_id: WorkId,
    pub queue: String,
    pub key: String,
    pub attempts: i32,
    pub last_error: Option<String>,
    pub parked_at: Timestamp,
}

/// Makes the key due in `delay`, or earlier if it was already. One that is due now costs a row with the commit and waits
/// for nobody.
pub async fn enqueue(tx: &mut Tx<'_>, queue: Queue, key: &str, delay: Duration) -> Result<(), StoreError> {
    if delay.is_zero() {
        wake(tx, queue, key);
    } else {
        tx.execute(&sql::ENQUEUE, &[&queue.name, &key, &millis(delay), &queue.attempts_max]).await?;
        tx.notify(CHANNEL, queue.name);
    }
    Ok(())
}

/// Makes the key due now, with the commit. However often within one transaction, it is one wake-up.
pub fn wake(tx: &mut Tx<'_>, queue: Queue, key: impl Into<String>) {
    tx.later_wake(queue.name, key.into());
    tx.notify(CHANNEL, queue.name);
}

/// Makes many keys due now, with the commit.
pub async fn enqueue_all(tx: &mut Tx<'_>, queue: Queue, keys: &[String]) -> Result<(), StoreError> {
    put_back(tx, queue, keys.iter().cloned());
    if !keys.is_empty() {
        tx.notify(CHANNEL, queue.name);
    }
    Ok(())
}

/// Leaves taken keys to whoever takes next, with the commit. It tells nobody.
pub fn put_back(tx: &mut Tx<'_>, queue: Queue, keys: impl IntoIterator<Item = String>) {
    for key in keys {
        tx.later_wake(queue.name, key);
    }
}

/// A statement for each row. Sorted and without doubles.
pub(crate) fn wake_all(wakes: &[(&'static str, String)]) -> Vec<Later> {
    let mut statements = Vec::new();
    for of_queue in wakes.chunk_by(|(one, _), (other, _)| one == other) {
        for (part, wakes) in of_queue.chunks(BATCH_KEYS_MAX).enumerate() {
            let keys: Vec<String> = wakes.iter().map(|(_, key)| key.clone()).collect();
            let part = i32::try_from(part).unwrap_or(i32::MAX);
            let params: Vec<Owned> = vec![Box::new(wakes[0].0), Box::new(part), Box::new(keys)];
            statements.push(Later { sql: sql::WAKE, params });
        }
    }
    statements
}

/// Claims up to `batch` due keys that have a row in `work` for `lease`, earliest first: those for later, and those that
/// failed. Takes back what lapsed claims left before that. Woken keys are [`start`]ed.
pub async fn claim(
    tx: &mut Tx<'_>,
    queue: Queue,
    worker: &str,
    batch: u32,
    lease: Duration,
) -> Result<Vec<Claimed>, StoreError> {
    tx.execute(&sql::RECLAIM, &[&queue.name, &RECLAIM_MAX]).await?;
    let rows = tx.query(&sql::CLAIM, &[&queue.name, &i64::from(batch), &worker, &millis(lease)]).await?;
    Ok(rows.iter().map(|row| Claimed::of(queue, row)).collect())
}

/// Keeps the claim for `lease` from now. False when it had been taken over.
pub async fn extend(tx: &mut Tx<'_>, item: &Claimed, lease: Duration) -> Result<bool, StoreError> {
    Ok(tx.execute(&sql::EXTEND, &[&item.work_id.uuid(), &item.claim, &millis(lease)]).await? == 1)
}

/// The pass did what there was to do. Best in the transaction of the pass's own writes, so that both happen.
pub async fn complete(tx: &mut Tx<'_>, item: &Claimed) -> Result<Completion, StoreError> {
    if complete_all(tx, &[item]).await?.len() == 1 {
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
    tx.notify(CHANNEL, item.queue.name);
    Ok(Completion::Again)
}

/// The pass failed: look again in `delay` (see [`backoff`]), or park the key after its last attempt.
pub async fn fail(
    tx: &mut Tx<'_>,
    item: &Claimed,
    error: &str,
    delay: Duration,
) -> Result<Failure, StoreError> {
    // PostgreSQL takes no NUL in text, and an error that cannot be stored would never park.
    let error: String = error.chars().filter(|letter| *letter != '\0').take(ERROR_LEN_MAX).collect();
    let row = tx.query_opt(&sql::FAIL, &[&item.work_id.uuid(), &item.claim, &error, &millis(delay)]).await?;
    let Some(row) = row else { return Ok(Failure::Lost) };
    if row.get::<_, &str>("state") == "parked" {
        return Ok(Failure::Parked);
    }
    tx.notify(CHANNEL, item.queue.name);
    Ok(Failure::Retry)
}

/// What became of settled keys that were not simply done, as positions in what was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    pub parked: Vec<usize>,
    /// The claim had lapsed and the key was another's: nothing was written for it.
    pub lost: Vec<usize>,
}

/// Settles many keys: those that are done in one statement.
pub async fn settle(tx: &mut Tx<'_>, ended: &[(Claimed, Outcome)]) -> Result<Settled, StoreError> {
    let mut settled = Settled::default();
    let done: Vec<&Claimed> =
        ended.iter().filter(|(_, outcome)| *outcome == Outcome::Done).map(|(item, _)| item).collect();
    let gone = complete_all(tx, &done).await?;
    for (at, (item, outcome)) in ended.iter().enumerate() {
        let lost = match outcome {
            Outcome::Done if gone.contains(&item.work_id) => false,
            Outcome::Done => again(tx, item, None).await? == Completion::Lost,
            Outcome::Again(delay) => reschedule(tx, item, *delay).await? == Completion::Lost,
            Outcome::Failed(error, delay) => match fail(tx, item, error, *delay).await? {
                Failure::Retry => false,
                Failure::Lost => true,
                Failure::Parked => {
                    settled.parked.push(at);
                    false
                }
            },
        };
        if lost {
            settled.lost.push(at);
        }
    }
    Ok(settled)
}

async fn complete_all(tx: &mut Tx<'_>, done: &[&Claimed]) -> Result<Vec<WorkId>, StoreError> {
    if done.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<_> = done.iter().map(|item| item.work_id.uuid()).collect();
    let claims: Vec<i64> = done.iter().map(|item| item.claim).collect();
    let versions: Vec<i64> = done.iter().map(|item| item.version).collect();
    let complete = if mutant::on("store.complete-ignores-claim") {
        &sql::COMPLETE_OF_ANY_CLAIM
    } else if mutant::on("store.complete-ignores-version") {
        &sql::COMPLETE_OF_ANY_VERSION
    } else {
        &sql::COMPLETE
    };
    let rows = tx.query(complete, &[&ids, &claims, &versions]).await?;
    Ok(rows.iter().map(|row| row.id("work_id")).collect())
}

/// How long to wait after this many failed passes in a row.
pub fn backoff(attempts: i32, rng: &dyn Rng) -> Duration {
    let doublings = u32::try_from(attempts).unwrap_or(0).min(16);
    let bound = BACKOFF_FIRST.saturating_mul(1 << doublings).min(BACKOFF_MAX);
    let half = bound / 2;
    half + Duration::from_micros(rng.below(u64::try_from(half.as_micros()).unwrap_or(u64::MAX)))
}

/// What of a queue has a row in `work`. Woken keys are not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outlook {
    /// In how long [`claim`] would next find something: the earliest due key or lapsing claim.
    pub due_in: Option<Duration>,
    /// Keys that wait for a person; at most [`PARKED_COUNTED_MAX`] are counted.
    pub parked: u32,
}

/// More parked keys than this are as bad as this many.
pub const PARKED_COUNTED_MAX: u32 = 1_000;

pub async fn outlook(tx: &mut Tx<'_>, queue: Queue) -> Result<Outlook, StoreError> {
    let row = tx.query_one(&sql::OUTLOOK, &[&queue.name, &i64::from(PARKED_COUNTED_MAX)]).await?;
    let wait: Option<i64> = row.get("wait_ms");
    Ok(Outlook {
        due_in: wait.map(|wait| Duration::from_millis(u64::try_from(wait).unwrap_or(0))),
        parked: u32::try_from(row.get::<_, i64>("parked")).unwrap_or(PARKED_COUNTED_MAX),
    })
}

/// [`Outlook::due_in`].
pub async fn next_due(tx: &mut Tx<'_>, queue: Queue) -> Result<Option<Duration>, StoreError> {
    Ok(outlook(tx, queue).await?.due_in)
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
