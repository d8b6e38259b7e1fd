//! A node's desired state: putting it together from parts, hashing it, taking a patch.

use model::{Section, SectionState};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::proto::agent::{AccessSection, DesiredStateBody, DevicesSection, NodeSpec};

/// Two parts that both set a section only one may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("two parts of the spec set section {section}")]
pub struct MergeConflict {
    pub section: &'static str,
}

/// Merges the parts that modules contribute into one spec with its lists in a fixed order, so that the same
/// intent is the same bytes. `devices` and `access` take entries from several parts; every other section has one writer.
pub fn merge(parts: impl IntoIterator<Item = NodeSpec>) -> Result<NodeSpec, MergeConflict> {
    fn once<T>(into: &mut Option<T>, from: Option<T>, section: Section) -> Result<(), MergeConflict> {
        match (into.is_some(), from) {
            (true, Some(_)) => Err(MergeConflict { section: section.name() }),
            (false, from @ Some(_)) => {
                *into = from;
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }
    let mut spec = NodeSpec::default();
    for part in parts {
        let NodeSpec { host, devices, instances, access, telemetry, site, daemon } = part;
        once(&mut spec.host, host, Section::Host)?;
        once(&mut spec.instances, instances, Section::Instances)?;
        once(&mut spec.telemetry, telemetry, Section::Telemetry)?;
        once(&mut spec.site, site, Section::Site)?;
        once(&mut spec.daemon, daemon, Section::Daemon)?;
        if let Some(devices) = devices {
            spec.devices.get_or_insert_default().assignments.extend(devices.assignments);
        }
        if let Some(access) = access {
            merge_access(spec.access.get_or_insert_default(), access);
        }
    }
    if let Some(devices) = &mut spec.devices {
        order_devices(devices);
    }
    if let Some(access) = &mut spec.access {
        order_access(access);
    }
    Ok(spec)
}

fn merge_access(into: &mut AccessSection, from: AccessSection) {
    into.ssh_ca_keys.extend(from.ssh_ca_keys);
    into.accounts.extend(from.accounts);
    into.revoked_serials.extend(from.revoked_serials);
}

fn order_devices(devices: &mut DevicesSection) {
    devices.assignments.sort_by(|a, b| a.allocation_id.cmp(&b.allocation_id));
    for assignment in &mut devices.assignments {
        assignment.atoms.sort();
    }
}

fn order_access(access: &mut AccessSection) {
    access.ssh_ca_keys.sort();
    access.ssh_ca_keys.dedup();
    access.accounts.sort_by(|a, b| a.account.cmp(&b.account));
    access.revoked_serials.sort_unstable();
    access.revoked_serials.dedup();
}

/// Lowercase hex of SHA-256 over the encoded spec.
pub fn hash(spec: &NodeSpec) -> String {
    hex::encode(Sha256::digest(spec.encode_to_vec()))
}

/// The spec after `body`, given the one held at `body.base_generation`. A full body (base 0) replaces it; a patch
/// replaces each section it sets. `None` when the patch is for another base.
pub fn apply(held: Option<(u64, &NodeSpec)>, body: &DesiredStateBody) -> Option<NodeSpec> {
    let spec = body.spec.clone().unwrap_or_default();
    if body.base_generation == 0 {
        return Some(spec);
    }
    let (_, held) = held.filter(|(generation, _)| *generation == body.base_generation)?;
    let mut next = held.clone();
    let NodeSpec { host, devices, instances, access, telemetry, site, daemon } = spec;
    next.host = host.or(next.host);
    next.devices = devices.or(next.devices);
    next.instances = instances.or(next.instances);
    next.access = access.or(next.access);
    next.telemetry = telemetry.or(next.telemetry);
    next.site = site.or(next.site);
    next.daemon = daemon.or(next.daemon);
    Some(next)
}

/// Whether a section asks for nothing.
pub fn section_is_empty(spec: &NodeSpec, section: Section) -> bool {
    fn empty<M: Message + Default + PartialEq>(message: &Option<M>) -> bool {
        message.as_ref().is_none_or(|message| *message == M::default())
    }
    match section {
        Section::Host => empty(&spec.host),
        Section::Devices => empty(&spec.devices),
        Section::Instances => empty(&spec.instances),
        Section::Access => empty(&spec.access),
        Section::Telemetry => empty(&spec.telemetry),
        Section::Site => empty(&spec.site),
        Section::Daemon => empty(&spec.daemon),
    }
}

/// Sections in a spec that this build does not know and that ask for something: their field numbers.
/// A newer control plane's section must be reported UNSUPPORTED, not lost without a word.
pub fn unknown_sections(encoded_spec: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut rest = encoded_spec;
    while !rest.is_empty() {
        let Ok((tag, wire_type)) = prost::encoding::decode_key(&mut rest) else { break };
        let context = prost::encoding::DecodeContext::default();
        // A message of length 0, its one byte of length apart, is an empty section.
        let empty = wire_type == prost::encoding::WireType::LengthDelimited && rest.first() == Some(&0);
        if prost::encoding::skip_field(wire_type, tag, &mut rest, context).is_err() {
            break;
        }
        if !empty && !Section::ALL.iter().any(|section| section.number() == tag) && !numbers.contains(&tag) {
            numbers.push(tag);
        }
    }
    numbers
}

/// `observed_generation` moves to a generation only when every section has settled at it.
pub fn all_settled(states: &[(Section, SectionState)]) -> bool {
    states.iter().all(|(_, state)| state.settled())
}
