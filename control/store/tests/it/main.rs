//! Against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod embedded;
mod leases;
mod listening;
mod migrations;
mod outbox;
mod partitions;
mod restored;
mod taking;
mod tls;
mod transactions;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use model::Timestamp;
use store::{Op, Store, StoreConfig, StoreError};
use testkit::TestDb;

const OP: Op = Op::new("test_op");

/// A store whose `compute_now()` moves only when told.
struct Clocked {
    store: Store,
    millis: Arc<AtomicI64>,
}

impl Clocked {
    async fn open(db: &TestDb, start: &str) -> Self {
        let start: Timestamp = start.parse().unwrap();
        let millis = Arc::new(AtomicI64::new(start.millis()));
        let read = millis.clone();
        let clock = Arc::new(move || Timestamp::from_millis(read.load(Ordering::SeqCst)));
        let store = db.open(StoreConfig { virtual_clock: Some(clock), ..db.config() }).await;
        Self { store, millis }
    }

    fn advance(&self, by: Duration) {
        self.millis.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

/// One call in a transaction of its own.
macro_rules! in_tx {
    ($store:expr, |$tx:ident| $body:expr) => {
        $store
            .tx(crate::OP, |$tx| Box::pin(async move { $body.await }))
            .await
            .map_err(|err: StoreError| err)
            .unwrap()
    };
}
pub(crate) use in_tx;

#[tokio::test]
async fn every_statement_of_this_crate_prepares() {
    let db = testkit::db().await;
    db.prepare_all(&store::statements()).await;
    let mut names: Vec<&str> = store::statements().iter().map(|statement| statement.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), store::statements().len(), "every statement has its own name");
    in_tx!(db.store, |tx| tx.now());
}
