//! Whether a delivered command may run. Pure checks, in an order that is part of the protocol: the first that fails
//! names the answer.

use kit::mutant;
use model::command::RejectReason;
use model::{CommandKind, Role, Timestamp};
use pki::Purpose;
use pki::worker::CommandVerifier;
use wire::proto::agent::{Command, CommandBody};

/// What the checks need to know of the node.
pub struct Facts<'a> {
    pub node_id: &'a str,
    pub role: Role,
    /// The session serves nothing but an upgrade.
    pub upgrade_only: bool,
    /// Kinds this daemon has a handler for.
    pub handled: &'a [CommandKind],
    /// The generation of the spec the node holds; 0 for none.
    pub applied_generation: u64,
    /// The highest deployment epoch of intent this node verified.
    pub deployment_epoch: u64,
    /// Server time.
    pub now: Timestamp,
    pub verifier: &'a CommandVerifier,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every check passed; credit and room in the journal are asked next.
    Admit(CommandKind),
    /// It presupposes a newer spec: ask for it, and check again when it comes or when the deadline passes.
    Defer,
    /// Its time has not come. Not terminal.
    Early,
    Reject(RejectReason, String),
}

/// How much before `not_before` a command is taken: server time is known to within a round trip.
const EARLY_ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(5);

pub fn check(facts: &Facts<'_>, body: &CommandBody, command: &Command) -> Verdict {
    let reject = |reason, message: &str| Verdict::Reject(reason, message.to_owned());
    if body.node_id != facts.node_id && !mutant::on("agent.command-of-any-node") {
        return reject(RejectReason::Unsupported, "the command names another node");
    }
    let kind = match supported(facts, &body.kind) {
        Ok(kind) => kind,
        Err(message) => return Verdict::Reject(RejectReason::Unsupported, message),
    };
    let over = body.not_after_ms == 0 || facts.now.millis() > millis(body.not_after_ms);
    let over = over && !mutant::on("agent.deadline-ignored");
    if body.min_generation > facts.applied_generation && !mutant::on("agent.generation-not-awaited") {
        let held = facts.applied_generation;
        return if over {
            let message = format!("it needs generation {}, this node holds {held}", body.min_generation);
            Verdict::Reject(RejectReason::StaleGeneration, message)
        } else {
            Verdict::Defer
        };
    }
    if over {
        return reject(RejectReason::Expired, "the command's deadline has passed, or it has none");
    }
    let signature = command.signature.as_ref().map_or(&[][..], |signature| &signature.value);
    let backdated = mutant::on("agent.worker-key-as-of-the-command");
    let at = if backdated { Timestamp::from_millis(millis(body.not_before_ms)) } else { facts.now };
    match facts.verifier.verify_bytes(Purpose::Command, &command.body, signature, at) {
        Ok(()) => {}
        Err(_) if mutant::on("agent.command-unsigned") => {}
        Err(refused) => return Verdict::Reject(RejectReason::BadSignature, refused.to_string()),
    }
    if body.deployment_epoch < facts.deployment_epoch && !mutant::on("agent.command-of-older-epoch") {
        let message = format!(
            "it is of deployment epoch {}, this node has seen {}",
            body.deployment_epoch, facts.deployment_epoch
        );
        return Verdict::Reject(RejectReason::StaleGeneration, message);
    }
    let early = facts.now.saturating_add(EARLY_ALLOWANCE).millis() < millis(body.not_before_ms);
    if early { Verdict::Early } else { Verdict::Admit(kind) }
}

fn supported(facts: &Facts<'_>, name: &str) -> Result<CommandKind, String> {
    let Some(kind) = CommandKind::parse(name) else {
        return Err("this daemon does not know the kind".into());
    };
    if !kind.policy().roles.contains(&facts.role) {
        return Err(format!("a {} does not take {name}", facts.role.name()));
    }
    // There is no kind that upgrades the daemon yet, so an upgrade-only session runs nothing.
    if facts.upgrade_only {
        return Err("this session serves an upgrade only".into());
    }
    if !facts.handled.contains(&kind) {
        return Err(format!("this daemon has no handler for {name}"));
    }
    Ok(kind)
}

fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
