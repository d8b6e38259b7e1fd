//! Passes by period, singletons under a lease.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kit::TaskKind;
use store::lease::{self, Lease};
use store::{Op, StoreError};

use super::Running;
use crate::module::{Pass, PassOutcome};
use crate::sql;

const PASS: TaskKind = TaskKind::fatal("pass");
const OP_ACQUIRE: Op = Op::new("pass_lease_acquire");
const OP_RENEW: Op = Op::new("pass_lease_renew");
const OP_RELEASE: Op = Op::new("pass_lease_release");

/// Another process takes a singleton over this long after its holder was last heard of.
const LEASE_FOR: Duration = Duration::from_secs(15);
const LEASE_KEPT_EVERY: Duration = Duration::from_secs(5);
/// How often to try for a lease that another process has.
const LEASE_TRIED_EVERY: Duration = Duration::from_secs(5);
/// Whoever wants to know more often is told what was found this long ago, unless the lease was to lapse before.
const LEASE_LOOKED_AT_EVERY: Duration = Duration::from_secs(2);
/// Runs without a pause at most, so that a pass that always finds more still looks at its lease and its orders.
const RUNS_IN_A_ROW_MAX: u32 = 64;

/// Runs each pass by its period until the supervisor stops.
pub fn run_passes(running: &Running, passes: &[Arc<dyn Pass>]) {
    for pass in passes {
        let (pass, context) = (pass.clone(), running.clone());
        running.supervisor.spawn(PASS, move |cancel| async move {
            let mut held = Held::new(context.clone(), format!("pass:{}", pass.name()));
            cancel.run_until_cancelled(repeat(&context, &*pass, &mut held)).await;
            held.release().await;
            Ok::<(), Infallible>(())
        });
    }
}

async fn repeat(running: &Running, pass: &dyn Pass, held: &mut Held) {
    loop {
        let mut pause = pass.period();
        match once(running, pass, held).await {
            Ok(Once::Ran) => {}
            Ok(Once::NotOurs) => pause = pause.min(LEASE_TRIED_EVERY),
            Ok(Once::Lost) => tracing::warn!(pass = pass.name(), "lease was lost during the pass"),
            Err(err) => tracing::warn!(pass = pass.name(), err = kit::chain(&err), "failed to run a pass"),
        }
        running.clock.sleep(running.jittered(pause)).await;
    }
}

pub(super) enum Once {
    Ran,
    /// Another process runs it, or nobody may now.
    NotOurs,
    Lost,
}

pub(super) async fn once(running: &Running, pass: &dyn Pass, held: &mut Held) -> Result<Once, StoreError> {
    if pass.singleton() && !held.hold().await? {
        return Ok(Once::NotOurs);
    }
    // Asked by who has the lease alone: for the others it changes nothing.
    if pass.acts() && !running.store.read_one(&sql::MAY_ACT, &[]).await?.get::<_, bool>("may_act") {
        return Ok(Once::NotOurs);
    }
    if !pass.singleton() {
        run(running, pass).await;
        return Ok(Once::Ran);
    }
    // The lease is kept while the pass runs; when it is lost the pass is dropped at its next await.
    match futures::future::select(Box::pin(run(running, pass)), Box::pin(held.keep())).await {
        futures::future::Either::Left(((), _)) => Ok(Once::Ran),
        futures::future::Either::Right(((), _)) => Ok(Once::Lost),
    }
}

async fn run(running: &Running, pass: &dyn Pass) {
    for _ in 0..RUNS_IN_A_ROW_MAX {
        let started = running.clock.monotonic();
        let ended = AssertUnwindSafe(pass.run()).catch_unwind().await;
        let result = match &ended {
            Ok(Ok(_)) => "ok",
            Ok(Err(_)) => "failed",
            Err(_) => "panicked",
        };
        running.metrics.passed(pass.name(), result, running.clock.monotonic().saturating_sub(started));
        match ended {
            Ok(Ok(PassOutcome::More)) => {}
            Ok(Ok(PassOutcome::Idle)) => return,
            Ok(Err(fault)) => {
                tracing::warn!(pass = pass.name(), err = kit::chain(&fault), "pass failed");
                return;
            }
            Err(_) => {
                tracing::error!(pass = pass.name(), "pass panicked");
                return;
            }
        }
    }
}

/// A lease that this process has or tries to have.
pub(super) struct Held {
    running: Running,
    name: String,
    lease: Option<Lease>,
    /// Before it was last asked for, by the monotonic clock.
    asked_at: Duration,
    /// Another process has it, and need not be looked at before this.
    theirs_until: Duration,
}

impl Held {
    pub(super) fn new(running: Running, name: String) -> Self {
        Self { running, name, lease: None, asked_at: Duration::ZERO, theirs_until: Duration::ZERO }
    }

    /// Takes or renews it; false while another process has it. One that was renewed just now is kept as it is: that it is
    /// held is for whoever writes under it to ask.
    pub(super) async fn hold(&mut self) -> Result<bool, StoreError> {
        let now = self.running.clock.monotonic();
        if self.lease.is_some() && now.saturating_sub(self.asked_at) < LEASE_KEPT_EVERY {
            return Ok(true);
        }
        if now < self.theirs_until {
            return Ok(false);
        }
        let (name, holder) = (self.name.as_str(), self.running.holder());
        if self.lease.is_none()
            && let Some(left) = lease::taken(&self.running.store, name, holder).await?
        {
            self.theirs_until = now + left.min(LEASE_LOOKED_AT_EVERY);
            return Ok(false);
        }
        let acquired = self
            .running
            .store
            .tx(OP_ACQUIRE, |tx| Box::pin(async move { lease::acquire(tx, name, holder, LEASE_FOR).await }));
        self.lease = acquired.await?;
        self.asked_at = now;
        Ok(self.lease.is_some())
    }

    /// It turned out not to be held.
    pub(super) fn lose(&mut self) {
        self.lease = None;
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Renews it again and again. Returns when it is lost.
    async fn keep(&mut self) {
        // Judged by our own monotonic clock from before the renewal was sent, which errs towards giving up early.
        let mut renewed_at = self.asked_at;
        let mut pause =
            LEASE_KEPT_EVERY.saturating_sub(self.running.clock.monotonic().saturating_sub(renewed_at));
        while let Some(lease) = self.lease.clone() {
            self.running.clock.sleep(pause).await;
            pause = LEASE_KEPT_EVERY;
            let asked_at = self.running.clock.monotonic();
            let renewed = self.running.store.tx(OP_RENEW, |tx| {
                let mut lease = lease.clone();
                Box::pin(async move { Ok(lease::renew(tx, &mut lease, LEASE_FOR).await?.then_some(lease)) })
            });
            let renewed: Result<Option<Lease>, StoreError> = renewed.await;
            match renewed {
                Ok(renewed) => {
                    self.lease = renewed;
                    self.asked_at = asked_at;
                    renewed_at = asked_at;
                }
                Err(err) => {
                    let (lease, err) = (&self.name, kit::chain(&err));
                    tracing::warn!(lease, err, "failed to renew a lease");
                    if self.running.clock.monotonic().saturating_sub(renewed_at) + LEASE_KEPT_EVERY
                        >= LEASE_FOR
                    {
                        self.lease = None;
                    }
                }
            }
        }
    }

    /// Best effort: an unreleased lease lapses.
    pub(super) async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let lease = &lease;
        let released =
            self.running.store.tx(OP_RELEASE, |tx| Box::pin(async move { lease::release(tx, lease).await }));
        if let Err(err) = released.await {
            tracing::debug!(lease = lease.name, err = kit::chain(&err), "failed to release a lease");
        }
    }
}
