use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::run::run_queues;
use kernel::{ApiError, BoxFuture, Fault, QueueHandler};
use testkit::{TestDb, db, eventually};
use tokio::sync::Notify;

use crate::world::{ACT, BOUND, OBSERVE, process, wake};

const QUEUE: &str = "test";

/// Notes what it handles. Keys say what it does about them.
#[derive(Default)]
struct Recorder {
    handled: Mutex<Vec<String>>,
    running: AtomicUsize,
    running_max: AtomicUsize,
    /// Lets a pass over `gate…` end.
    gate: Notify,
}

impl Recorder {
    fn times(&self, key: &str) -> usize {
        self.handled.lock().unwrap().iter().filter(|handled| *handled == key).count()
    }
}

impl QueueHandler for Recorder {
    fn queue(&self) -> &'static str {
        QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.running_max.fetch_max(running, Ordering::SeqCst);
            self.handled.lock().unwrap().push(key.to_owned());
            let done = match key {
                _ if key.starts_with("gate") => {
                    self.gate.notified().await;
                    Ok(None)
                }
                "fails-once" if self.times(key) == 1 => {
                    Err(ApiError::conflict("as the test wants it").into())
                }
                "panics-once" if self.times(key) == 1 => {
                    self.running.fetch_sub(1, Ordering::SeqCst);
                    panic!("as the test wants it")
                }
                "again-once" if self.times(key) == 1 => Ok(Some(Duration::from_millis(50))),
                _ => Ok(None),
            };
            self.running.fetch_sub(1, Ordering::SeqCst);
            done
        })
    }
}

async fn keys_left(db: &TestDb) -> i64 {
    db.scalar_i64("SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM work_wake_keys)").await
}

async fn until_empty(db: &TestDb) {
    eventually(BOUND, || async {
        match keys_left(db).await {
            0 => Ok(()),
            left => Err(format!("{left} keys left")),
        }
    })
    .await;
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(BOUND, || {
        let held = holds();
        async move { if held { Ok(()) } else { Err(what) } }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_that_is_woken_is_handled() {
    let db = db().await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    wake(&db.store, QUEUE, "before").await;
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 4);
    for n in 0..40 {
        wake(&db.store, QUEUE, &format!("k{n}")).await;
    }
    until_empty(&db).await;
    assert_eq!(recorder.times("before"), 1);
    assert!((0..40).all(|n| recorder.times(&format!("k{n}")) >= 1));
    assert!(recorder.running_max.load(Ordering::SeqCst) <= 4);
    assert!(running.supervisor.shutdown(BOUND).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_were_woken_together_are_each_handled_once_as_there_is_room() {
    let db = db().await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let woken = keys.as_slice();
    let op = store::Op::new("test_wake");
    db.store.tx(op, |tx| Box::pin(kernel::module::wake_all(tx, QUEUE, woken))).await.unwrap();
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 3);
    until_empty(&db).await;
    for key in &keys {
        assert_eq!(recorder.times(key), 1, "{key}");
    }
    assert!(recorder.running_max.load(Ordering::SeqCst) <= 3);
    assert!(running.supervisor.shutdown(BOUND).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_during_a_pass_means_another_pass() {
    let db = db().await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 1);
    wake(&db.store, QUEUE, "gate").await;
    until("the pass began", || recorder.times("gate") == 1).await;
    wake(&db.store, QUEUE, "gate").await;
    recorder.gate.notify_one();
    until("a second pass began", || recorder.times("gate") == 2).await;
    recorder.gate.notify_one();
    until_empty(&db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_a_panic_and_a_wish_for_later_come_back() {
    let db = db().await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 4);
    for key in ["fails-once", "panics-once", "again-once"] {
        wake(&db.store, QUEUE, key).await;
    }
    until("the failure is stored", || recorder.times("fails-once") == 1).await;
    let text = "SELECT coalesce(max(last_error), '') FROM work WHERE key = 'fails-once'";
    eventually(BOUND, || async {
        match db.scalar_text(text).await {
            stored if stored.contains("as the test wants it") => Ok(()),
            stored => Err(stored),
        }
    })
    .await;
    until_empty(&db).await;
    for key in ["fails-once", "panics-once", "again-once"] {
        assert_eq!(recorder.times(key), 2, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_observes_handles_nothing_until_it_may_act() {
    let db = db().await;
    db.batch(OBSERVE).await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 4);
    wake(&db.store, QUEUE, "k").await;
    // A second queue key whose claim was tried and refused shows in nothing; the key is still ready.
    let ready = "SELECT count(*) FROM work_wake_keys";
    assert_eq!(db.scalar_i64(ready).await, 1);
    assert_eq!(recorder.times("k"), 0, "it waits");
    db.batch(ACT).await;
    wake(&db.store, QUEUE, "k").await;
    until_empty(&db).await;
    // Twice when the first wake-up was taken before the second came.
    assert!(recorder.times("k") >= 1, "it was handled after");
}

/// Records what is so, and nothing else.
struct Quiet(Arc<Recorder>);

impl QueueHandler for Quiet {
    fn queue(&self) -> &'static str {
        self.0.queue()
    }

    fn acts(&self) -> bool {
        false
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        self.0.handle(key)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_does_not_act_goes_on_while_the_deployment_observes() {
    let db = db().await;
    db.batch(OBSERVE).await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = Arc::new(Quiet(recorder.clone()));
    let running = process("one", &db.store);
    run_queues(&running, std::slice::from_ref(&handler), 4);
    wake(&db.store, QUEUE, "k").await;
    until_empty(&db).await;
    assert_eq!(recorder.times("k"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_a_queue_and_a_key_runs_in_one_of_them() {
    let db = db().await;
    let recorder = Arc::new(Recorder::default());
    let handler: Arc<dyn QueueHandler> = recorder.clone();
    let (one, two) = (process("one", &db.store), process("two", &db.store));
    assert_ne!(one.holder(), two.holder());
    run_queues(&one, std::slice::from_ref(&handler), 4);
    run_queues(&two, std::slice::from_ref(&handler), 4);
    wake(&db.store, QUEUE, "gate").await;
    until("the pass began", || recorder.times("gate") == 1).await;
    for n in 0..20 {
        wake(&db.store, QUEUE, &format!("k{n}")).await;
    }
    until("the others are done", || (0..20).all(|n| recorder.times(&format!("k{n}")) >= 1)).await;
    assert_eq!(recorder.times("gate"), 1, "no other process took the key that runs");
    recorder.gate.notify_one();
    until_empty(&db).await;
}
