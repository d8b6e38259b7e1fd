use std::sync::Arc;
use std::time::Duration;

use kernel::Fault;
use kernel::run::Running;
use kit::{OsRng, Supervisor, SystemClock};
use store::{Op, Store};

pub const BOUND: Duration = Duration::from_secs(20);
const OP_WAKE: Op = Op::new("test_wake");

/// One process on the database.
pub fn process(name: &str, store: &Store) -> Running {
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(OsRng));
    Running::new(name, store.clone(), Supervisor::new(), clock, rng)
}

pub async fn wake(store: &Store, queue: &'static str, key: &str) {
    let woken: Result<(), Fault> = store
        .tx(OP_WAKE, |tx| Box::pin(async move { Ok(kernel::module::wake(tx, queue, key).await?) }))
        .await;
    woken.unwrap();
}

pub const OBSERVE: &str =
    "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()";
pub const ACT: &str =
    "UPDATE deployment SET observe_only = false, observe_reason = NULL, observe_since = NULL";
