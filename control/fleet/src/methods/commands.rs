//! `commands`.

use std::sync::Arc;
use std::time::Duration;

use api::commands::{self as api_commands, Command, CommandPayload, CreateCommand};
use api::{List, Many};
use kernel::idempotency::{self, Key};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Module, wait};
use model::lifecycle::{CommandState, NodeState};
use model::{CommandId, CommandKind, ErrorCode, NodeId, TenantId};
use store::{Op, RowExt};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::{DiagNvml, GpuReset, InventoryRefresh, LogsCollect, NodeReboot};

use super::command_view::{Seen, view};
use super::{nodes, on, refs, sql};
use crate::commands::NewCommand;
use crate::core::{Fleet, node_key};
use crate::{DELIVERY_CHANNEL, OBSERVE_QUEUE};

const KIND: &str = "compute-command";
const CREATE: Op = Op::new("command_create");
const CANCEL: Op = Op::new("command_cancel");
const LOGS_SINCE_SECONDS_DEFAULT: u32 = 3600;

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, api_commands::Create, create);
    let module = on!(module, fleet, api_commands::Get, get);
    let module = on!(module, fleet, api_commands::List, list);
    on!(module, fleet, api_commands::Cancel, cancel)
}

fn resource(command: &Command, tenant_id: TenantId) -> Resource {
    Resource::one(KIND, command.id.0, tenant_id)
        .with("resource.kind", command.kind.0.name())
        .with("resource.node", command.node.name.clone())
        .with("resource.destructive", command.destructive)
}

async fn create(fleet: Fleet, call: Arc<Call>, request: CreateCommand) -> Result<Command, Fault> {
    let node = nodes::visible(&fleet, &call, "compute:nodes:get", &request.node).await?;
    let kind = request.kind.0;
    call.require("compute:commands:create", &new_resource(&node, kind)).await?;
    let key = request.idempotency_key.as_ref().map(api::IdempotencyKey::as_str);
    let key = Key::of(&call, node.tenant_id, key, &request)?;
    let at_most = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    if let Some(key) = &key
        && let Some(made) = key.replay(fleet.store()).await?
    {
        // Before anything is judged: what was made once is answered, whatever became of the node.
        return settled(&fleet, &call, idempotency::made(&made)?, at_most).await;
    }
    check(&node.node, kind, request.confirm.as_ref())?;
    let payload = request.payload.unwrap_or_default();
    let command = NewCommand {
        node_id: node.node.id.0,
        resource_keys: payload.gpus.as_slice().iter().map(|gpu| gpu.as_str().to_owned()).collect(),
        payload: to_wire(kind, payload),
        valid_for: Duration::from_secs(
            request.expires_in_seconds.map_or(api_commands::COMMAND_EXPIRES_SECONDS_DEFAULT, api::Int::get),
        ),
        min_generation: 0,
        created_by: call.principal.name.clone(),
    };
    let id: CommandId = fleet.id();
    let (fleet_ref, call_ref, command, key) = (&fleet, &*call, &command, key.as_ref());
    let earlier: Option<String> = call
        .tx(fleet_ref.store(), CREATE, |tx| {
            Box::pin(async move {
                if let Some(key) = key
                    && let Some(made) = key.claim(tx, &id.to_string()).await?
                {
                    call_ref.about(format!("command/{made}"));
                    return Ok(Some(made));
                }
                call_ref.about(format!("command/{id}"));
                fleet_ref.enqueue(tx, id, command.clone()).await?;
                Ok::<_, Fault>(None)
            })
        })
        .await?;
    let id = match earlier {
        Some(made) => idempotency::made(&made)?,
        None => id,
    };
    settled(&fleet, &call, id, at_most).await
}

/// What policies may ask about a command that is not made yet.
fn new_resource(node: &super::node_view::Seen, kind: CommandKind) -> Resource {
    let resource = Resource::any(KIND, node.tenant_id)
        .with("resource.kind", kind.name())
        .with("resource.node", node.node.name.clone())
        .with("resource.destructive", kind.policy().destructive);
    match &node.node.pool {
        Some(pool) => resource.with("resource.pool", pool.name.clone()),
        None => resource,
    }
}

/// Whether this node takes this kind, and whether the caller means it.
fn check(node: &api::nodes::Node, kind: CommandKind, confirm: Option<&api::Name>) -> Result<(), Fault> {
    let (policy, name) = (kind.policy(), &node.name);
    if matches!(node.state.0, NodeState::Revoked | NodeState::Removed) {
        return Err(ApiError::invalid_state(format!("node {name} is {}", node.state.0.name())).into());
    }
    if !policy.roles.contains(&node.role.0) {
        let message = format!("{} is nothing a {} does", kind.name(), node.role.0.name());
        return Err(ApiError::new(ErrorCode::Unsupported, message).into());
    }
    if policy.destructive && confirm.is_none_or(|given| given.as_str() != *name) {
        let message =
            format!("{} can take work away; to confirm, give the node's name: {name:?}", kind.name());
        let refusal = ApiError::new(ErrorCode::ConfirmationRequired, message);
        return Err(refusal.detail("confirm", name.clone()).into());
    }
    Ok(())
}

