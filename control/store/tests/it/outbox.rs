use std::collections::BTreeSet;
use std::time::Duration;

use kit::Rng;
use model::{EventId, TenantId, Timestamp};
use serde_json::json;
use store::lease::acquire;
use store::outbox::{self, Event, EventFilter, EventRange, RELAY_LEASE, Relayed, StoredEvent};
use store::{Lease, Store, StoreError};
use testkit::db;
use tokio::sync::oneshot;

use crate::{Clocked, OP, in_tx};

fn event(subject: &str, tenant_id: Option<TenantId>) -> Event {
    let rng: &dyn Rng = &kit::OsRng;
    let id: EventId = rng.id(Timestamp::from_millis(1));
    Event { id, kind: "instance.started", subject: subject.to_owned(), tenant_id, data: json!({ "n": 1 }) }
}

async fn append(store: &Store, subject: &str, tenant_id: Option<TenantId>) {
    let written = &event(subject, tenant_id);
    in_tx!(store, |tx| outbox::append(tx, written.clone()));
}

async fn relay_lease(store: &Store, holder: &str) -> Lease {
    in_tx!(store, |tx| acquire(tx, RELAY_LEASE, holder, Duration::from_secs(30))).unwrap()
}

async fn all(store: &Store) -> Vec<StoredEvent> {
    outbox::events_after(store, 0, 1_000, &EventFilter::default()).await.unwrap()
}

#[tokio::test]
async fn commits_out_of_order_still_get_a_gapless_seq() {
    let db = db().await;
    let lease = relay_lease(&db.store, "relay").await;
    let (finish, wait) = oneshot::channel::<()>();
    let (begun, has_begun) = oneshot::channel::<()>();
    let slow_event = event("slow", None);
    let (slow_event, signals) = (&slow_event, &std::sync::Mutex::new(Some((begun, wait))));
    let slow = db.store.tx(OP, |tx| {
        Box::pin(async move {
            outbox::append(tx, slow_event.clone()).await?;
            let (begun, wait) = signals.lock().unwrap().take().unwrap();
            begun.send(()).unwrap();
            wait.await.unwrap();
            Ok::<_, StoreError>(())
        })
    });
    let fast = async {
        has_begun.await.unwrap();
        append(&db.store, "fast", None).await;
        append(&db.store, "fast too", None).await;
        assert_eq!(outbox::relay_pass(&db.store, &lease, 100).await.unwrap(), Relayed::Moved(2));
        let seen: Vec<(i64, String)> = all(&db.store).await.into_iter().map(|e| (e.seq, e.subject)).collect();
        assert_eq!(seen, [(1, "fast".to_owned()), (2, "fast too".to_owned())]);
        finish.send(()).unwrap();
    };
    let (slow, ()) = tokio::join!(slow, fast);
    slow.unwrap();
    assert_eq!(outbox::relay_pass(&db.store, &lease, 100).await.unwrap(), Relayed::Moved(1));
    let late = outbox::events_after(&db.store, 2, 10, &EventFilter::default()).await.unwrap();
    assert_eq!(late.iter().map(|e| (e.seq, e.subject.as_str())).collect::<Vec<_>>(), [(3, "slow")]);
}

#[tokio::test]
async fn writers_and_two_relays_at_once_leave_no_gap_and_no_double() {
    let db = db().await;
    let lease = relay_lease(&db.store, "relay").await;
    let writer = async |name: &str| {
        for n in 0..20 {
            append(&db.store, &format!("{name}-{n}"), None).await;
        }
    };
    let relay = async || {
        for _ in 0..20 {
            outbox::relay_pass(&db.store, &lease, 3).await.unwrap();
        }
    };
    tokio::join!(writer("a"), writer("b"), relay(), relay());
    while outbox::relay_pass(&db.store, &lease, 10).await.unwrap() != Relayed::Moved(0) {}
    let events = all(&db.store).await;
    assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert_eq!(events.iter().map(|e| &e.subject).collect::<BTreeSet<_>>().len(), 40);
    assert_eq!(outbox::events_range(&db.store).await.unwrap(), EventRange { first: Some(1), head: 40 });
}

#[tokio::test]
async fn a_relay_that_moved_full_rows_moves_as_many_events_of_rows_of_one() {
    let db = db().await;
    let lease = relay_lease(&db.store, "relay").await;
    let full: &Vec<Event> = &(0..64).map(|n| event(&format!("full-{n:02}"), None)).collect();
    in_tx!(db.store, |tx| async move {
        for event in full {
            outbox::append(tx, event.clone()).await?;
        }
        Ok(())
    });
    for n in 0..150 {
        append(&db.store, &format!("one-{n:03}"), None).await;
    }
    let mut relay = outbox::Relay::default();
    let mut moved = Vec::new();
    while let Relayed::Moved(events @ 1..) = relay.pass(&db.store, &lease, 64).await.unwrap() {
        moved.push(events);
    }
    assert_eq!(moved, [64, 64, 64, 22]);
    let events = all(&db.store).await;
    assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), (1..=214).collect::<Vec<_>>());
    assert!(
        events[64..].iter().map(|e| e.subject.as_str()).is_sorted(),
        "in the order in which they were told"
    );
}

