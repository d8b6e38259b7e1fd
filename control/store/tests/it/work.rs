use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use kit::{Rng, SeededRng};
use store::work::{self, Claimed, Completion, Failure, Floor, Outcome, Outlook, Queue};
use store::{Store, StoreError, sql};
use testkit::db;

use crate::{Clocked, in_tx};

const QUEUE: Queue = Queue::new("instance", 3);
const LEASE: Duration = Duration::from_secs(30);
const START: &str = "2026-03-01T00:00:00Z";

async fn enqueue(store: &Store, key: &str, delay: Duration) {
    in_tx!(store, |tx| work::enqueue(tx, QUEUE, key, delay))
}

async fn wake(store: &Store, key: &str) {
    enqueue(store, key, Duration::ZERO).await;
}

/// What is due, woken keys last, under a lease each.
async fn claim(store: &Store, batch: u32) -> Vec<Claimed> {
    in_tx!(store, |tx| async move {
        let mut items = work::claim(tx, QUEUE, "worker-1", batch, LEASE).await?;
        let taken = work::take(tx, QUEUE, &mut Floor::default(), batch, true).await?;
        items.extend(work::start(tx, QUEUE, &taken.keys, "worker-1", LEASE).await?);
        // What was folded into a row is due.
        items.extend(work::claim(tx, QUEUE, "worker-1", batch, LEASE).await?);
        Ok(items)
    })
}

async fn claim_one(store: &Store) -> Claimed {
    let mut items = claim(store, 10).await;
    assert_eq!(items.len(), 1, "{items:?}");
    items.remove(0)
}

async fn complete(store: &Store, item: &Claimed) -> Completion {
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
    let left = "SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM work_wakes)";
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

/// Takes woken keys in one transaction and does nothing about them.
async fn take(store: &Store, floor: &mut Floor, wakes: u32) -> Vec<String> {
    let at = *floor;
    let (keys, next) = in_tx!(store, |tx| async move {
        let mut floor = at;
        let taken = work::take(tx, QUEUE, &mut floor, wakes, true).await?;
        Ok((taken.keys, floor))
    });
    *floor = next;
    keys
}

#[tokio::test]
async fn what_is_taken_is_back_when_the_transaction_fails_and_gone_when_it_commits() {
    let db = db().await;
    for key in ["b", "a", "b"] {
        wake(&db.store, key).await;
    }
    let floor = &Mutex::new(Floor::default());
    let failed = db
        .store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                let mut at = *floor.lock().unwrap();
                let taken = work::take(tx, QUEUE, &mut at, 10, true).await?;
                *floor.lock().unwrap() = at;
                assert_eq!((taken.keys, taken.seen), (vec!["a".to_owned(), "b".to_owned()], 3));
                tx.execute(&sql("broken", "SELECT 1 / 0"), &[]).await
            })
        })
        .await;
    failed.unwrap_err();
    let mut floor = *floor.lock().unwrap();
    assert_eq!(take(&db.store, &mut floor, 10).await, ["a", "b"]);
    assert!(take(&db.store, &mut floor, 10).await.is_empty());
}

#[tokio::test]
async fn a_key_is_taken_by_one_at_a_time_and_others_are_free() {
    let db = db().await;
    wake(&db.store, "k").await;
    let store = &db.store;
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                work::take(tx, QUEUE, &mut Floor::default(), 10, true).await?;
                wake(store, "k").await;
                wake(store, "other").await;
                let held = in_tx!(store, |tx| async move {
                    let taken = work::take(tx, QUEUE, &mut Floor::default(), 10, true).await?;
                    assert_eq!(taken.keys, ["other"]);
                    Ok(taken.held)
                });
                assert_eq!(held, 1, "the key that runs has another wake-up, which is left");
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    assert_eq!(take(&db.store, &mut Floor::default(), 10).await, ["k"]);
}

#[tokio::test]
async fn a_wake_up_of_a_key_under_a_lease_is_folded_and_not_taken() {
    let db = db().await;
    wake(&db.store, "k").await;
    let item = claim_one(&db.store).await;
    wake(&db.store, "k").await;
    assert!(take(&db.store, &mut Floor::default(), 10).await.is_empty());
    assert_eq!(complete(&db.store, &item).await, Completion::Again);
    let item = claim_one(&db.store).await;
    assert_eq!(complete(&db.store, &item).await, Completion::Done);
}

#[tokio::test]
async fn many_keys_are_settled_at_once_each_by_its_own_end() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    let names = ["done", "again", "failed", "woken", "lost"];
    for key in names {
        wake(&time.store, key).await;
    }
    let items = claim(&time.store, 10).await;
    let item = |key: &str| items.iter().find(|item| item.key == key).unwrap().clone();
    wake(&time.store, "woken").await;
    assert!(take(&time.store, &mut Floor::default(), 10).await.is_empty());
    let lost = item("lost");
    assert_eq!(complete(&time.store, &lost).await, Completion::Done);
    let failure = Outcome::Failed("no\0such host".to_owned(), Duration::from_secs(5));
    let ended = [
        (item("done"), Outcome::Done),
        (item("again"), Outcome::Again(Duration::from_secs(60))),
        (item("failed"), failure),
        (item("woken"), Outcome::Done),
        (lost, Outcome::Done),
    ];
    let ended = ended.as_slice();
    let settled = in_tx!(time.store, |tx| work::settle(tx, ended));
    assert_eq!((settled.lost, settled.parked), (vec![4], vec![]));
    let due =
        async || -> Vec<String> { claim(&time.store, 10).await.into_iter().map(|item| item.key).collect() };
    assert_eq!(due().await, ["woken"]);
    time.advance(Duration::from_secs(5));
    assert_eq!(due().await, ["failed"]);
    assert_eq!(db.scalar_text("SELECT last_error FROM work WHERE key = 'failed'").await, "nosuch host");
}

