use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::run::run_passes;
use kernel::{BoxFuture, Fault, Pass, PassOutcome};
use testkit::{db, eventually};

use crate::world::{ACT, BOUND, OBSERVE, process};

/// Counts its runs, and notes in whose process they were.
struct Counting {
    name: &'static str,
    process: &'static str,
    acts: bool,
    singleton: bool,
    log: Arc<Mutex<Vec<&'static str>>>,
    /// So many runs in a row say that there is more.
    more: AtomicUsize,
}

impl Counting {
    fn new(name: &'static str, process: &'static str, log: &Arc<Mutex<Vec<&'static str>>>) -> Self {
        Self { name, process, acts: false, singleton: true, log: log.clone(), more: AtomicUsize::new(0) }
    }
}

impl Pass for Counting {
    fn name(&self) -> &'static str {
        self.name
    }

    fn period(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn singleton(&self) -> bool {
        self.singleton
    }

    fn acts(&self) -> bool {
        self.acts
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            self.log.lock().unwrap().push(self.process);
            let more = self.more.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            Ok(if more.is_ok() { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(BOUND, || {
        let held = holds();
        async move { if held { Ok(()) } else { Err(what) } }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_singleton_runs_in_one_process_and_moves_when_that_one_stops() {
    let db = db().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let (one, two) = (process("one", &db.store), process("two", &db.store));
    run_passes(&one, &[Arc::new(Counting::new("sweep", "one", &log))]);
    until("the first runs", || log.lock().unwrap().len() >= 3).await;
    run_passes(&two, &[Arc::new(Counting::new("sweep", "two", &log))]);
    until("the first goes on", || log.lock().unwrap().len() >= 20).await;
    assert!(!log.lock().unwrap().contains(&"two"), "only the holder runs it");
    assert!(one.supervisor.shutdown(BOUND).await);
    until("the second takes over", || log.lock().unwrap().contains(&"two")).await;
    let log = log.lock().unwrap();
    let first_of_two = log.iter().position(|process| *process == "two").unwrap();
    assert!(log[first_of_two..].iter().all(|process| *process == "two"), "and the first ran no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_of_every_process_needs_no_lease() {
    let db = db().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let (one, two) = (process("one", &db.store), process("two", &db.store));
    for (running, name) in [(&one, "one"), (&two, "two")] {
        let pass = Counting { singleton: false, ..Counting::new("each", name, &log) };
        run_passes(running, &[Arc::new(pass)]);
    }
    until("both run", || ["one", "two"].iter().all(|name| log.lock().unwrap().contains(name))).await;
    assert_eq!(db.scalar_i64("SELECT count(*) FROM leases WHERE name = 'pass:each'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_records_runs_while_the_deployment_observes() {
    let db = db().await;
    db.batch(OBSERVE).await;
    let (acting, recording) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let running = process("one", &db.store);
    let acts = Counting { acts: true, singleton: false, ..Counting::new("acts", "one", &acting) };
    run_passes(&running, &[Arc::new(acts), Arc::new(Counting::new("records", "one", &recording))]);
    until("the recorder runs", || recording.lock().unwrap().len() >= 10).await;
    assert!(acting.lock().unwrap().is_empty());
    db.batch(ACT).await;
    until("it acts again", || !acting.lock().unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_that_finds_more_runs_on_at_once() {
    let db = db().await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let running = process("one", &db.store);
    let pass = Counting { more: AtomicUsize::new(30), ..Counting::new("more", "one", &log) };
    run_passes(&running, &[Arc::new(pass)]);
    until("all of it is done", || log.lock().unwrap().len() >= 31).await;
}

/// Runs until it is dropped.
#[derive(Default)]
struct Endless {
    running: Arc<AtomicBool>,
}

struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Pass for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    fn period(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            self.running.store(true, Ordering::SeqCst);
            let _running = Running(self.running.clone());
            std::future::pending().await
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_whose_lease_was_lost_is_stopped() {
    let db = db().await;
    let pass = Arc::new(Endless::default());
    let shared: Arc<dyn Pass> = pass.clone();
    let running = process("one", &db.store);
    run_passes(&running, std::slice::from_ref(&shared));
    until("it runs", || pass.running.load(Ordering::SeqCst)).await;
    db.batch(
        "UPDATE leases SET holder = 'another', epoch = epoch + 1, expires_at = compute_now() + interval '1 hour'
         WHERE name = 'pass:endless'",
    )
    .await;
    until("it was stopped", || !pass.running.load(Ordering::SeqCst)).await;
}