fn to_wire(kind: CommandKind, payload: CommandPayload) -> Payload {
    let texts = |texts: &[String]| texts.to_vec();
    let gpus: Vec<String> = payload.gpus.as_slice().iter().map(|gpu| gpu.as_str().to_owned()).collect();
    let sections: Vec<String> = strings(&payload.sections);
    match kind {
        CommandKind::InventoryRefresh => Payload::InventoryRefresh(InventoryRefresh { sections }),
        CommandKind::DiagNvml => {
            Payload::DiagNvml(DiagNvml { expected_gpus: payload.expected_gpus.map_or(0, api::Int::get_u32) })
        }
        CommandKind::LogsCollect => Payload::LogsCollect(LogsCollect {
            since_seconds: payload.since_seconds.map_or(LOGS_SINCE_SECONDS_DEFAULT, api::Int::get_u32),
            upload_url: payload.upload_url.map(api::Text::into_string).unwrap_or_default(),
        }),
        CommandKind::GpuReset => Payload::GpuReset(GpuReset { gpu_uuids: texts(&gpus) }),
        CommandKind::NodeReboot => Payload::NodeReboot(NodeReboot {
            reason: payload.reason.map(api::Text::into_string).unwrap_or_default(),
        }),
    }
}

fn strings<const MIN: usize, const LEN: usize, const MAX: usize>(
    many: &Many<api::Text<MIN, LEN>, MAX>,
) -> Vec<String> {
    many.as_slice().iter().map(|text| text.as_str().to_owned()).collect()
}

async fn get(fleet: Fleet, call: Arc<Call>, request: api_commands::GetCommand) -> Result<Command, Fault> {
    let id = request.id.0;
    visible(&fleet, &call, "compute:commands:get", id).await?;
    let at_most = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    settled(&fleet, &call, id, at_most).await
}

async fn list(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_commands::ListCommands,
) -> Result<List<Command>, Fault> {
    let node = match &request.node {
        None => None,
        // One that may not be seen is not there: its commands do not tell of it either.
        Some(node) => Some(nodes::visible(&fleet, &call, "compute:nodes:get", node).await?.node.id.0.uuid()),
    };
    let (state, kind) = (request.state.map(|state| state.0.name()), request.kind.map(|kind| kind.0.name()));
    let limit = api::limit_or_default(request.limit);
    let after = refs::after::<CommandId>(request.cursor.as_ref())?;
    let one: Option<uuid::Uuid> = None;
    let rows = fleet
        .store()
        .read(&sql::COMMANDS, &[&one, &after, &node, &state, &kind, &refs::sql_limit(limit)])
        .await?;
    let cursor = refs::next::<CommandId>(&rows, limit, "command_id");
    let items = rows.iter().map(|row| view(row, call.now)).collect::<Result<Vec<_>, _>>()?;
    let shown = call
        .filter("compute:commands:list", items, |seen: &Seen| resource(&seen.command, seen.tenant_id))
        .await?;
    Ok(List::new(shown.into_iter().map(|seen| seen.command).collect(), cursor))
}

async fn cancel(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_commands::CancelCommand,
) -> Result<Command, Fault> {
    let id = request.id.0;
    let seen = visible(&fleet, &call, "compute:commands:cancel", id).await?;
    let state = seen.command.state.0;
    if state == CommandState::Cancelled {
        return Ok(seen.command);
    }
    if state.terminal() {
        return Err(ApiError::invalid_state(format!("command {id} has ended: {}", state.name())).into());
    }
    call.about(format!("command/{id}"));
    let reason = request.reason.map_or_else(String::new, api::Text::into_string);
    let (fleet_ref, reason) = (&fleet, &reason);
    call.tx(fleet_ref.store(), CANCEL, |tx| {
        Box::pin(async move {
            let row = tx.query_opt(&crate::sql::COMMAND_CANCEL, &[&id.uuid(), reason]).await?;
            let Some(row) = row else {
                return Err(ApiError::invalid_state(format!("command {id} has ended")).into());
            };
            let node_id: NodeId = row.id("node_id");
            kernel::module::wake(tx, OBSERVE_QUEUE, &node_key(node_id)).await?;
            tx.notify(DELIVERY_CHANNEL, node_key(node_id));
            Ok::<_, Fault>(())
        })
    })
    .await?;
    Ok(read(&fleet, &call, id).await?.command)
}

/// Reads a command that the caller may do `action` on.
async fn visible(fleet: &Fleet, call: &Call, action: &str, id: CommandId) -> Result<Seen, Fault> {
    match read(fleet, call, id).await {
        Ok(seen) => {
            let on = resource(&seen.command, seen.tenant_id);
            call.require_on(action, "compute:commands:get", &on, "command", id).await?;
            Ok(seen)
        }
        Err(fault) => {
            let root = refs::root_tenant(fleet.store()).await?;
            call.require_visible(action, &Resource::any(KIND, root), "command", id).await?;
            Err(fault)
        }
    }
}

async fn read(fleet: &Fleet, call: &Call, id: CommandId) -> Result<Seen, Fault> {
    let (none, text): (Option<uuid::Uuid>, Option<&str>) = (None, None);
    let row = fleet
        .store()
        .read_opt(&sql::COMMANDS, &[&Some(id.uuid()), &none, &none, &text, &text, &1i64])
        .await?
        .ok_or_else(|| ApiError::not_found("command", id))?;
    view(&row, call.now)
}

async fn settled(
    fleet: &Fleet,
    call: &Call,
    id: CommandId,
    at_most: Option<Duration>,
) -> Result<Command, Fault> {
    wait::until_settled(&*fleet.0.clock, fleet.rng(), at_most, || {
        Box::pin(async move {
            let command = read(fleet, call, id).await?.command;
            let settled = command.state.0.terminal();
            Ok((command, settled))
        })
    })
    .await
}