#[tokio::test]
async fn an_old_snapshot_does_not_make_every_look_pass_what_was_taken() {
    let db = db().await;
    let store = &db.store;
    let visited =
        "SELECT coalesce(idx_tup_read, 0) FROM pg_stat_user_indexes WHERE indexrelname = 'work_wakes_idx'";
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                tx.execute(&sql("isolate", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), &[]).await?;
                tx.query(&sql("snapshot", "SELECT count(*) FROM work_wakes"), &[]).await?;
                let mut floor = Floor::default();
                for round in 0..40 {
                    let keys: Vec<String> = (0..50).map(|n| format!("{round}-{n}")).collect();
                    let keys = keys.as_slice();
                    in_tx!(store, |tx| work::enqueue_all(tx, QUEUE, keys));
                    assert_eq!(take(store, &mut floor, 200).await.len(), 50);
                }
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    let read = testkit::eventually(Duration::from_secs(20), || async {
        // Sessions hand their counts in when they rest.
        store.read(&sql("flush", "SELECT pg_stat_force_next_flush()"), &[]).await.unwrap();
        match db.scalar_i64(visited).await {
            0 => Err("nothing was counted yet"),
            read => Ok(read),
        }
    })
    .await;
    // Twice what is there and what was before it; from the front each time it would be some 80,000.
    assert!(read < 20_000, "{read} entries were read to take 2,000");
}

/// Every change is seen by a pass that begins after it, whatever the order in which takers, wakers and failures come.
#[tokio::test]
async fn no_wake_up_is_lost_between_takers_that_fail_and_wakers_that_tarry() {
    for seed in 1..=3 {
        let db = db().await;
        db.batch("CREATE TABLE intent (key text PRIMARY KEY, wanted int, seen int)").await;
        db.batch("INSERT INTO intent SELECT 'k' || n, 0, 0 FROM generate_series(0, 9) AS n").await;
        let wakers = async |n: u64| {
            let rng = SeededRng::new(seed * 100 + n);
            for _ in 0..60 {
                want_one(&db.store, &rng).await;
            }
        };
        let takers = async |n: u64| {
            let rng = SeededRng::new(seed * 100 + 50 + n);
            let mut floor = Floor::default();
            for _ in 0..60 {
                see_all(&db.store, &rng, &mut floor).await;
            }
        };
        tokio::join!(wakers(1), wakers(2), wakers(3), takers(1), takers(2), takers(3));
        let (rng, mut floor) = (SeededRng::new(seed), Floor::default());
        for _ in 0..20 {
            see_all(&db.store, &rng, &mut floor).await;
        }
        assert_eq!(db.scalar_i64("SELECT count(*) FROM work_wakes").await, 0, "seed {seed}");
        let behind = "SELECT count(*) FROM intent WHERE seen <> wanted";
        assert_eq!(db.scalar_i64(behind).await, 0, "seed {seed}");
        assert_eq!(db.scalar_i64("SELECT sum(seen) FROM intent").await, 180, "seed {seed}");
    }
}

/// Wants one more of some key, and wakes it; takes its time to commit.
async fn want_one(store: &Store, rng: &dyn Rng) {
    let (key, tarries) = (&format!("k{}", rng.below(10)), rng.below(4));
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                tx.execute(&sql("want", "UPDATE intent SET wanted = wanted + 1 WHERE key = $1"), &[key])
                    .await?;
                work::wake(tx, QUEUE, key.as_str());
                for _ in 0..tarries {
                    tx.now().await?;
                }
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
}

/// Takes some keys, looks at what is wanted of them, tarries, and records it; one in four fails at the end.
async fn see_all(store: &Store, rng: &dyn Rng, floor: &mut Floor) {
    let (at, wakes) = (*floor, u32::try_from(1 + rng.below(6)).unwrap());
    let (tarries, fails) = (rng.below(4), rng.below(4) == 0);
    let seen = store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                let mut floor = at;
                let keys = work::take(tx, QUEUE, &mut floor, wakes, true).await?.keys;
                let look = sql("look", "SELECT key, wanted FROM intent WHERE key = ANY($1)");
                let rows = tx.query(&look, &[&keys]).await?;
                for _ in 0..tarries {
                    tx.now().await?;
                }
                let see = sql("see", "UPDATE intent SET seen = $2 WHERE key = $1");
                for row in &rows {
                    tx.execute(&see, &[&row.get::<_, &str>("key"), &row.get::<_, i32>("wanted")]).await?;
                }
                if fails {
                    tx.execute(&sql("broken", "SELECT 1 / 0"), &[]).await?;
                }
                Ok::<_, StoreError>(floor)
            })
        })
        .await;
    if let Ok(next) = seen {
        *floor = next;
    }
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
