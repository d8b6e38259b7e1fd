//! Calls that come together are done together: what many callers ask for at once is one transaction, whose price is
//! mostly that of a transaction and of a statement.
//!
//! ```text
//! create ---+                                 +-> admitted and placed, one transaction -> each its answer
//! create ---+-> (while the one before runs) --+
//! create ---+                                 +-> one by one where somebody was faster
//! ```
//!
//! Whatever has come while a batch ran is the next; where many come, it begins a little later, with more. Releases wait for the
//! batch of creates that runs too, since a batch of them is soon done and those of a busy time would be of a few each. A process
//! that has not started this (see [`Capacity::start`]) does each call by itself, with the same outcome.

mod admit;
mod book;
mod read;
mod release;
mod reports;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kernel::BoxFuture;
use kernel::idempotency::Key;
use kernel::run::Running;
use kernel::{ApiError, Call, Fault};
use kit::{Clock, Pace, TaskKind};
use model::{ErrorCode, ReservationId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::Capacity;
use crate::state::{Reserved, Subject};
pub(crate) use read::Readers;
pub(crate) use release::Released;

const ADMIT: TaskKind = TaskKind::fatal("reservation_admit");
const RELEASE: TaskKind = TaskKind::fatal("reservation_release");

/// One transaction: large enough that its own price does not count, small enough that nobody waits long behind it.
pub(crate) const BATCH_MAX: usize = 128;
/// Creates of a crowd begin this far apart.
const ADMIT_PACE: Pace = Pace::new(8, Duration::from_millis(25));
/// How long releases wait for creates at most, so that creates that are stuck hold up none.
const GATHER_MAX: Duration = Duration::from_millis(50);
/// Calls that wait for a batch. A server runs fewer at once; more are refused.
const WAITING_MAX: usize = 4_096;

/// A decided create.
pub(crate) struct Creating {
    pub call: Arc<Call>,
    pub subject: Subject,
    pub name: Option<String>,
    pub key: Option<Key>,
}

/// What a create came to.
#[derive(Debug)]
pub(crate) enum Made {
    Mine {
        reserved: Box<Reserved>,
        /// Another process is to place it.
        handed: bool,
    },
    /// A call at the same time under the same key was first, and made this.
    Earlier(String),
}

pub(crate) struct Releasing {
    pub call: Arc<Call>,
    pub id: ReservationId,
}

/// What somebody waits for.
pub(crate) struct Asked<T, A> {
    pub what: T,
    pub reply: oneshot::Sender<Result<A, Fault>>,
}

type AskedCreate = Asked<Creating, Made>;
type AskedRelease = Asked<Releasing, Released>;

/// Ways to the tasks.
pub(crate) struct Batches {
    creates: mpsc::Sender<AskedCreate>,
    releases: mpsc::Sender<AskedRelease>,
}

/// Runs until it is told to stop.
pub type Loop = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), Infallible>> + Send>;

impl Capacity {
    /// Does what many callers ask for at once together from here on, and places what others hand to this process. A second
    /// call changes nothing.
    pub fn start(&self, running: &Running) {
        let Some((admitting, releasing)) = self.loops(running) else { return };
        running.supervisor.spawn(ADMIT, admitting);
        running.supervisor.spawn(RELEASE, releasing);
        self.start_reading(running);
    }

    /// The two loops that [`start`](Self::start) starts, for whoever drives them itself. None the second time.
    pub fn loops(&self, running: &Running) -> Option<(Loop, Loop)> {
        let (creates, asked_creates) = mpsc::channel(WAITING_MAX);
        let (releases, asked_releases) = mpsc::channel(WAITING_MAX);
        self.0.batches.set(Batches { creates, releases }).ok()?;
        let handed = running.signals.of(kernel::run::PLACE_CHANNEL);
        let (busy, creating) = watch::channel(false);
        let this = self.clone();
        let admitting: Loop = Box::new(move |stop| this.admitting(asked_creates, handed, busy, stop).boxed());
        let this = self.clone();
        let releasing: Loop = Box::new(move |stop| this.releasing(asked_releases, creating, stop).boxed());
        Some((admitting, releasing))
    }

