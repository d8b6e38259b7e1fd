//! Commits that wait while another is written go into the next one together: an fsync costs the same however much it is
//! for.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::journal::{JournalError, Write};

/// Writes of one fsync, about. Under it a commit that waits joins the one before it; the transaction stays small enough
/// to be held in memory, and nobody waits for more than about two of them.
const WRITES_MAX: usize = 4096;

type Reply = oneshot::Sender<Result<(), JournalError>>;
pub(super) type Answer = oneshot::Receiver<Result<(), JournalError>>;

struct Waiting {
    writes: Vec<Write>,
    reply: Reply,
}

/// The commits that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Queue(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Vec<Waiting>,
    /// Somebody takes from the queue until it is empty.
    served: bool,
}

impl Queue {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Adds a commit. Where nobody serves the queue, the caller has to.
    pub fn add(self: &Arc<Self>, writes: Vec<Write>) -> (Answer, Option<Service>) {
        let (reply, answer) = oneshot::channel();
        let mut inner = self.inner();
        inner.waiting.push(Waiting { writes, reply });
        let served = std::mem::replace(&mut inner.served, true);
        (answer, (!served).then(|| Service { queue: self.clone(), done: false }))
    }

    /// Some of what waits, the oldest first; none ends the service.
    fn take(&self) -> Vec<Waiting> {
        let mut inner = self.inner();
        let mut writes = 0;
        let mut fits = |waiting: &Waiting| {
            writes += waiting.writes.len();
            writes <= WRITES_MAX
        };
        // One goes, however large.
        let count = inner.waiting.iter().take_while(|waiting| fits(waiting)).count().max(1);
        let count = count.min(inner.waiting.len());
        inner.served = count > 0;
        inner.waiting.drain(..count).collect()
    }
}

/// The duty to write until nothing waits. Dropped before that, by a panic or with a runtime that stops, it leaves nobody
/// waiting: their replies are dropped, which is an error to them.
pub(super) struct Service {
    queue: Arc<Queue>,
    /// The queue was empty, and somebody else may have begun to serve it since.
    done: bool,
}

impl Service {
    /// Blocks for as many fsyncs as it takes.
    pub fn run(mut self, write: impl Fn(Vec<Write>) -> Result<(), JournalError>) {
        loop {
            let group = self.queue.take();
            match &group[..] {
                [] => {
                    self.done = true;
                    return;
                }
                [_] => group.into_iter().for_each(|waiting| waiting.answer(&write)),
                [_, _, ..] => {
                    let all: Vec<Write> = group.iter().flat_map(|waiting| waiting.writes.clone()).collect();
                    match write(all) {
                        Ok(()) => group.into_iter().for_each(|waiting| {
                            let _ = waiting.reply.send(Ok(()));
                        }),
                        // One of them may be what cannot be written: each hears of its own.
                        Err(_) => group.into_iter().for_each(|waiting| waiting.answer(&write)),
                    }
                }
            }
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.done {
            let mut inner = self.queue.inner();
            inner.waiting.clear();
            inner.served = false;
        }
    }
}

impl Waiting {
    fn answer(self, write: impl Fn(Vec<Write>) -> Result<(), JournalError>) {
        // Nobody listens any more when the caller was dropped; the commit counts all the same.
        let _ = self.reply.send(write(self.writes));
    }
}
