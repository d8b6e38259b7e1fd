//! Runs tasks one at a time, by the seed. A task that waits for the database is waited for: nothing else runs and time stands
//! still until it goes on, so that a run follows from its seed alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::bail;
use futures::future::BoxFuture;
use futures::task::ArcWake;

use super::time::Core;

/// What dies, stops and starts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A statement that takes longer than this in real time hangs.
const STALLED: Duration = Duration::from_secs(60);

pub(super) struct Task {
    process: ProcessId,
    name: &'static str,
    future: BoxFuture<'static, ()>,
}

impl Task {
    pub(super) fn new(process: ProcessId, name: &'static str, future: BoxFuture<'static, ()>) -> Self {
        Self { process, name, future }
    }
}

struct TaskWaker {
    core: Arc<Core>,
    id: u64,
    queued: AtomicBool,
}

impl ArcWake for TaskWaker {
    fn wake_by_ref(waker: &Arc<Self>) {
        if waker.core.hears(waker.id) && !waker.queued.swap(true, Ordering::Relaxed) {
            waker.core.wake(waker.id);
        }
    }
}

struct Running {
    task: Task,
    waker: Arc<TaskWaker>,
}

/// The tasks of all processes.
pub struct Executor {
    core: Arc<Core>,
    tasks: BTreeMap<u64, Running>,
    next: u64,
    /// Stopped as by SIGSTOP: what is woken meanwhile runs when they go on.
    paused: BTreeMap<ProcessId, Vec<u64>>,
    pub polls: u64,
}

impl Executor {
    pub fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), tasks: BTreeMap::new(), next: 0, paused: BTreeMap::new(), polls: 0 }
    }

    fn admit(&mut self) {
        for task in self.core.take_spawned() {
            self.next += 1;
            let waker =
                Arc::new(TaskWaker { core: self.core.clone(), id: self.next, queued: AtomicBool::new(true) });
            self.tasks.insert(self.next, Running { task, waker });
            self.core.wake(self.next);
        }
    }

    /// Runs what can run now: all of it, or until processes died, which it gives, or a connection broke.
    pub async fn run_ready(&mut self) -> anyhow::Result<BTreeSet<ProcessId>> {
        loop {
            self.admit();
            let killed = self.bury();
            if !killed.is_empty() || self.core.has_broken() {
                return Ok(killed);
            }
            let Some(id) = self.core.take_ready() else { return Ok(killed) };
            self.step(id).await?;
        }
    }

    async fn step(&mut self, id: u64) -> anyhow::Result<()> {
        let Some(running) = self.tasks.get_mut(&id) else { return Ok(()) };
        if let Some(waiting) = self.paused.get_mut(&running.task.process) {
            waiting.push(id);
            return Ok(());
        }
        let waker = futures::task::waker(running.waker.clone());
        loop {
            running.waker.queued.store(false, Ordering::Relaxed);
            self.polls += 1;
            tracing::trace!(at = self.core.now().micros(), id, task = running.task.name, "step");
            let polled = running.task.future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(()) = polled {
                self.tasks.remove(&id);
                self.core.unready(id);
                return Ok(());
            }
            if self.core.io() == 0 || self.core.has_killed(running.task.process) {
                return Ok(());
            }
            // Wakers of the database's answers ring this; nothing else can.
            self.core.hears_only(id);
            while !running.waker.queued.load(Ordering::Relaxed) {
                if tokio::time::timeout(STALLED, self.core.woken.notified()).await.is_err() {
                    bail!("the task {:?} waits for the database for ever", running.task.name);
                }
            }
            self.core.hears_only(0);
            self.core.unready(id);
        }
    }

    fn bury(&mut self) -> BTreeSet<ProcessId> {
        let killed = self.core.take_killed();
        for process in &killed {
            self.drop_process(*process);
        }
        killed
    }

    fn drop_process(&mut self, process: ProcessId) {
        self.paused.remove(&process);
        let dead: Vec<u64> =
            self.tasks.iter().filter(|(_, one)| one.task.process == process).map(|(id, _)| *id).collect();
        for id in dead {
            // Dropped outside of the map, since what it holds may wake others.
            let dropped = self.tasks.remove(&id);
            drop(dropped);
            self.core.unready(id);
        }
    }

    pub fn pause(&mut self, process: ProcessId) {
        self.paused.entry(process).or_default();
    }

    pub fn resume(&mut self, process: ProcessId) {
        for id in self.paused.remove(&process).unwrap_or_default() {
            self.core.wake(id);
        }
    }

    pub fn is_paused(&self, process: ProcessId) -> bool {
        self.paused.contains_key(&process)
    }
}
