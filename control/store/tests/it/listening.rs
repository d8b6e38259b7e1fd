use std::collections::BTreeSet;
use std::time::Duration;

use store::work::{self, Queue};
use store::{Listener, Notified, Store, StoreError, sql};
use testkit::db;

use crate::{OP, in_tx};

const BOUND: Duration = Duration::from_secs(20);
const CHANNELS: &[&str] = &["bc_work", "bc_events"];

async fn next(listener: &mut Listener) -> Notified {
    tokio::time::timeout(BOUND, listener.next()).await.expect("a notification within the bound")
}

async fn tell(store: &Store, times: u32) {
    store
        .tx(OP, |tx| {
            Box::pin(async move {
                for n in 0..times {
                    work::enqueue(tx, Queue::new("q", 1), &n.to_string(), Duration::ZERO).await?;
                }
                Ok::<_, StoreError>(())
            })
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn notifications_fold_and_a_reconnect_counts_as_one_of_every_channel() {
    let db = db().await;
    let mut listener = Listener::new(&db.store, CHANNELS);
    let first = next(&mut listener).await;
    assert!(first.reconnected);
    assert_eq!(first.channels, BTreeSet::from(["bc_work", "bc_events"]));

    tell(&db.store, 3).await;
    let told = next(&mut listener).await;
    assert_eq!((told.channels.clone(), told.reconnected), (BTreeSet::from(["bc_work"]), false));
    // A wake-up names its queue and no key: any may be due.
    assert_eq!(told.named("bc_work"), Some(&BTreeSet::from(["q".to_owned()])));
    let more = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
    assert!(more.is_err(), "one transaction tells once: {more:?}");

    let kill = sql(
        "kill",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'",
    );
    assert_eq!(db.store.read(&kill, &[]).await.unwrap().len(), 1);
    let again = next(&mut listener).await;
    assert!(again.reconnected);
    tell(&db.store, 1).await;
    assert!(!next(&mut listener).await.reconnected);
}

#[tokio::test]
async fn what_notifications_name_is_told_together() {
    let db = db().await;
    let mut listener = Listener::new(&db.store, CHANNELS);
    assert_eq!(
        next(&mut listener).await.named("bc_events"),
        None,
        "before the first anything may have changed"
    );
    for names in [["one", "two"], ["two", "three"]] {
        let tell = db.store.tx(OP, |tx| {
            Box::pin(async move {
                names.into_iter().for_each(|name| tx.notify("bc_events", name));
                Ok::<_, StoreError>(())
            })
        });
        tell.await.unwrap();
    }
    let mut named = BTreeSet::new();
    while named.len() < 3 {
        let told = next(&mut listener).await;
        named.extend(told.named("bc_events").expect("each names something").clone());
    }
    assert_eq!(named, BTreeSet::from(["one", "two", "three"].map(str::to_owned)));
}

#[tokio::test]
async fn a_rolled_back_transaction_tells_nobody() {
    let db = db().await;
    let mut listener = Listener::new(&db.store, CHANNELS);
    next(&mut listener).await;
    let undone: Result<(), StoreError> = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.notify("bc_events", "");
                Err(StoreError::decode("test", "changed its mind"))
            })
        })
        .await;
    undone.unwrap_err();
    in_tx!(db.store, |tx| async move {
        tx.notify("bc_work", "it's quoted");
        tx.now().await
    });
    assert_eq!(next(&mut listener).await.channels, BTreeSet::from(["bc_work"]));
}

#[tokio::test]
async fn a_transaction_tells_of_more_than_a_statement_has_columns_for() {
    let db = db().await;
    let mut listener = Listener::new(&db.store, CHANNELS);
    assert!(next(&mut listener).await.reconnected);
    let names: BTreeSet<String> = (0..2_000).map(|n| format!("it's {n}")).collect();
    let written = &names;
    in_tx!(db.store, |tx| async move {
        written.iter().for_each(|name| tx.notify("bc_events", name));
        Ok(())
    });
    let mut told = BTreeSet::new();
    while told.len() < names.len() {
        told.extend(next(&mut listener).await.named("bc_events").expect("names").iter().cloned());
    }
    assert_eq!(told, names);
}
