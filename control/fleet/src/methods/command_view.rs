//! A command as the API shows it: its payload and result as JSON, whatever form they travel in.

use crate::observe::AttestedResultOf;
use api::commands::Command;
use api::{Id, Named, Word};
use kernel::Fault;
use model::lifecycle::CommandState;
use model::{CommandKind, Lane, TenantId, Timestamp};
use serde_json::{Map, Value, json};
use store::{Row, RowExt, StoreError};
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as Outcome;
use wire::proto::agent::{CommandResult, DiagNvmlResult, GpuResetResult, LogsCollectResult};

pub(super) struct Seen {
    pub command: Command,
    pub tenant_id: TenantId,
}

pub(super) fn view(row: &Row, now: Timestamp) -> Result<Seen, Fault> {
    let kind = CommandKind::parse(row.get("kind")).ok_or_else(|| StoreError::decode("command", "kind"))?;
    let state =
        CommandState::parse(row.get("state")).ok_or_else(|| StoreError::decode("command", "state"))?;
    let lane = Lane::parse(row.get("lane")).ok_or_else(|| StoreError::decode("command", "lane"))?;
    let created_at = row.ts("created_at");
    let (command_id, node_id) = (row.id("command_id"), row.id("node_id"));
    let attested = kind.policy().attested && AttestedResultOf::of(command_id, node_id, row).holds();
    let command = Command {
        id: Id(command_id),
        node: Named::new(node_id, row.get::<_, String>("node_name")),
        kind: Word(kind),
        lane: Word(lane),
        destructive: row.get("destructive"),
        state: Word(state),
        payload: payload(row.get("body")),
        reason: row.get("reason"),
        message: row.get("message"),
        result: row.get::<_, Option<&[u8]>>("result").and_then(result),
        attested,
        created_by: row.get("created_by"),
        attempts: u32::try_from(row.get::<_, i32>("attempts")).unwrap_or(0),
        not_before: row.ts("not_before").into(),
        not_after: row.ts("not_after").into(),
        created_at: created_at.into(),
        dispatched_at: row.opt_ts("dispatched_at").map(Into::into),
        settled_at: row.opt_ts("settled_at").map(Into::into),
        cancel_reason: row.get("cancel_reason"),
        age_seconds: now.since(created_at).as_secs(),
    };
    Ok(Seen { command, tenant_id: row.id("tenant_id") })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn payload(body: &[u8]) -> Map<String, Value> {
    let payload = wire::command::decode_body(body).ok().and_then(|body| body.payload);
    object(match payload {
        Some(Payload::InventoryRefresh(refresh)) => json!({ "sections": refresh.sections }),
        Some(Payload::DiagNvml(diag)) => json!({ "expectedGpus": diag.expected_gpus }),
        // A presigned URL is a secret of its own: it is not shown again.
        Some(Payload::LogsCollect(logs)) => {
            json!({ "sinceSeconds": logs.since_seconds, "upload": !logs.upload_url.is_empty() })
        }
        Some(Payload::GpuReset(reset)) => json!({ "gpus": reset.gpu_uuids }),
        Some(Payload::NodeReboot(reboot)) => json!({ "reason": reboot.reason }),
        None => Value::Null,
    })
}

fn result(bytes: &[u8]) -> Option<Map<String, Value>> {
    let decoded: CommandResult = wire::decode("command result", bytes, RESULT_BYTES_MAX).ok()?;
    Some(object(match decoded.result? {
        Outcome::InventoryRefresh(refresh) => json!({ "hashes": refresh.hashes }),
        Outcome::DiagNvml(diag) => diag_nvml(&diag),
        Outcome::LogsCollect(logs) => logs_collect(&logs),
        Outcome::GpuReset(reset) => gpu_reset(&reset),
        Outcome::NodeReboot(reboot) => {
            json!({ "previousBootId": reboot.previous_boot_id, "bootId": reboot.boot_id })
        }
    }))
}

fn diag_nvml(diag: &DiagNvmlResult) -> Value {
    let checks: Vec<Value> = diag
        .checks
        .iter()
        .map(|check| {
            json!({ "name": check.name, "device": check.device, "passed": check.passed, "reason": check.reason })
        })
        .collect();
    json!({ "passed": diag.passed, "gpus": diag.gpus, "driverVersion": diag.driver_version, "checks": checks })
}

fn logs_collect(logs: &LogsCollectResult) -> Value {
    let sha256: String = logs.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "sizeBytes": logs.size_bytes, "sha256": sha256, "bundle": String::from_utf8_lossy(&logs.bundle) })
}

fn gpu_reset(reset: &GpuResetResult) -> Value {
    let gpus: Vec<Value> = reset
        .gpus
        .iter()
        .map(|gpu| json!({ "uuid": gpu.uuid, "reset": gpu.reset, "healthy": gpu.healthy, "message": gpu.message }))
        .collect();
    json!({ "gpus": gpus })
}
