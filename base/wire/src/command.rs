//! Commands: the body that is signed, and which payload belongs to which kind.

use model::CommandKind;

use crate::DecodeError;
use crate::limits::COMMAND_BODY_BYTES_MAX;
use crate::proto::agent::command_body::Payload;
use crate::proto::agent::{CommandBody, DiagNvml, GpuReset, InventoryRefresh, LogsCollect, NodeReboot};

/// The kind a payload is of.
pub const fn payload_kind(payload: &Payload) -> CommandKind {
    match payload {
        Payload::InventoryRefresh(_) => CommandKind::InventoryRefresh,
        Payload::DiagNvml(_) => CommandKind::DiagNvml,
        Payload::LogsCollect(_) => CommandKind::LogsCollect,
        Payload::GpuReset(_) => CommandKind::GpuReset,
        Payload::NodeReboot(_) => CommandKind::NodeReboot,
    }
}

/// A payload with every field at its default.
pub fn empty_payload(kind: CommandKind) -> Payload {
    match kind {
        CommandKind::InventoryRefresh => Payload::InventoryRefresh(InventoryRefresh::default()),
        CommandKind::DiagNvml => Payload::DiagNvml(DiagNvml::default()),
        CommandKind::LogsCollect => Payload::LogsCollect(LogsCollect::default()),
        CommandKind::GpuReset => Payload::GpuReset(GpuReset::default()),
        CommandKind::NodeReboot => Payload::NodeReboot(NodeReboot::default()),
    }
}

/// Decodes a body and checks what must hold of every body, whoever reads it: a bounded size, a deadline, and a payload that is
/// of the kind it names. A kind this build does not know decodes, with no payload.
pub fn decode_body(bytes: &[u8]) -> Result<CommandBody, DecodeError> {
    const WHAT: &str = "command body";
    let body: CommandBody = crate::decode(WHAT, bytes, COMMAND_BODY_BYTES_MAX)?;
    if body.command_id.is_empty() {
        return Err(DecodeError::Missing { what: WHAT, field: "command_id" });
    }
    if let Some(kind) = CommandKind::parse(&body.kind) {
        match &body.payload {
            None => return Err(DecodeError::Missing { what: WHAT, field: "payload" }),
            Some(payload) if payload_kind(payload) != kind => {
                return Err(DecodeError::Invalid { what: WHAT, field: "payload" });
            }
            Some(_) => {}
        }
    }
    Ok(body)
}