    /// Whether this process does calls together.
    pub(crate) fn is_started(&self) -> bool {
        self.0.batches.get().is_some()
    }

    /// What comes of a create that was decided on.
    pub(crate) async fn create_with_others(&self, what: Creating) -> Result<Made, Fault> {
        match self.0.batches.get() {
            Some(batches) => ask(&batches.creates, what).await,
            None => self.make_alone(&what, std::future::ready(Ok(()))).await,
        }
    }

    /// Asks for the end of a reservation.
    pub(crate) async fn release_with_others(&self, what: Releasing) -> Result<Released, Fault> {
        match self.0.batches.get() {
            Some(batches) => ask(&batches.releases, what).await,
            None => self.release_alone(&what).await,
        }
    }

    async fn admitting(
        self,
        mut asked: mpsc::Receiver<AskedCreate>,
        mut handed: watch::Receiver<()>,
        busy: watch::Sender<bool>,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let (mut batch, mut pace) = (Vec::with_capacity(BATCH_MAX), ADMIT_PACE);
        loop {
            // All arms are cancel-safe: what is not received stays in the channel, a signal not looked at stays.
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = asked.recv_many(&mut batch, BATCH_MAX) => {
                    gather(&mut asked, &mut batch, &mut pace, self.clock()).await;
                    let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_MAX));
                    busy.send_replace(true);
                    if stop.run_until_cancelled(self.admit_all(batch)).await.is_none() {
                        return Ok(());
                    }
                    busy.send_replace(false);
                }
                Ok(()) = handed.changed() => {
                    stop.run_until_cancelled(self.place_handed()).await;
                }
            }
        }
    }

    async fn releasing(
        self,
        mut asked: mpsc::Receiver<AskedRelease>,
        mut creating: watch::Receiver<bool>,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while stop.run_until_cancelled(asked.recv_many(&mut batch, BATCH_MAX)).await.is_some() {
            // Either is cancel-safe, and without creates neither waits.
            tokio::select! {
                biased;
                _ = creating.wait_for(|busy| !busy) => {}
                () = self.clock().sleep(GATHER_MAX) => {}
                () = stop.cancelled() => return Ok(()),
            }
            fill(&mut asked, &mut batch);
            let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_MAX));
            stop.run_until_cancelled(self.release_all(batch)).await;
        }
        Ok(())
    }

    /// What other processes have admitted into pools of this one.
    async fn place_handed(&self) {
        for pool_id in self.owned() {
            if let Err(err) = self.place_waiting(pool_id).await {
                tracing::warn!(%pool_id, err = kit::chain(&err), "failed to place what was handed over");
            }
        }
    }
}

/// Adds to a batch that has begun to come what comes until its turn.
pub(super) async fn gather<T>(
    asked: &mut mpsc::Receiver<T>,
    batch: &mut Vec<T>,
    pace: &mut Pace,
    clock: &dyn Clock,
) {
    pace.wait(clock).await;
    fill(asked, batch);
    pace.took(clock.monotonic(), batch.len());
}

/// Adds what has come by now.
fn fill<T>(asked: &mut mpsc::Receiver<T>, batch: &mut Vec<T>) {
    while batch.len() < BATCH_MAX
        && let Ok(one) = asked.try_recv()
    {
        batch.push(one);
    }
}

async fn ask<T, A>(to: &mpsc::Sender<Asked<T, A>>, what: T) -> Result<A, Fault> {
    let (reply, answer) = oneshot::channel();
    let busy = || ApiError {
        retry_after: Some(1),
        ..ApiError::new(ErrorCode::Unavailable, "too many calls at once: try again")
    };
    to.try_send(Asked { what, reply }).map_err(|_| busy())?;
    let gone = || {
        let message = "the server is stopping; whether the call took effect is not known, repeat it with its idempotency key";
        ApiError::new(ErrorCode::Unavailable, message)
    };
    answer.await.map_err(|_| gone())?
}

impl<T, A> Asked<T, A> {
    /// Whether nobody waits for it any more, and it has not begun.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self, answer: Result<A, Fault>) {
        // Whoever asked may be gone by now.
        let _ = self.reply.send(answer);
    }
}
