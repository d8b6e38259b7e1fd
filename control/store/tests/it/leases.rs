use std::time::Duration;

use store::lease::{self, acquire, guard, release, renew};
use store::{Lease, Sql, Store, StoreError, lease_guard, sql};
use testkit::db;

use crate::{Clocked, OP, in_tx};

const TTL: Duration = Duration::from_secs(10);
const START: &str = "2026-03-01T00:00:00Z";
const WRITE: Sql =
    sql("fenced_write", concat!("UPDATE deployment SET fence = fence + 1 WHERE ", lease_guard!(1, 2, 3)));

async fn take(store: &Store, holder: &str) -> Option<Lease> {
    in_tx!(store, |tx| acquire(tx, "shard", holder, TTL))
}

async fn fenced_write(store: &Store, lease: &Lease) -> u64 {
    store.execute(&WRITE, &[&lease.name, &lease.holder, &lease.epoch]).await.unwrap()
}

#[tokio::test]
async fn a_stale_holder_writes_nothing() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    let old = take(&time.store, "one").await.unwrap();
    assert_eq!(old.epoch, 1);
    assert_eq!(fenced_write(&time.store, &old).await, 1);
    assert!(take(&time.store, "two").await.is_none());

    time.advance(TTL);
    assert_eq!(fenced_write(&time.store, &old).await, 0, "expired, though nobody took it yet");
    let new = take(&time.store, "two").await.unwrap();
    assert_eq!(new.epoch, 2);
    assert_eq!(fenced_write(&time.store, &old).await, 0);
    assert_eq!(fenced_write(&time.store, &new).await, 1);
    let old_ref = &old;
    assert!(!in_tx!(time.store, |tx| guard(tx, old_ref)));
    assert!(!in_tx!(time.store, |tx| release(tx, old_ref)));
    let mut renewed = old.clone();
    assert!(
        !time
            .store
            .tx(OP, |tx| {
                let mut lease = renewed.clone();
                Box::pin(async move { renew(tx, &mut lease, TTL).await })
            })
            .await
            .unwrap()
    );
    renewed.epoch = new.epoch;
    assert_eq!(fenced_write(&time.store, &renewed).await, 0, "the holder counts, not the epoch alone");
}

#[tokio::test]
async fn who_asks_whose_a_lease_is_writes_nothing() {
    const ROW: Sql =
        sql("lease_row", "SELECT l.xmin::text || l.xmax::text || l.ctid::text AS row FROM leases l");
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    let taken = async |holder: &str| lease::taken(&time.store, "shard", holder).await.unwrap();
    assert_eq!(taken("two").await, None, "nobody has had it yet");
    take(&time.store, "one").await.unwrap();
    let row = async || time.store.read_one(&ROW, &[]).await.unwrap().get::<_, String>("row");
    let before = row().await;
    assert_eq!(taken("two").await, Some(TTL));
    assert_eq!(taken("one").await, None, "it is its own");
    time.advance(TTL / 2);
    assert_eq!(taken("two").await, Some(TTL / 2));
    time.advance(TTL / 2);
    assert_eq!(taken("two").await, None, "it has lapsed");
    assert_eq!(row().await, before);
    take(&time.store, "two").await.unwrap();
    assert_eq!(taken("one").await, Some(TTL));
}

#[tokio::test]
async fn the_holder_keeps_its_epoch_and_the_next_one_gets_another() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    let first = take(&time.store, "one").await.unwrap();
    time.advance(TTL / 2);
    let again = take(&time.store, "one").await.unwrap();
    assert_eq!((again.epoch, again.expires_at.since(first.expires_at)), (1, TTL / 2));
    let again = &again;
    assert!(in_tx!(time.store, |tx| release(tx, again)));
    assert_eq!(take(&time.store, "two").await.unwrap().epoch, 2);
}

#[tokio::test]
async fn a_lease_does_not_change_hands_under_a_guarded_transaction() {
    let db = db().await;
    let time = Clocked::open(&db, START).await;
    let lease = take(&time.store, "one").await.unwrap();
    let (lease, other) = (&lease, &time.store);
    let time_ref = &time;
    let rival = time
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                assert!(lease::guard(tx, lease).await?);
                time_ref.advance(TTL * 2);
                // The rival sees the lease expired and must wait for us all the same.
                let rival = tokio::time::timeout(Duration::from_millis(300), take(other, "two")).await;
                Ok::<_, StoreError>(rival.is_err())
            })
        })
        .await
        .unwrap();
    assert!(rival, "the rival had to wait");
    assert_eq!(take(other, "two").await.unwrap().epoch, 2);
}
