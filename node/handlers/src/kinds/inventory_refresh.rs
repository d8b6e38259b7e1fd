//! Collects the inventory now; changed sections travel with the next heartbeats.

use std::sync::Arc;

use agent::kinds::{CommandContext, KindHandler, Outcome};
use futures::future::BoxFuture;
use model::CommandKind;
use wire::inventory::SectionName;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as CommandResult;
use wire::proto::agent::{InventoryRefresh, InventoryRefreshResult};

use super::{INVALID_PAYLOAD, wrong_payload};
use crate::machine::Machine;

pub struct Handler(pub Arc<Machine>);

impl KindHandler for Handler {
    fn kind(&self) -> CommandKind {
        CommandKind::InventoryRefresh
    }

    fn run(&self, _context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome> {
        let machine = self.0.clone();
        Box::pin(async move {
            match payload {
                Payload::InventoryRefresh(asked) => refresh(&machine, &asked).await,
                _ => wrong_payload(),
            }
        })
    }
}

async fn refresh(machine: &Machine, asked: &InventoryRefresh) -> Outcome {
    let mut wanted = Vec::new();
    // More names than there are sections repeat themselves or are none.
    for name in asked.sections.iter().take(SectionName::ALL.len() + 1) {
        match name.parse::<SectionName>() {
            Ok(section) => wanted.push(section),
            Err(err) => return Outcome::failed(INVALID_PAYLOAD, err.to_string()),
        }
    }
    let inventory = machine.collect().await;
    let hashes =
        inventory.hashes().into_iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name));
    let hashes = hashes.map(|(name, hash)| (name.to_string(), hash.to_string())).collect();
    Outcome::Succeeded(CommandResult::InventoryRefresh(InventoryRefreshResult { hashes }))
}
