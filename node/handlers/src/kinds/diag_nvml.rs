//! May this node's GPUs take work? Judged from a fresh collection and this boot's error lines.

use std::sync::Arc;

use agent::kinds::{CommandContext, KindHandler, Outcome};
use futures::future::BoxFuture;
use model::CommandKind;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as CommandResult;
use wire::proto::agent::{DiagCheck, DiagNvml, DiagNvmlResult};

use super::{INTERNAL, wrong_payload};
use crate::machine::Machine;

/// The node has as many GPUs as it should.
const COUNT: &str = "gpu.count";

pub struct Handler(pub Arc<Machine>);

impl KindHandler for Handler {
    fn kind(&self) -> CommandKind {
        CommandKind::DiagNvml
    }

    fn run(&self, _context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome> {
        let machine = self.0.clone();
        Box::pin(async move {
            match payload {
                Payload::DiagNvml(asked) => diagnose(&machine, &asked).await,
                _ => wrong_payload(),
            }
        })
    }
}

async fn diagnose(machine: &Machine, asked: &DiagNvml) -> Outcome {
    let inventory = machine.collect().await;
    let section = &inventory.gpus;
    // Without the log nobody can say that the GPUs are free of errors.
    let batch = match machine.hardware().xids(0).await {
        Ok(batch) => batch,
        Err(err) => return Outcome::failed(INTERNAL, format!("failed to {}", kit::chain(&err))),
    };
    let found = hw::diag::nvml(section, &batch.events);
    let mut passed = hw::diag::passed(&found);
    let mut checks: Vec<DiagCheck> = found
        .into_iter()
        .map(|check| DiagCheck {
            name: check.name.as_str().into(),
            device: check.gpu.unwrap_or_default(),
            passed: check.passed,
            reason: check.detail,
        })
        .collect();
    let gpus = u32::try_from(section.gpus.len()).unwrap_or(u32::MAX);
    if asked.expected_gpus > 0 {
        let right = gpus == asked.expected_gpus;
        passed &= right;
        checks.push(DiagCheck {
            name: COUNT.into(),
            device: String::new(),
            passed: right,
            reason: format!("{gpus} of {} GPUs", asked.expected_gpus),
        });
    }
    let driver_version = section.driver_version.clone().unwrap_or_default();
    Outcome::Succeeded(CommandResult::DiagNvml(DiagNvmlResult { passed, checks, gpus, driver_version }))
}
