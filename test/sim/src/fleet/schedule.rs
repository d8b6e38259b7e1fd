//! One process's statements, as the simulator has them run: one transaction at a time, with faults where they were armed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, pending, ready};
use kit::Clock;
use store::schedule::{At, Fate, Schedule, Turn};
use tokio::sync::OwnedSemaphorePermit;

use super::event::Event;
use super::exec::ProcessId;
use super::time::{Core, Held, SimClock};

/// From the wish for a transaction to its begin. It ends at the moment of its begin, since time stands still while it runs.
const LATENCY_MIN: Duration = Duration::from_millis(1);
const LATENCY_MAX: Duration = Duration::from_millis(12);

/// What happens to a process at one of its statements to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// It dies before a statement.
    DieAtStatement,
    /// It dies when everything is written and COMMIT is not sent.
    DieAtCommit,
    /// It dies when COMMIT has happened and nobody has heard of it.
    DieAfterCommit,
    /// Its connection breaks before COMMIT arrives.
    LoseCommit,
    /// Its connection breaks before the answer to COMMIT.
    LoseAnswer,
}

impl Trap {
    pub const ALL: [Trap; 5] =
        [Trap::DieAtStatement, Trap::DieAtCommit, Trap::DieAfterCommit, Trap::LoseCommit, Trap::LoseAnswer];

    pub const fn name(self) -> &'static str {
        match self {
            Trap::DieAtStatement => "worker-dies-in-transaction",
            Trap::DieAtCommit => "worker-dies-before-commit",
            Trap::DieAfterCommit => "worker-dies-after-commit",
            Trap::LoseCommit => "commit-lost",
            Trap::LoseAnswer => "commit-unacknowledged",
        }
    }

    fn at(self) -> At {
        match self {
            Trap::DieAtStatement => At::Statement,
            Trap::DieAtCommit | Trap::DieAfterCommit | Trap::LoseCommit | Trap::LoseAnswer => At::Commit,
        }
    }
}

/// The database as everybody sees it.
#[derive(Default)]
pub struct Database {
    pub down: AtomicBool,
}

pub struct ProcessSchedule {
    core: Arc<Core>,
    clock: Arc<SimClock>,
    process: ProcessId,
    database: Arc<Database>,
    /// What to do, and how many such points are passed before.
    trap: Mutex<Option<(Trap, u32)>>,
    /// It dies as soon as the commit under way is done.
    dies: AtomicBool,
}

struct SimTurn {
    core: Arc<Core>,
    name: &'static str,
    began: Instant,
    _time: Held,
    _permit: OwnedSemaphorePermit,
}

impl Drop for SimTurn {
    fn drop(&mut self) {
        self.core.spent(self.name, self.began.elapsed());
    }
}

impl ProcessSchedule {
    pub fn new(core: &Arc<Core>, process: ProcessId, database: &Arc<Database>) -> Arc<Self> {
        Arc::new(Self {
            core: core.clone(),
            clock: SimClock::new(core),
            process,
            database: database.clone(),
            trap: Mutex::default(),
            dies: AtomicBool::new(false),
        })
    }

    /// Springs at the point after `passed` others of its kind.
    pub fn arm(&self, trap: Trap, passed: u32) {
        *self.trap.lock().expect("no holder of this lock panics") = Some((trap, passed));
    }

    fn sprung(&self, at: At) -> Option<Trap> {
        let mut armed = self.trap.lock().expect("no holder of this lock panics");
        let (trap, passed) = armed.as_mut()?;
        if trap.at() != at {
            return None;
        }
        if *passed > 0 {
            *passed -= 1;
            return None;
        }
        armed.take().map(|(trap, _)| trap)
    }

    fn die(&self) -> BoxFuture<'static, Fate> {
        self.core.kill(self.process);
        Box::pin(pending())
    }
}

impl Schedule for ProcessSchedule {
    fn enter<'a>(&'a self, name: &'static str) -> BoxFuture<'a, Option<Turn>> {
        Box::pin(async move {
            if self.database.down.load(Ordering::Relaxed) {
                return None;
            }
            // Meanwhile others run: what is asked in several transactions is not asked at one moment.
            self.clock.sleep(self.core.between(LATENCY_MIN, LATENCY_MAX)).await;
            if self.database.down.load(Ordering::Relaxed) {
                return None;
            }
            tracing::trace!(at = self.core.now().micros(), process = self.process.0, name, "transaction");
            // Held while it waits too: whoever is before it belongs to the same task.
            let time = self.core.hold_time();
            let permit = self.core.turns.clone().acquire_owned().await.ok()?;
            let turn = SimTurn {
                core: self.core.clone(),
                name,
                began: Instant::now(),
                _time: time,
                _permit: permit,
            };
            Some(Box::new(turn) as Turn)
        })
    }

    fn point<'a>(&'a self, at: At, name: &'static str) -> BoxFuture<'a, Fate> {
        tracing::trace!(process = self.process.0, name, "statement");
        match self.sprung(at) {
            None => Box::pin(ready(Fate::Goes)),
            Some(Trap::DieAtStatement | Trap::DieAtCommit) => self.die(),
            Some(Trap::DieAfterCommit) => {
                self.dies.store(true, Ordering::Relaxed);
                Box::pin(ready(Fate::Goes))
            }
            Some(Trap::LoseCommit) => {
                self.core.broke();
                Box::pin(ready(Fate::LostBefore))
            }
            Some(Trap::LoseAnswer) => {
                self.core.broke();
                Box::pin(ready(Fate::LostAfter))
            }
        }
    }

    fn committed<'a>(&'a self, notified: Vec<(&'static str, String)>) -> BoxFuture<'a, ()> {
        // PostgreSQL tells all of a transaction's notifications at once.
        for (channel, payload) in notified {
            self.core.post(self.core.up_to(Duration::from_millis(3)), Event::Notified(channel, payload));
        }
        if self.dies.swap(false, Ordering::Relaxed) {
            let dying = self.die();
            return Box::pin(async move {
                dying.await;
            });
        }
        Box::pin(ready(()))
    }

    fn pause(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}
