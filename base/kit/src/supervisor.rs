//! Tasks that have a name, an owner, and a rule for what their end means.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What it means when a task of this kind ends by error or panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEnd {
    /// It is logged; the rest goes on. For a connection or a request.
    Isolate,
    /// The program cannot do its work without it: everything stops.
    Fatal,
}

/// A named kind of task. Declared as a constant beside the code that spawns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskKind {
    pub name: &'static str,
    pub on_end: OnEnd,
}

impl TaskKind {
    pub const fn fatal(name: &'static str) -> Self {
        Self { name, on_end: OnEnd::Fatal }
    }

    pub const fn isolated(name: &'static str) -> Self {
        Self { name, on_end: OnEnd::Isolate }
    }
}

/// Ends or waits for one task.
#[derive(Debug)]
pub struct TaskHandle {
    join: JoinHandle<()>,
    cancel: CancellationToken,
}

impl TaskHandle {
    /// Asks the task to stop; it ends at its next look at its token.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Stops the task at its next await. For tasks that own nothing a caller waits on.
    pub fn abort(&self) {
        self.join.abort();
    }

    pub fn is_finished(&self) -> bool {
        self.join.is_finished()
    }

    /// Waits for the end; a panic was logged already.
    pub async fn finished(self) {
        let _ = self.join.await;
    }
}

#[derive(Debug, Default)]
struct Alive {
    /// How many of each kind run, for the log of a stop that hangs.
    by_name: BTreeMap<&'static str, usize>,
    fatal: Option<String>,
}

/// Spawns tasks and stops them together. Cheap to clone; clones share one set of tasks.
#[derive(Debug, Clone)]
pub struct Supervisor {
    cancel: CancellationToken,
    tracker: TaskTracker,
    alive: Arc<Mutex<Alive>>,
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

struct AliveGuard {
    name: &'static str,
    alive: Arc<Mutex<Alive>>,
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        let mut alive = self.alive.lock().expect("no holder of this lock panics");
        if let Some(count) = alive.by_name.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                alive.by_name.remove(self.name);
            }
        }
    }
}

impl Supervisor {
    pub fn new() -> Self {
        Self { cancel: CancellationToken::new(), tracker: TaskTracker::new(), alive: Arc::default() }
    }

    /// Cancelled when everything is to stop. Long loops select on it.
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Spawns a task. It gets a token that is cancelled with this supervisor or by its own handle.
    #[allow(clippy::disallowed_methods)] // The one place that may.
    pub fn spawn<F, Fut, E>(&self, kind: TaskKind, task: F) -> TaskHandle
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        let cancel = self.cancel.child_token();
        let future = task(cancel.clone());
        *self.alive.lock().expect("no holder of this lock panics").by_name.entry(kind.name).or_default() += 1;
        let guard = AliveGuard { name: kind.name, alive: self.alive.clone() };
        let inner = tokio::spawn(future);
        let stop_inner = inner.abort_handle();
        let supervisor = self.clone();
        let join = self.tracker.spawn(async move {
            // Aborting the outer task must not leave the inner one running unowned.
            let _abort_on_drop = AbortOnDrop(stop_inner);
            let _guard = guard;
            match inner.await {
                Ok(Ok(())) => {}
                Ok(Err(err)) => supervisor.ended_badly(kind, crate::chain(&err)),
                Err(join) if join.is_panic() => supervisor.ended_badly(kind, "it panicked".into()),
                Err(_) => {}
            }
        });
        TaskHandle { join, cancel }
    }

    fn ended_badly(&self, kind: TaskKind, err: String) {
        match kind.on_end {
            OnEnd::Isolate => tracing::warn!(task = kind.name, err, "task ended by an error"),
            OnEnd::Fatal => {
                tracing::error!(task = kind.name, err, "task ended by an error, stopping");
                let mut alive = self.alive.lock().expect("no holder of this lock panics");
                alive.fatal.get_or_insert(format!("{} failed: {err}", kind.name));
                self.cancel.cancel();
            }
        }
    }

    /// Why everything had to stop, when a fatal task ended.
    pub fn fatal(&self) -> Option<String> {
        self.alive.lock().expect("no holder of this lock panics").fatal.clone()
    }

    /// Names and counts of the tasks that run now.
    pub fn running(&self) -> Vec<(&'static str, usize)> {
        let alive = self.alive.lock().expect("no holder of this lock panics");
        alive.by_name.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Asks every task to stop and waits. After `patience` it logs who is still there and returns false.
    pub async fn shutdown(&self, patience: Duration) -> bool {
        self.cancel.cancel();
        self.tracker.close();
        if tokio::time::timeout(patience, self.tracker.wait()).await.is_ok() {
            return true;
        }
        for (task, count) in self.running() {
            tracing::warn!(task, count, "task did not stop in time");
        }
        false
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
