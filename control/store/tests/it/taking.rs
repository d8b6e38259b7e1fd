//! Taking woken keys: in a transaction of their own, and many at once.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use kit::{Rng, SeededRng};
use store::work::{self, Completion, Floor, Outcome};
use store::{Store, StoreError, sql};
use testkit::db;

use crate::work::{QUEUE, START, claim, claim_one, complete, wake};
use crate::{Clocked, in_tx};

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
async fn keys_woken_together_are_taken_together_and_a_taker_has_few_more_than_it_wanted() {
    let db = db().await;
    let keys: Vec<String> = (0..70).map(|n| format!("k{n:02}")).collect();
    let woken = keys.as_slice();
    in_tx!(db.store, |tx| work::enqueue_all(tx, QUEUE, woken));
    assert_eq!(db.scalar_i64("SELECT count(*) FROM work_wake_batches").await, 3);
    let mut floor = Floor::default();
    assert_eq!(take(&db.store, &mut floor, 1).await, keys[..32]);
    assert_eq!(take(&db.store, &mut floor, 33).await, keys[32..]);
    assert!(take(&db.store, &mut floor, 1).await.is_empty());
}

#[tokio::test]
async fn of_keys_woken_together_those_that_others_have_are_left_and_the_rest_is_taken() {
    let db = db().await;
    wake(&db.store, "b").await;
    let store = &db.store;
    let together = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
    let together = together.as_slice();
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                work::take(tx, QUEUE, &mut Floor::default(), 10, true).await?;
                for _ in 0..2 {
                    in_tx!(store, |tx| work::enqueue_all(tx, QUEUE, together));
                }
                let mut floor = Floor::default();
                let looks = [(6, 2, vec!["a", "c"]), (2, 2, vec![])];
                for (seen, held, keys) in looks {
                    let at = floor;
                    let (taken, next) = in_tx!(store, |tx| async move {
                        let mut floor = at;
                        Ok((work::take(tx, QUEUE, &mut floor, 10, true).await?, floor))
                    });
                    floor = next;
                    assert_eq!(
                        (taken.seen, taken.held, taken.keys),
                        (seen, held, keys.iter().map(ToString::to_string).collect())
                    );
                }
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
    assert_eq!(take(&db.store, &mut Floor::default(), 10).await, ["b"], "it was woken again meanwhile");
    assert_eq!(db.scalar_i64("SELECT count(*) FROM work_wake_batches").await, 0);
}

#[tokio::test]
async fn what_is_put_back_is_taken_again_and_nobody_is_told() {
    let db = db().await;
    wake(&db.store, "k").await;
    in_tx!(db.store, |tx| async move {
        let taken = work::take(tx, QUEUE, &mut Floor::default(), 10, true).await?;
        work::put_back(tx, QUEUE, taken.keys);
        Ok(())
    });
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
    let visited = "SELECT coalesce(idx_tup_read, 0) FROM pg_stat_user_indexes WHERE indexrelname = 'work_wake_batches_idx'";
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                tx.execute(&sql("isolate", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), &[]).await?;
                tx.query(&sql("snapshot", "SELECT count(*) FROM work_wake_batches"), &[]).await?;
                let mut floor = Floor::default();
                for round in 0..40 {
                    for n in 0..10 {
                        wake(store, &format!("{round}-{n}")).await;
                    }
                    assert_eq!(take(store, &mut floor, 200).await.len(), 10);
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
    // Twice what is there and what was before it; from the front each time it would be some 16,000.
    assert!(read < 5_000, "{read} entries were read to take 400");
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
                want_some(&db.store, &rng).await;
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
        for _ in 0..200 {
            see_all(&db.store, &rng, &mut floor).await;
        }
        assert_eq!(db.scalar_i64("SELECT count(*) FROM work_wake_keys").await, 0, "seed {seed}");
        let behind = "SELECT count(*) FROM intent WHERE seen <> wanted";
        assert_eq!(db.scalar_i64(behind).await, 0, "seed {seed}");
        assert!(db.scalar_i64("SELECT sum(seen) FROM intent").await > 180, "seed {seed}");
    }
}

/// Wants one more of some keys, and wakes them; takes its time to commit.
async fn want_some(store: &Store, rng: &dyn Rng) {
    // In their order, so that two of these wait for each other in it.
    let keys: BTreeSet<String> = (0..1 + rng.below(4)).map(|_| format!("k{}", rng.below(10))).collect();
    let (keys, tarries) = (&keys, rng.below(4));
    store
        .tx(crate::OP, |tx| {
            Box::pin(async move {
                for key in keys {
                    tx.execute(&sql("want", "UPDATE intent SET wanted = wanted + 1 WHERE key = $1"), &[key])
                        .await?;
                    work::wake(tx, QUEUE, key.as_str());
                }
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
