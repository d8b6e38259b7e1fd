//! Commands: what a node is told to do once.

use model::lifecycle::CommandState;
use model::{CommandId, CommandKind, Lane, NodeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method::method;
use crate::{
    Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Many, Name, Named, Ref, Text, Time, Wait, Word,
};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    pub id: Id<CommandId>,
    pub node: Named<NodeId>,
    pub kind: Word<CommandKind>,
    pub lane: Word<Lane>,
    pub destructive: bool,
    pub state: Word<CommandState>,
    pub payload: Map<String, Value>,
    /// Why it ended as it did: one stable word; empty when there is nothing to say.
    pub reason: String,
    /// For people.
    pub message: String,
    /// What it found, by kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Map<String, Value>>,
    /// The node signed the result and the signature holds.
    pub attested: bool,
    pub created_by: String,
    pub attempts: u32,
    pub not_before: Time,
    /// It does not start after this.
    pub not_after: Time,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    pub age_seconds: u64,
}

/// The parameters of a kind; give only those that it has.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandPayload {
    /// `inventory.refresh`: the sections to read again, all when empty.
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub sections: Many<Text<1, 32>, 16>,
    /// `diag.nvml`: the GPUs the node should have; not counted when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_gpus: Option<Int<0, 64>>,
    /// `logs.collect`: how far back, at most 7 days; an hour when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<Int<1, 604_800>>,
    /// `logs.collect`: a presigned https URL for a PUT; without it the bundle comes in the result, cut to 256 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_url: Option<Text<1, 2048>>,
    /// `gpu.reset`: UUIDs of GPUs, at least one.
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub gpus: Many<Text<1, 96>, 64>,
    /// `node.reboot`: for the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<1, 200>>,
}

/// How long a command may wait for its node, when not said.
pub const COMMAND_EXPIRES_SECONDS_DEFAULT: u64 = 300;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateCommand {
    pub node: Ref<NodeId>,
    pub kind: Word<CommandKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<CommandPayload>,
    /// It does not start later than this from now. 300 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<Int<10, 86_400>>,
    /// The node's name: asked for by kinds that can take work or data away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<Name>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// Until it settles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetCommand {
    pub id: Id<CommandId>,
    /// Until it settles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListCommands {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<CommandState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word<CommandKind>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelCommand {
    pub id: Id<CommandId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<0, 200>>,
}

fn check_create(request: &CreateCommand) -> Result<(), InvalidRequest> {
    let none = CommandPayload::default();
    let payload = request.payload.as_ref().unwrap_or(&none);
    let given = [
        ("sections", !payload.sections.is_empty(), CommandKind::InventoryRefresh),
        ("expectedGpus", payload.expected_gpus.is_some(), CommandKind::DiagNvml),
        ("sinceSeconds", payload.since_seconds.is_some(), CommandKind::LogsCollect),
        ("uploadUrl", payload.upload_url.is_some(), CommandKind::LogsCollect),
        ("gpus", !payload.gpus.is_empty(), CommandKind::GpuReset),
        ("reason", payload.reason.is_some(), CommandKind::NodeReboot),
    ];
    let kind = request.kind.0;
    for (field, present, of) in given {
        if present && of != kind {
            return Err(InvalidRequest::new(
                format!("/payload/{field}"),
                format!("{field} belongs to {}, not to {}", of.name(), kind.name()),
            ));
        }
    }
    if kind == CommandKind::GpuReset && payload.gpus.is_empty() {
        return Err(InvalidRequest::new("/payload/gpus", "name at least one GPU by its UUID"));
    }
    match &payload.upload_url {
        Some(url) if !url.as_str().starts_with("https://") => {
            Err(InvalidRequest::new("/payload/uploadUrl", "expected an https:// URL"))
        }
        _ => Ok(()),
    }
}

method!(Create, "commands"."create", Key, "compute-command", CreateCommand => Command, [NotFound, Conflict, ConfirmationRequired, InvalidState, Unsupported], "Tells a node to do something once.", check = check_create);
method!(Get, "commands"."get", Read, "compute-command", GetCommand => Command, [NotFound], "Shows a command and its result.");
method!(List, "commands"."list", Read, "compute-command", ListCommands => crate::List<Command>, [NotFound], "Lists commands.");
method!(Cancel, "commands"."cancel", Natural, "compute-command", CancelCommand => Command, [NotFound, InvalidState], "Takes back a command that has not ended; one under way is asked to stop.");
