use std::collections::BTreeSet;
use std::time::Duration;
use store::work::{self, Claimed, Completion, Failure, Floor, Outlook, Queue};
use store::{Store, StoreError, sql};
use testkit::db;

use crate::{Clocked, in_tx};

pub const QUEUE: Queue = Queue::new("instance", 3);
const LEASE: Duration = Duration::from_secs(30);
pub const START: &str = "2026-03-01T00:00:00Z";

async fn enqueue(store: &Store, key: &str, delay: Duration) {
    in_tx!(store, |tx| work::enqueue(tx, QUEUE, key, delay))
}

pub async fn wake(store: &Store, key: &str) {
    enqueue(store, key, Duration::ZERO).await;
}

/// What is due, woken keys last, under a lease each.
pub async fn claim(store: &Store, batch: u32) -> Vec<Claimed> {
    in_tx!(store, |tx| async move {
        let mut items = work::claim(tx, QUEUE, "worker-1", batch, LEASE).await?;
        let taken = work::take(tx, QUEUE, &mut Floor::default(), batch, true).await?;
        items.extend(work::start(tx, QUEUE, &taken.keys, "worker-1", LEASE).await?);
        // What was folded into a row is due.
        items.extend(work::claim(tx, QUEUE, "worker-1", batch, LEASE).await?);
        Ok(items)
    })
}

pub async fn claim_one(store: &Store) -> Claimed {
    let mut items = claim(store, 10).await;
    assert_eq!(items.len(), 1, "{items:?}");
    items.remove(0)
}

pub async fn complete(store: &Store, item: &Claimed) -> Completion {
    in_tx!(store, |tx| work::complete(tx, item))
}

async fn fail(store: &Store, item: &Claimed) -> Failure {
    in_tx!(store, |tx| work::fail(tx, item, "no such host", Duration::from_secs(5)))
}

#[tokio::test]
async fn concurrent_claimers_never_share_an_item() {
    let db = db().await;
    let keys: Vec<String> = (0..200).map(|n| format!("k{n:03}")).collect();
    let keys_ref = keys.as_slice();
    in_tx!(db.store, |tx| work::enqueue_all(tx, QUEUE, keys_ref));
    let claimer = async || {
        let mut mine = Vec::new();
        loop {
            let items = claim(&db.store, 7).await;
            if items.is_empty() {
                return mine;
            }
            mine.extend(items.into_iter().map(|item| item.key));
        }
    };
    let (one, two, three) = tokio::join!(claimer(), claimer(), claimer());
    assert!(!one.is_empty() && !two.is_empty() && !three.is_empty());
    let all: Vec<String> = [one, two, three].concat();
    assert_eq!(all.len(), 200);
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), keys.into_iter().collect());
}

#[tokio::test]
async fn due_keys_are_claimed_in_order_and_others_wait() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    enqueue(&time.store, "later", Duration::from_secs(60)).await;
    enqueue(&time.store, "b", Duration::ZERO).await;
    enqueue(&time.store, "a", Duration::ZERO).await;
    let keys: Vec<String> = claim(&time.store, 10).await.into_iter().map(|item| item.key).collect();
    assert_eq!(keys, ["a", "b"]);
    assert!(claim(&time.store, 10).await.is_empty());
    time.advance(Duration::from_secs(60));
    // The two claims have lapsed as well by now, and are due since.
    let keys: Vec<String> = claim(&time.store, 10).await.into_iter().map(|item| item.key).collect();
    assert_eq!(keys, ["a", "b", "later"]);
}

#[tokio::test]
async fn a_completed_key_is_gone_and_may_come_again() {
    let db = db().await;
    wake(&db.store, "k").await;
    let item = claim_one(&db.store).await;
    assert_eq!(complete(&db.store, &item).await, Completion::Done);
    assert_eq!(complete(&db.store, &item).await, Completion::Lost);
    wake(&db.store, "k").await;
    claim_one(&db.store).await;
}

