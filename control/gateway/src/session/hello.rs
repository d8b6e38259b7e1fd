//! The first frame of a node, read strictly: everything in it is bounded here, before anything else looks at it.

use kernel::ports::delivery::{HelloFacts, InFlight, ReportedUpdate, SessionKey};
use kit::mutant;
use model::{CommandId, JournalId, NodeId};
use wire::inventory::SectionName;
use wire::limits::{HELLO_COMMANDS_MAX, SPEC_BODY_BYTES_MAX};
use wire::proto::agent::{CommandState, Hello};
use wire::versions::Versions;

use super::hashes::Hashes;
use super::report::{self, SIGNATURE_BYTES_MAX};

/// Names like `devices.limits`: a daemon has a dozen.
const CAPABILITIES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 128;
const VERSION_BYTES_MAX: usize = 64;
/// Entries of a map by lane or by section.
pub(super) const MAP_ENTRIES_MAX: usize = 32;
const NONCE_BYTES: usize = 32;

/// What the session keeps of a Hello; the rest goes to the store.
#[derive(Debug)]
pub(super) struct Greeting {
    pub journal_id: JournalId,
    pub applied_generation: u64,
    /// Their session is not known yet: the epoch is 0.
    pub results: Vec<ReportedUpdate>,
    pub credits: std::collections::BTreeMap<String, u32>,
    pub hashes: Hashes,
    /// Set when the node has no mark of its own.
    pub nonce: Option<[u8; NONCE_BYTES]>,
    pub protocol: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    WrongNode,
    /// There is no common version; these are the node's.
    UpgradeRequired(Versions),
    Bad(&'static str),
}

/// Reads a Hello that came over a connection with `node_id`'s certificate to a gateway that speaks these versions.
pub(super) fn parse(
    hello: Hello,
    node_id: NodeId,
    cert_serial: &str,
    spoken: Versions,
) -> Result<(HelloFacts, Greeting), Refused> {
    // Whom it is from comes first: nothing else of a stranger's Hello is worth an answer.
    if hello.node_id != node_id.to_string() && !mutant::on("gateway.hello-of-any-node") {
        return Err(Refused::WrongNode);
    }
    let theirs = Versions { min: hello.protocol_min, max: hello.protocol_max };
    let protocol = match spoken.common(theirs) {
        Some(common) => common,
        None if mutant::on("gateway.any-version") => spoken.max,
        None => return Err(Refused::UpgradeRequired(theirs)),
    };
    bound(hello.agent_version.len() <= VERSION_BYTES_MAX, "agent_version")?;
    bound(!hello.boot_id.is_empty() && hello.boot_id.len() <= NAME_BYTES_MAX, "boot_id")?;
    bound(hello.applied_spec_hash.len() <= NAME_BYTES_MAX, "applied_spec_hash")?;
    bound(hello.capabilities.len() <= CAPABILITIES_MAX, "capabilities")?;
    bound(hello.capabilities.iter().all(|name| name.len() <= NAME_BYTES_MAX), "capabilities")?;
    bound(hello.inventory_hashes.len() <= MAP_ENTRIES_MAX, "inventory_hashes")?;
    bound(hello.lane_credits.len() <= MAP_ENTRIES_MAX, "lane_credits")?;
    bound(hello.in_flight.len() <= HELLO_COMMANDS_MAX, "in_flight")?;
    bound(hello.unacked_results.len() <= HELLO_COMMANDS_MAX, "unacked_results")?;
    bound(hello.applied_spec_body.len() <= SPEC_BODY_BYTES_MAX, "applied_spec_body")?;
    let nonce = match (hello.fresh, <[u8; NONCE_BYTES]>::try_from(hello.nonce.as_ref())) {
        (false, _) => None,
        (true, Ok(nonce)) => Some(nonce),
        (true, Err(_)) => return Err(Refused::Bad("nonce")),
    };
    let applied_spec = match hello.applied_spec_signature {
        Some(signature) if !hello.applied_spec_body.is_empty() => {
            bound(signature.value.len() <= SIGNATURE_BYTES_MAX, "applied_spec_signature")?;
            Some((hello.applied_spec_body.to_vec(), signature.value.to_vec()))
        }
        _ => None,
    };
    let unsaid = SessionKey { node_id, epoch: 0 };
    let results = hello
        .unacked_results
        .into_iter()
        .map(|update| report::update(update, unsaid))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Refused::Bad("unacked_results"))?;
    // A name this build does not know is a newer daemon's; it says nothing about what is stored.
    let inventory_hashes = hello
        .inventory_hashes
        .iter()
        .filter(|(name, hash)| name.parse::<SectionName>().is_ok() && is_hash(hash))
        .map(|(name, hash)| (name.clone(), hash.clone()))
        .collect();
    let facts = HelloFacts {
        node_id,
        cert_serial: cert_serial.to_owned(),
        journal_id: hello.journal_id.parse().map_err(|_| Refused::Bad("journal_id"))?,
        incarnation_id: hello.incarnation_id.parse().map_err(|_| Refused::Bad("incarnation_id"))?,
        boot_id: report::text(&hello.boot_id),
        agent_version: report::text(&hello.agent_version),
        protocol,
        capabilities: hello.capabilities.iter().map(|name| report::text(name)).collect(),
        trust_version: hello.trust_version,
        applied_generation: hello.applied_generation,
        observed_generation: hello.observed_generation,
        applied_spec_hash: report::text(&hello.applied_spec_hash),
        deployment_epoch: hello.deployment_epoch,
        applied_spec,
        inventory_hashes,
        in_flight: hello.in_flight.iter().filter_map(in_flight).collect(),
    };
    let hashes = Hashes::of(&facts.inventory_hashes);
    let greeting = Greeting {
        journal_id: facts.journal_id,
        applied_generation: facts.applied_generation,
        results,
        credits: hello.lane_credits,
        hashes,
        nonce,
        protocol,
    };
    Ok((facts, greeting))
}

fn bound(holds: bool, field: &'static str) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused::Bad(field)) }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn in_flight(entry: &wire::proto::agent::InFlight) -> Option<(CommandId, InFlight)> {
    let command_id = entry.command_id.parse().ok()?;
    match CommandState::try_from(entry.state).ok()? {
        CommandState::Acked => Some((command_id, InFlight::Accepted)),
        CommandState::Running => Some((command_id, InFlight::Running)),
        CommandState::Unspecified
        | CommandState::Succeeded
        | CommandState::Failed
        | CommandState::Rejected
        | CommandState::Cancelled
        | CommandState::Busy => None,
    }
}
