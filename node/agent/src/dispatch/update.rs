//! Reports about commands. Pure.

use bytes::Bytes;
use model::command::RejectReason;
use model::{CommandId, NodeId};
use pki::{Purpose, SigningKey};
use prost::Message;
use sha2::{Digest, Sha256};
use wire::limits::RESULT_BYTES_MAX;
use wire::proto::agent::{AttestedResult, CommandResult, CommandState, CommandUpdate, command_result};
use wire::proto::common::NodeSignature;

use crate::conditions::cut;
use crate::kinds::Outcome;

pub(super) fn standing(id: CommandId, state: CommandState, boot_id: &str) -> CommandUpdate {
    CommandUpdate {
        command_id: id.to_string(),
        state: state.into(),
        boot_id: boot_id.to_owned(),
        ..CommandUpdate::default()
    }
}

pub(super) fn busy(id: CommandId, reason: &str, boot_id: &str) -> CommandUpdate {
    CommandUpdate { reason: reason.to_owned(), ..standing(id, CommandState::Busy, boot_id) }
}

pub(super) fn rejected(id: CommandId, reason: RejectReason, message: String, boot_id: &str) -> CommandUpdate {
    CommandUpdate {
        reason: reason.name().to_owned(),
        message: cut(&message),
        ..standing(id, CommandState::Rejected, boot_id)
    }
}

pub(super) fn outcome(id: CommandId, outcome: Outcome, boot_id: &str) -> CommandUpdate {
    match outcome {
        Outcome::Succeeded(result) => match encode(result) {
            Some(result) => CommandUpdate { result, ..standing(id, CommandState::Succeeded, boot_id) },
            // It happened; only its account does not fit.
            None => CommandUpdate {
                message: format!("the result is over {RESULT_BYTES_MAX} bytes and was left out"),
                ..standing(id, CommandState::Succeeded, boot_id)
            },
        },
        Outcome::Failed { code, message, result } => CommandUpdate {
            reason: cut(&code),
            message: cut(&message),
            result: result.and_then(encode).unwrap_or_default(),
            ..standing(id, CommandState::Failed, boot_id)
        },
        Outcome::Cancelled => standing(id, CommandState::Cancelled, boot_id),
        // The dispatcher turns this into a failure before it comes here.
        Outcome::Ending => {
            CommandUpdate { reason: "internal".into(), ..standing(id, CommandState::Failed, boot_id) }
        }
    }
}

fn encode(result: command_result::Result) -> Option<Bytes> {
    let result = CommandResult { result: Some(result) };
    (result.encoded_len() <= RESULT_BYTES_MAX).then(|| result.encode_to_vec().into())
}

/// The node's signature over a terminal update.
pub(super) fn attest(update: &CommandUpdate, node_id: NodeId, signer: &SigningKey) -> NodeSignature {
    let statement = AttestedResult {
        command_id: update.command_id.clone(),
        state: update.state,
        result_sha256: Bytes::copy_from_slice(&Sha256::digest(&update.result)),
        node_id: node_id.to_string(),
    };
    node_signature(signer, Purpose::AttestedResult, &statement.encode_to_vec())
}

/// A signature in the form reports carry it.
pub(crate) fn node_signature(signer: &SigningKey, purpose: Purpose, body: &[u8]) -> NodeSignature {
    NodeSignature {
        value: Bytes::copy_from_slice(&signer.sign(purpose, body).to_bytes()),
        key_sha256: Bytes::copy_from_slice(signer.verifying_key().pin().as_bytes()),
    }
}