#[tokio::test]
async fn a_wake_up_during_a_pass_makes_it_run_again() {
    let db = db().await;
    wake(&db.store, "k").await;
    let item = claim_one(&db.store).await;
    wake(&db.store, "k").await;
    assert!(claim(&db.store, 10).await.is_empty(), "not while it runs");
    assert_eq!(complete(&db.store, &item).await, Completion::Again);
    let second = claim_one(&db.store).await;
    assert_eq!(complete(&db.store, &second).await, Completion::Done);
}

#[tokio::test]
async fn who_wakes_waits_for_nobody_and_a_wake_up_that_commits_late_is_not_lost() {
    let db = db().await;
    wake(&db.store, "k").await;
    let item = claim_one(&db.store).await;
    let (store, item_ref) = (&db.store, &item);
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                // Something that makes the transaction one that others would wait for, if they waited.
                tx.execute(&sql("hold", "UPDATE deployment SET fence = fence + 1"), &[]).await?;
                work::wake(tx, QUEUE, "k");
                wake(store, "k").await;
                assert_eq!(complete(store, item_ref).await, Completion::Done, "it has heard of neither yet");
                let again = claim_one(store).await;
                assert_eq!(complete(store, &again).await, Completion::Done, "the other one's");
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    claim_one(&db.store).await;
}

#[tokio::test]
async fn an_earlier_wake_up_pulls_a_key_forward_and_a_later_one_does_not_push_it_back() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    enqueue(&time.store, "k", Duration::from_secs(60)).await;
    enqueue(&time.store, "k", Duration::from_secs(10)).await;
    enqueue(&time.store, "k", Duration::from_secs(90)).await;
    assert_eq!(in_tx!(time.store, |tx| work::next_due(tx, QUEUE)), Some(Duration::from_secs(10)));
}

#[tokio::test]
async fn a_key_that_keeps_failing_is_parked_and_runs_after_a_requeue() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    wake(&time.store, "k").await;
    for attempt in 0..3 {
        let item = claim_one(&time.store).await;
        assert_eq!(item.attempts, attempt);
        let wanted = if attempt < 2 { Failure::Retry } else { Failure::Parked };
        assert_eq!(fail(&time.store, &item).await, wanted);
        assert!(claim(&time.store, 10).await.is_empty(), "it waits for its backoff");
        time.advance(Duration::from_secs(5));
    }
    wake(&time.store, "k").await;
    assert!(claim(&time.store, 10).await.is_empty(), "a wake-up does not undo what a person has to look at");
    let parked = in_tx!(time.store, |tx| work::list_parked(tx, Some("instance"), 10));
    assert_eq!(parked.len(), 1);
    assert_eq!((parked[0].key.as_str(), parked[0].last_error.as_deref()), ("k", Some("no such host")));
    assert!(in_tx!(time.store, |tx| work::list_parked(tx, Some("other"), 10)).is_empty());
    let outlook = in_tx!(time.store, |tx| work::outlook(tx, QUEUE));
    assert_eq!(outlook, Outlook { due_in: None, parked: 1 });

    let id = parked[0].work_id;
    assert!(in_tx!(time.store, |tx| work::requeue(tx, id)));
    assert!(!in_tx!(time.store, |tx| work::requeue(tx, id)));
    let item = claim_one(&time.store).await;
    assert_eq!(item.attempts, 0);
    assert_eq!(complete(&time.store, &item).await, Completion::Done);
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_and_the_slow_worker_completes_nothing() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    wake(&time.store, "k").await;
    let slow = claim_one(&time.store).await;
    time.advance(LEASE / 2);
    let slow_ref = &slow;
    assert!(in_tx!(time.store, |tx| work::extend(tx, slow_ref, LEASE)));
    time.advance(LEASE / 2);
    assert!(claim(&time.store, 10).await.is_empty(), "it was extended");
    time.advance(LEASE / 2);
    let taken = claim_one(&time.store).await;
    assert_eq!(taken.attempts, 1);
    assert_eq!(complete(&time.store, &slow).await, Completion::Lost);
    assert_eq!(fail(&time.store, &slow).await, Failure::Lost);
    assert!(!in_tx!(time.store, |tx| work::extend(tx, slow_ref, LEASE)));
    assert_eq!(complete(&time.store, &taken).await, Completion::Done);
}

