//! Faults that a simulated machine can be made to have, and a seeded hand that deals them.

use std::time::Duration;

use kit::{Clock, Rng};
use tokio_util::sync::CancellationToken;

use super::SimMachine;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The daemon dies and is started again.
    Crash,
    /// Power off and on.
    Reboot,
    /// The daemon dies and its journal is gone.
    JournalLoss,
    /// Every frame takes long.
    Slow(bool),
    /// Nothing gets through either way.
    Partition(bool),
}

/// What `--faults` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    Crash,
    Reboot,
    JournalLoss,
    Slow,
    Partition,
}

impl FaultKind {
    pub const ALL: [FaultKind; 5] =
        [FaultKind::Crash, FaultKind::Reboot, FaultKind::JournalLoss, FaultKind::Slow, FaultKind::Partition];

    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Crash => "crash",
            FaultKind::Reboot => "reboot",
            FaultKind::JournalLoss => "journal-loss",
            FaultKind::Slow => "slow",
            FaultKind::Partition => "partition",
        }
    }

    pub fn parse(text: &str) -> Result<FaultKind, String> {
        FaultKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<&str> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("it is one of {}", names.join(", "))
        })
    }
}

/// Which faults happen, and how often one does.
#[derive(Debug, Clone)]
pub struct Faults {
    pub kinds: Vec<FaultKind>,
    pub period: Duration,
    /// How long a fault that lasts does.
    pub lasts: Duration,
}

impl Faults {
    /// Deals one fault a period to a machine of its choice, until stopped. The same randomness deals the same hand.
    pub async fn deal(
        &self,
        machines: &[SimMachine],
        clock: &dyn Clock,
        rng: &dyn Rng,
        stop: &CancellationToken,
    ) {
        loop {
            // Cancel-safe: nothing is lost by a sleep that ends early.
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(self.period) => {}
            }
            let (Some(machine), Some(kind)) = (pick(machines, rng), pick(&self.kinds, rng)) else { return };
            tracing::info!(machine = machine.index, fault = kind.name(), "fault");
            match kind {
                FaultKind::Crash => machine.inject(Fault::Crash).await,
                FaultKind::Reboot => {
                    machine.hardware.power_cycle();
                    machine.inject(Fault::Reboot).await;
                }
                FaultKind::JournalLoss => machine.inject(Fault::JournalLoss).await,
                FaultKind::Slow => self.lasting(machine, Fault::Slow, clock, stop).await,
                FaultKind::Partition => self.lasting(machine, Fault::Partition, clock, stop).await,
            }
        }
    }

    async fn lasting(
        &self,
        machine: &SimMachine,
        fault: fn(bool) -> Fault,
        clock: &dyn Clock,
        stop: &CancellationToken,
    ) {
        machine.inject(fault(true)).await;
        // Cancel-safe, and the fault ends either way.
        tokio::select! {
            () = stop.cancelled() => {}
            () = clock.sleep(self.lasts) => {}
        }
        machine.inject(fault(false)).await;
    }
}

fn pick<'a, T>(from: &'a [T], rng: &dyn Rng) -> Option<&'a T> {
    from.get(usize::try_from(rng.below(from.len() as u64)).ok()?)
}
