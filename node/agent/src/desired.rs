//! Whether a delivered spec is taken. Pure: what is taken is journaled first and converged after.

use bytes::Bytes;
use kit::mutant;
use model::{NodeId, Timestamp};
use pki::Purpose;
use pki::worker::{CommandVerifier, SignatureRefused};
use prost::Message;
use wire::limits::SPEC_BODY_BYTES_MAX;
use wire::proto::agent::{DesiredState, DesiredStateBody, FreshStatement, NodeSpec};

use crate::converge::Validator;
use crate::journal::{Marks, StoredSpec};

/// A binding holds five short fields.
const STATEMENT_BYTES_MAX: usize = 1024;

/// A spec this node enforces.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldSpec {
    pub generation: u64,
    pub hash: String,
    pub spec: NodeSpec,
    /// Field numbers of sections that this build does not know and that ask for something.
    pub unknown: Vec<u32>,
}

pub struct Facts<'a> {
    pub node_id: NodeId,
    pub held: Option<&'a HeldSpec>,
    pub marks: Marks,
    /// Of the Hello of this session.
    pub nonce: &'a [u8],
    /// Server time.
    pub now: Timestamp,
    pub verifier: &'a CommandVerifier,
    pub validators: &'a [Validator],
}

/// Why a spec is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecRefused {
    #[error("take a spec: it is malformed")]
    Malformed(#[from] wire::DecodeError),
    #[error("take a spec: it names another node")]
    OtherNode,
    #[error("take a spec of generation {given}: generation {held} is held")]
    NotNewer { given: u64, held: u64 },
    #[error("take a spec of generation {given}: this node has held generation {mark}")]
    BelowMark { given: u64, mark: u64 },
    #[error("take a spec of deployment epoch {given}: this node has seen {mark}")]
    OlderEpoch { given: u64, mark: u64 },
    #[error("take a spec: its signature is refused")]
    Signature(#[from] SignatureRefused),
    #[error("take a spec: this node has no mark, and the spec is not bound to this session")]
    Unbound,
    #[error("take a spec: it is a patch on generation {base}, which is not held")]
    OtherBase { base: u64 },
    #[error("take a spec: its {section} section is invalid: {problem}")]
    Invalid { section: &'static str, problem: String },
}

impl SpecRefused {
    /// A full spec may help where this one did not.
    pub fn wants_full_spec(&self) -> bool {
        match self {
            SpecRefused::OtherBase { .. } | SpecRefused::Unbound => true,
            SpecRefused::Malformed(_)
            | SpecRefused::OtherNode
            | SpecRefused::NotNewer { .. }
            | SpecRefused::BelowMark { .. }
            | SpecRefused::OlderEpoch { .. }
            | SpecRefused::Signature(_)
            | SpecRefused::Invalid { .. } => false,
        }
    }
}

/// The body with its spec left as bytes, for the sections this build would drop while decoding.
#[derive(Clone, PartialEq, Message)]
struct RawBody {
    #[prost(bytes = "bytes", tag = "6")]
    spec: Bytes,
}

/// Checks a delivered spec and puts it together with what is held.
pub fn judge(facts: &Facts<'_>, delivered: &DesiredState) -> Result<(StoredSpec, HeldSpec), SpecRefused> {
    let body: DesiredStateBody = wire::decode("desired state", &delivered.body, SPEC_BODY_BYTES_MAX)?;
    if body.node_id != facts.node_id.to_string() && !mutant::on("agent.spec-of-any-node") {
        return Err(SpecRefused::OtherNode);
    }
    let given = body.generation;
    let again = mutant::on("agent.spec-of-same-generation");
    if let Some(held) =
        facts.held.filter(|held| given < held.generation || (given == held.generation && !again))
    {
        return Err(SpecRefused::NotNewer { given, held: held.generation });
    }
    let signature = delivered.signature.as_ref().map(|signature| signature.value.clone()).unwrap_or_default();
    let verified = facts.verifier.verify_bytes(Purpose::DesiredState, &delivered.body, &signature, facts.now);
    if !mutant::on("agent.spec-unsigned") {
        verified?;
    }
    if body.deployment_epoch < facts.marks.deployment_epoch && !mutant::on("agent.spec-of-older-epoch") {
        return Err(SpecRefused::OlderEpoch {
            given: body.deployment_epoch,
            mark: facts.marks.deployment_epoch,
        });
    }
    if given < facts.marks.generation && !mutant::on("agent.spec-below-mark") {
        return Err(SpecRefused::BelowMark { given, mark: facts.marks.generation });
    }
    if facts.marks.is_fresh() && !mutant::on("agent.fresh-takes-unbound") {
        check_binding(facts, delivered, &body)?;
    }
    let base = facts.held.map(|held| (held.generation, &held.spec));
    let spec = wire::spec::apply(base, &body).ok_or(SpecRefused::OtherBase { base: body.base_generation })?;
    for validator in facts.validators {
        (validator.check)(&spec, facts.node_id)
            .map_err(|problem| SpecRefused::Invalid { section: validator.section.name(), problem })?;
    }
    let mut unknown = unknown_in(&delivered.body);
    if body.base_generation != 0 {
        // A patch that leaves a section alone keeps it, also one we cannot read.
        unknown.extend(facts.held.iter().flat_map(|held| held.unknown.iter().copied()));
        unknown.sort_unstable();
        unknown.dedup();
    }
    let merged = if body.base_generation == 0 { Bytes::new() } else { spec.encode_to_vec().into() };
    let stored = StoredSpec {
        generation: given,
        deployment_epoch: body.deployment_epoch,
        hash: body.spec_hash.clone(),
        body: delivered.body.clone(),
        signature,
        merged,
        accepted_at: facts.now,
    };
    Ok((stored, HeldSpec { generation: given, hash: body.spec_hash, spec, unknown }))
}

/// The statement that this very spec answers this very Hello.
fn check_binding(
    facts: &Facts<'_>,
    delivered: &DesiredState,
    body: &DesiredStateBody,
) -> Result<(), SpecRefused> {
    let binding = delivered.fresh.as_ref().ok_or(SpecRefused::Unbound)?;
    let statement: FreshStatement = wire::decode("fresh statement", &binding.statement, STATEMENT_BYTES_MAX)?;
    let signature = binding.signature.as_ref().map_or(&[][..], |signature| &signature.value);
    facts.verifier.verify_bytes(Purpose::DeploymentEpoch, &binding.statement, signature, facts.now)?;
    let bound = !facts.nonce.is_empty()
        && (statement.nonce == facts.nonce || mutant::on("agent.binding-of-any-nonce"))
        && statement.node_id == body.node_id;
    let of_this = statement.generation == body.generation
        && statement.deployment_epoch == body.deployment_epoch
        && statement.spec_hash == body.spec_hash;
    if bound && (of_this || mutant::on("agent.binding-of-any-spec")) {
        Ok(())
    } else {
        Err(SpecRefused::Unbound)
    }
}

/// The spec out of the journal. It was checked when it was taken; the file is this machine's own.
pub fn from_stored(stored: &StoredSpec) -> Result<HeldSpec, wire::DecodeError> {
    let spec = if stored.merged.is_empty() {
        let body: DesiredStateBody = wire::decode("desired state", &stored.body, SPEC_BODY_BYTES_MAX)?;
        body.spec.unwrap_or_default()
    } else {
        wire::decode("node spec", &stored.merged, SPEC_BODY_BYTES_MAX)?
    };
    Ok(HeldSpec {
        generation: stored.generation,
        hash: stored.hash.clone(),
        spec,
        unknown: unknown_in(&stored.body),
    })
}

fn unknown_in(body: &[u8]) -> Vec<u32> {
    // The body decoded before, so its shape is known to be right.
    RawBody::decode(body).map(|raw| wire::spec::unknown_sections(&raw.spec)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