#[tokio::test]
async fn the_events_of_one_transaction_keep_their_order_over_rows_and_passes() {
    let db = db().await;
    let lease = relay_lease(&db.store, "relay").await;
    append(&db.store, "before", None).await;
    let written: &Vec<Event> = &(0..40).map(|n| event(&format!("of-40-{n:02}"), None)).collect();
    in_tx!(db.store, |tx| async move {
        for event in written {
            outbox::append(tx, event.clone()).await?;
        }
        Ok(())
    });
    append(&db.store, "after", None).await;
    assert_eq!(db.scalar_i64("SELECT count(*) FROM outbox_batches").await, 5, "40 events are three rows");
    let mut moved = Vec::new();
    while let Relayed::Moved(events @ 1..) = outbox::relay_pass(&db.store, &lease, 4).await.unwrap() {
        moved.push(events);
    }
    assert_eq!(moved, [17, 16, 8, 1], "whole rows, until there are enough");
    let events = all(&db.store).await;
    assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), (1..=42).collect::<Vec<_>>());
    let wanted: Vec<_> = written.iter().map(|e| (e.id, e.subject.as_str(), &e.data)).collect();
    assert_eq!(events[1..41].iter().map(|e| (e.id, e.subject.as_str(), &e.data)).collect::<Vec<_>>(), wanted);
    assert_eq!((events[0].subject.as_str(), events[41].subject.as_str()), ("before", "after"));
}

#[tokio::test]
async fn a_relay_that_lost_its_lease_moves_nothing() {
    let db = db().await;
    let time = Clocked::open(&db, "2026-03-01T00:00:00Z").await;
    let stale = relay_lease(&time.store, "one").await;
    append(&time.store, "x", None).await;
    time.advance(Duration::from_secs(30));
    let current = relay_lease(&time.store, "two").await;
    assert_eq!(outbox::relay_pass(&time.store, &stale, 10).await.unwrap(), Relayed::NotHolder);
    assert_eq!(outbox::relay_pass(&time.store, &current, 10).await.unwrap(), Relayed::Moved(1));
}

#[tokio::test]
async fn an_event_rolls_back_with_its_change() {
    let db = db().await;
    let written = &event("x", None);
    let done: Result<(), StoreError> = db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                outbox::append(tx, written.clone()).await?;
                Err(StoreError::decode("test", "changed its mind"))
            })
        })
        .await;
    done.unwrap_err();
    assert_eq!(db.scalar_i64("SELECT count(*) FROM outbox_events").await, 0);
}

#[tokio::test]
async fn a_tenant_reads_its_own_events_only_and_months_without_a_partition_get_one() {
    let db = db().await;
    let time = Clocked::open(&db, "2031-07-15T00:00:00Z").await;
    let rng: &dyn Rng = &kit::OsRng;
    let (mine, other): (TenantId, TenantId) =
        (rng.id(Timestamp::from_millis(1)), rng.id(Timestamp::from_millis(1)));
    let lease = relay_lease(&time.store, "relay").await;
    for (subject, tenant) in [("a", Some(mine)), ("b", Some(other)), ("c", None), ("d", Some(mine))] {
        append(&time.store, subject, tenant).await;
    }
    assert_eq!(outbox::relay_pass(&time.store, &lease, 10).await.unwrap(), Relayed::Moved(4));
    let read = async |filter: EventFilter| {
        let events = outbox::events_after(&time.store, 0, 10, &filter).await.unwrap();
        events.into_iter().map(|e| e.subject).collect::<Vec<_>>()
    };
    assert_eq!(read(EventFilter { tenant_id: Some(mine), ..EventFilter::default() }).await, ["a", "d"]);
    assert_eq!(read(EventFilter { subject: Some("b".to_owned()), ..EventFilter::default() }).await, ["b"]);
    assert!(
        read(EventFilter { kinds: Some(vec!["other".to_owned()]), ..EventFilter::default() })
            .await
            .is_empty()
    );
    assert_eq!(read(EventFilter::default()).await, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_relay_finds_its_rows_by_their_key_in_a_table_that_was_empty_when_it_was_planned() {
    let db = db().await;
    db.batch("ANALYZE outbox_batches").await;
    let named = |name: &str| store::statements().into_iter().find(|sql| sql.name == name).unwrap();
    let (by_key, relay) = (&named("outbox_by_key"), named("outbox_move"));
    let leak = |text: String| store::sql("plan", Box::leak(text.into_boxed_str()));
    let prepare = &leak(format!("PREPARE planned AS {}", relay.text));
    let explain = &leak("EXPLAIN EXECUTE planned (NULL, NULL, NULL, NULL, NULL, NULL, NULL)".to_owned());
    let plan: String = in_tx!(db.store, |tx| async {
        tx.query(by_key, &[]).await?;
        tx.execute(prepare, &[]).await?;
        let rows = tx.query(explain, &[]).await?;
        Ok::<_, StoreError>(rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect())
    });
    assert!(plan.contains("Index Scan using outbox_batches_pkey"), "{plan}");
    assert!(!plan.contains("Seq Scan on outbox_batches"), "{plan}");
}
