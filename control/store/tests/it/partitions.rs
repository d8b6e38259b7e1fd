use std::time::Duration;

use store::partition::{Changed, DEFAULTS, pass};
use testkit::{TestDb, db};

use crate::Clocked;

async fn partitions(db: &TestDb, table: &str) -> String {
    db.scalar_text(&format!(
        "SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
         WHERE inhparent = '{table}'::regclass AND relname NOT LIKE '%_y2025%' AND relname < '{table}_y2040'
           AND relname > '{table}_y2029'"
    ))
    .await
}

#[tokio::test]
async fn months_ahead_are_made_and_old_ones_dropped_by_their_own_retention() {
    let db = db().await;
    let time = Clocked::open(&db, "2030-01-31T23:59:59Z").await;
    pass(&time.store, &DEFAULTS).await.unwrap();
    assert_eq!(partitions(&db, "events").await, "events_y2030m01 events_y2030m02");
    assert_eq!(pass(&time.store, &DEFAULTS).await.unwrap(), Changed::default());

    // January ended on February 1st: it is past 90 days on May 2nd and no earlier.
    time.advance(Duration::from_secs(90 * 86_400));
    pass(&time.store, &DEFAULTS).await.unwrap();
    assert_eq!(
        partitions(&db, "events").await,
        "events_y2030m01 events_y2030m02 events_y2030m05 events_y2030m06"
    );
    time.advance(Duration::from_secs(1));
    assert_eq!(pass(&time.store, &DEFAULTS).await.unwrap(), Changed { made: 0, dropped: 1 });
    assert_eq!(partitions(&db, "events").await, "events_y2030m02 events_y2030m05 events_y2030m06");
    assert_eq!(partitions(&db, "audit").await, "audit_y2030m01 audit_y2030m02 audit_y2030m05 audit_y2030m06");
}

#[tokio::test]
async fn passes_at_once_do_not_trip_over_each_other() {
    let db = db().await;
    let time = Clocked::open(&db, "2030-06-01T00:00:00Z").await;
    let passes = (0..4).map(|_| pass(&time.store, &DEFAULTS));
    let changed = futures::future::try_join_all(passes).await.unwrap();
    assert_eq!(changed.iter().map(|changed| changed.made).sum::<i64>(), 4);
    assert_eq!(partitions(&db, "events").await, "events_y2030m06 events_y2030m07");
}