#[tokio::test]
async fn a_key_that_kills_its_worker_every_time_is_parked() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    wake(&time.store, "poison").await;
    for _ in 0..3 {
        claim_one(&time.store).await;
        time.advance(LEASE);
    }
    assert!(claim(&time.store, 10).await.is_empty());
    let parked = in_tx!(time.store, |tx| work::list_parked(tx, None, 10));
    assert_eq!(parked[0].last_error.as_deref(), Some("the claim of worker worker-1 lapsed"));
}

#[tokio::test]
async fn a_rescheduled_key_runs_when_due_or_when_woken() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    wake(&time.store, "k").await;
    let item = claim_one(&time.store).await;
    let item_ref = &item;
    in_tx!(time.store, |tx| work::reschedule(tx, item_ref, Duration::from_secs(60)));
    assert!(claim(&time.store, 10).await.is_empty());
    time.advance(Duration::from_secs(60));
    let item = claim_one(&time.store).await;
    wake(&time.store, "k").await;
    let item_ref = &item;
    in_tx!(time.store, |tx| work::reschedule(tx, item_ref, Duration::from_secs(60)));
    claim_one(&time.store).await;
}

#[tokio::test]
async fn whatever_is_written_before_a_wake_up_is_seen_by_some_later_pass() {
    let db = db().await;
    db.batch("CREATE TABLE intent (key text PRIMARY KEY, wanted int, seen int)").await;
    db.batch("INSERT INTO intent SELECT 'k' || n, 0, 0 FROM generate_series(0, 59) AS n").await;
    let want = &sql("want", "UPDATE intent SET wanted = wanted + 1 WHERE key = $1");
    let look = &sql("look", "SELECT wanted FROM intent WHERE key = $1");
    let see = &sql("see", "UPDATE intent SET seen = $2 WHERE key = $1");
    let writer = async || {
        for n in 0..60 {
            let key = &format!("k{n}");
            db.store
                .tx(crate::OP, |tx| {
                    Box::pin(async move {
                        tx.execute(want, &[key]).await?;
                        work::enqueue(tx, QUEUE, key, Duration::ZERO).await
                    })
                })
                .await
                .unwrap();
        }
    };
    // Looks first, records later: a wake-up in between must bring it back.
    let pass = async || {
        for item in claim(&db.store, 2).await {
            let wanted: i32 = db.store.read_one(look, &[&item.key]).await.unwrap().get("wanted");
            tokio::task::yield_now().await;
            let item = &item;
            in_tx!(db.store, |tx| async move {
                tx.execute(see, &[&item.key, &wanted]).await?;
                work::complete(tx, item).await
            });
        }
    };
    let worker = async || {
        for _ in 0..40 {
            pass().await;
        }
    };
    tokio::join!(writer(), writer(), worker(), worker());
    let left = "SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM work_wake_keys)";
    testkit::eventually(Duration::from_secs(20), || async {
        pass().await;
        match db.scalar_i64(left).await {
            0 => Ok(()),
            keys => Err(format!("{keys} keys left")),
        }
    })
    .await;
    assert_eq!(db.scalar_i64("SELECT sum(seen) FROM intent").await, 120);
}

#[tokio::test]
async fn claiming_from_a_long_queue_reads_an_index_and_not_the_table() {
    let db = db().await;
    db.batch(
        "INSERT INTO work (queue, key, run_at, attempts_max)
           SELECT 'q' || n % 20, n::text, compute_now(), 3 FROM generate_series(1, 20000) AS n;
         ANALYZE work",
    )
    .await;
    let claim = store::statements().into_iter().find(|statement| statement.name == "work_claim").unwrap();
    let plan = db.explain(&claim, &["'q1'", "10", "'w'", "1000"]).await;
    assert!(plan.contains("work_ready_idx"), "{plan}");
    assert!(!plan.contains("Seq Scan on work"), "{plan}");
}
