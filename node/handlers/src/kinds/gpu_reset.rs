//! Resets GPUs that nobody holds. One that somebody does fails the whole command before anything is touched.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent::kinds::{CommandContext, KindHandler, Outcome};
use futures::future::BoxFuture;
use hw::ResetError;
use model::CommandKind;
use tokio_util::sync::CancellationToken;
use wire::inventory::{GPUS_MAX, NodeInventory};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as CommandResult;
use wire::proto::agent::{GpuResetOutcome, GpuResetResult};

use super::{INTERNAL, INVALID_PAYLOAD, wrong_payload};
use crate::machine::Machine;
use crate::sections::devices::{Holds, LiveHolds};

/// A hold has one of the GPUs. Nothing was reset.
const GPU_BUSY: &str = "gpu-busy";

pub struct Handler {
    pub machine: Arc<Machine>,
    pub holds: Holds,
}

impl KindHandler for Handler {
    fn kind(&self) -> CommandKind {
        CommandKind::GpuReset
    }

    fn run(&self, context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome> {
        let (machine, holds) = (self.machine.clone(), self.holds.clone());
        Box::pin(async move {
            match payload {
                Payload::GpuReset(asked) => reset(&machine, &holds, &asked.gpu_uuids, &context.cancel).await,
                _ => wrong_payload(),
            }
        })
    }
}

async fn reset(machine: &Machine, holds: &Holds, asked: &[String], cancel: &CancellationToken) -> Outcome {
    if asked.is_empty() || asked.len() > GPUS_MAX {
        return Outcome::failed(
            INVALID_PAYLOAD,
            format!("1 to {GPUS_MAX} GPUs can be named, not {}", asked.len()),
        );
    }
    let gpus: BTreeSet<&str> = asked.iter().map(String::as_str).collect();
    // No hold comes about while we reset what it would hold.
    let _unchanging = holds.lock().await;
    match holds.live().await {
        Ok(live) => {
            if let Some(busy) = busy(&live, &gpus) {
                return Outcome::failed(GPU_BUSY, busy);
            }
        }
        Err(err) => return Outcome::failed(INTERNAL, format!("failed to {}", kit::chain(&err))),
    }
    let inventory = machine.collect().await;
    let known = uuids(&inventory);
    if cancel.is_cancelled() {
        return Outcome::Cancelled;
    }
    let mut outcomes = Vec::with_capacity(gpus.len());
    for gpu in gpus {
        // What was reset stays reset; what comes after a cancel is left alone and says so.
        outcomes.push(match (known.contains(gpu), cancel.is_cancelled()) {
            (false, _) => outcome(gpu, Err("unknown GPU".into())),
            (true, true) => outcome(gpu, Err("cancelled before it was reset".into())),
            (true, false) => outcome(gpu, one(machine, gpu).await),
        });
    }
    read_health_back(machine, &mut outcomes).await;
    Outcome::Succeeded(CommandResult::GpuReset(GpuResetResult { gpus: outcomes }))
}

/// Who has one of the GPUs, or may have.
fn busy(live: &LiveHolds, gpus: &BTreeSet<&str>) -> Option<String> {
    for gpu in gpus {
        if let Some(hold) = live.holder_of(gpu) {
            return Some(format!("{} is held by {}; nothing was reset", clean(gpu), hold.allocation));
        }
    }
    let (name, problem) = live.unreadable().next()?;
    Some(format!("/etc/cdi/{name} may hold any GPU and cannot be read ({problem}); nothing was reset"))
}

async fn one(machine: &Machine, gpu: &str) -> Result<(), String> {
    tracing::info!(gpu, "resetting GPU");
    match machine.hardware().reset_gpu(gpu).await {
        Ok(()) => Ok(()),
        Err(ResetError::Unknown { .. }) => Err("unknown GPU".into()),
        Err(err) => Err(format!("failed to {}", kit::chain(&err))),
    }
}

fn outcome(gpu: &str, reset: Result<(), String>) -> GpuResetOutcome {
    let done = reset.is_ok();
    GpuResetOutcome {
        uuid: clean(gpu),
        reset: done,
        healthy: false,
        message: reset.err().unwrap_or_default(),
    }
}

/// A reset that left the GPU dead is found out here, and one that helped clears what the log said before it.
async fn read_health_back(machine: &Machine, outcomes: &mut [GpuResetOutcome]) {
    if !outcomes.iter().any(|outcome| outcome.reset) {
        return;
    }
    let inventory = machine.collect().await;
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.reset) {
        let found = inventory.gpus.gpus.iter().find(|gpu| gpu.uuid.as_deref() == Some(outcome.uuid.as_str()));
        match found {
            None => outcome.message = "it was reset and is not there any more".into(),
            Some(gpu) if gpu.lost || !hw::may_take_work(gpu.health.verdict) => {
                outcome.message = gpu.health.reasons.join("; ");
            }
            Some(_) => outcome.healthy = true,
        }
        if outcome.healthy {
            machine.clear_faults(&outcome.uuid).await;
        }
    }
}

fn uuids(inventory: &NodeInventory) -> BTreeSet<String> {
    inventory.gpus.gpus.iter().filter_map(|gpu| gpu.uuid.clone()).collect()
}

/// What the caller named, fit to be shown.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(128).collect()
}
