//! The control plane of a world: what it signs, and what it remembers of that. What the store holds is the delivery store's
//! matter; this is what the invariants are judged by.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use agent::identity::Identity;
use agent::testing::{Deployment, START, command_id, nth};
use bytes::Bytes;
use model::{AllocationId, CommandId, CommandKind, NodeId, Timestamp};
use pki::worker::{WorkerCertificate, WorkerKeyStatement};
use pki::{IntentSigner, Purpose, SigningKey};
use prost::Message;
use wire::proto::agent::{
    CommandBody, DesiredHold, DesiredStateBody, DeviceAssignment, DevicesSection, FreshBinding,
    FreshStatement, NodeSpec,
};
use wire::proto::common::IntentSignature;

use super::action::Hold;
use super::clock::{Micros, SECOND, moment};
use super::scenario::NODES_MAX;

/// What was signed, and by whom.
type Signed = (Purpose, Signer, Vec<u8>);

/// Keys and certificates, the same for every run of this process: making them takes longer than a run.
pub struct Keys {
    pub deployment: Deployment,
    pub identities: Vec<Identity>,
    /// Signs what looks right and was never asked for.
    stranger: Deployment,
    /// The root that trust bundles name from the second one on, and a worker's key under it.
    pub next_root: SigningKey,
    next: IntentSigner,
    /// A worker's key whose time is over, in somebody else's hands.
    expired: IntentSigner,
    signatures: Mutex<HashMap<Signed, Bytes>>,
}

/// Whose signature a node gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signer {
    First,
    /// Under the root that only newer trust bundles name.
    Next,
}

/// A worker's key that this root has certified for this time.
fn worker(of: &Deployment, root: &SigningKey, from: Timestamp, until: Timestamp) -> IntentSigner {
    let key = SigningKey::generate(&of.entropy);
    let statement = WorkerKeyStatement {
        key: key.verifying_key().clone(),
        not_before: from,
        not_after: until,
        deployment_id: of.id,
    };
    let certificate = WorkerCertificate::issue(root, statement);
    IntentSigner::new(key, certificate).expect("the certificate is for this key")
}

/// Signatures kept: they are a function of key and body, and the same bodies come again in many runs.
const SIGNATURES_KEPT: usize = 50_000;

pub fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let deployment = Deployment::new(1);
        let identities = (1..=NODES_MAX).map(|n| deployment.identity(n as u128)).collect();
        let day = Duration::from_secs(86_400);
        let next_root = SigningKey::generate(&deployment.entropy);
        let next = worker(&deployment, &next_root, START, START.saturating_add(day * 3650));
        let over = START.saturating_sub(day);
        let expired = worker(&deployment, &deployment.root, Timestamp::from_millis(0), over);
        let (stranger, signatures) = (Deployment::new(2), Mutex::default());
        Keys { deployment, identities, stranger, next_root, next, expired, signatures }
    })
}

impl Keys {
    pub fn sign(&self, purpose: Purpose, body: &[u8]) -> Bytes {
        self.sign_by(Signer::First, purpose, body)
    }

    pub fn sign_by(&self, signer: Signer, purpose: Purpose, body: &[u8]) -> Bytes {
        let mut kept = self.signatures.lock().expect("no holder of this lock panics");
        if let Some(signature) = kept.get(&(purpose, signer, body.to_vec())) {
            return signature.clone();
        }
        let signature = match signer {
            Signer::First => self.deployment.sign(purpose, body).value,
            Signer::Next => self.next.sign(purpose, body).encode().into(),
        };
        if kept.len() >= SIGNATURES_KEPT {
            kept.clear();
        }
        kept.insert((purpose, signer, body.to_vec()), signature.clone());
        signature
    }

    /// By a stranger's key, or by one whose time is over.
    pub fn forge(&self, purpose: Purpose, body: &[u8]) -> Bytes {
        match body.iter().fold(0, |sum, byte| sum ^ byte) % 2 {
            0 => self.stranger.sign(purpose, body).value,
            _ => self.expired.sign(purpose, body).encode().into(),
        }
    }
}

/// A command that was really signed.
#[derive(Debug, Clone)]
pub struct Issued {
    pub node: usize,
    pub kind: String,
    pub body: CommandBody,
    pub bytes: Bytes,
    pub not_after: Timestamp,
}

/// A spec that was really signed.
#[derive(Debug, Clone)]
pub struct SignedSpec {
    pub body: DesiredStateBody,
    pub bytes: Bytes,
}

#[derive(Default)]
pub struct Plane {
    pub epoch: u64,
    pub trust_version: u64,
    pub commands: BTreeMap<CommandId, Issued>,
    /// By node, epoch and generation.
    pub specs: BTreeMap<(usize, u64, u64), SignedSpec>,
    /// The generation in the store, by node; 0 for none.
    pub newest: [u64; NODES_MAX],
    /// The epoch it was signed in.
    newest_epoch: [u64; NODES_MAX],
    /// What the newest lists of each allocation.
    holds: [BTreeMap<AllocationId, bool>; NODES_MAX],
    /// Hellos that were answered for: node, nonce and generation.
    pub bindings: BTreeSet<(usize, Vec<u8>, u64)>,
}

/// What a command locks: nothing, one of two devices, or both.
fn keys_of(key: u64) -> Vec<String> {
    match key {
        0 => Vec::new(),
        3 => vec!["gpu-1".to_owned(), "gpu-2".to_owned()],
        one => vec![format!("gpu-{one}")],
    }
}

pub fn node_id(node: usize) -> NodeId {
    nth(node as u128 + 1)
}

/// The number of a node of this world.
pub fn node_of(id: NodeId) -> usize {
    usize::try_from(id.uuid().as_u128()).map_or(usize::MAX, |n| n.wrapping_sub(1))
}

fn wire_ms(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}

impl Plane {
    pub fn new() -> Self {
        Self { epoch: 1, trust_version: 1, ..Self::default() }
    }

    pub fn command(
        &mut self,
        node: usize,
        id: u64,
        kind: &str,
        ttl: u64,
        needs: u64,
        key: u64,
        now: Micros,
    ) -> &Issued {
        let command_id = command_id(id.into());
        // To the second, so that more runs share a signature.
        let not_after = moment(now / SECOND * SECOND + ttl * SECOND);
        let known = CommandKind::parse(kind);
        let body = CommandBody {
            command_id: command_id.to_string(),
            node_id: node_id(node).to_string(),
            deployment_epoch: self.epoch,
            kind: kind.to_owned(),
            not_before_ms: wire_ms(START),
            not_after_ms: wire_ms(not_after),
            min_generation: if needs > 0 { self.newest[node] + needs - 1 } else { 0 },
            resource_keys: keys_of(key),
            payload: known.map(wire::command::empty_payload),
            ..CommandBody::default()
        };
        let bytes = Bytes::from(body.encode_to_vec());
        let issued = Issued { node, kind: kind.to_owned(), body, bytes, not_after };
        self.commands.entry(command_id).or_insert(issued)
    }

    /// The next generation of a node's spec.
    pub fn next_spec(&mut self, node: usize, hold: Hold, number: u64) -> (u64, SignedSpec) {
        let allocation: AllocationId = nth(number.into());
        match hold {
            Hold::Held => self.holds[node].insert(allocation, true),
            Hold::Released => self.holds[node].insert(allocation, false),
            Hold::Dropped => self.holds[node].remove(&allocation),
        };
        self.sign_next(node)
    }

    fn sign_next(&mut self, node: usize) -> (u64, SignedSpec) {
        self.newest[node] += 1;
        let generation = self.newest[node];
        self.newest_epoch[node] = self.epoch;
        let spec = self.sign_spec(node, self.epoch, generation);
        (generation, spec)
    }

    /// The same intent as the next generation, when the newest is of an epoch that is over.
    pub fn signed_again(&mut self, node: usize) -> Option<(u64, SignedSpec)> {
        let over = self.newest[node] > 0 && self.newest_epoch[node] < self.epoch;
        over.then(|| self.sign_next(node))
    }

    /// History that a restored database does not know: signed, delivered to nobody here, and known to whoever kept it.
    pub fn lost_history(&mut self, node: usize) {
        let (epoch, newest) = (self.epoch, self.newest[node]);
        for generation in newest + 1..=newest + 3 {
            self.sign_spec(node, epoch, generation);
        }
    }

    fn sign_spec(&mut self, node: usize, epoch: u64, generation: u64) -> SignedSpec {
        let assignments = self.holds[node].iter().map(|(allocation, held)| DeviceAssignment {
            allocation_id: allocation.to_string(),
            atoms: vec![format!("GPU-{allocation}")],
            device_class: "gpu".to_owned(),
            desired: if *held { DesiredHold::Held } else { DesiredHold::Released }.into(),
            ..DeviceAssignment::default()
        });
        let devices = DevicesSection { assignments: assignments.collect() };
        let spec = NodeSpec { devices: Some(devices), ..NodeSpec::default() };
        let body = DesiredStateBody {
            node_id: node_id(node).to_string(),
            generation,
            deployment_epoch: epoch,
            spec_hash: wire::spec::hash(&spec),
            base_generation: 0,
            spec: Some(spec),
        };
        let signed = SignedSpec { bytes: body.encode_to_vec().into(), body };
        self.specs.insert((node, epoch, generation), signed.clone());
        signed
    }

    /// A worker's answer to a node without a mark: its newest spec, bound to its Hello.
    pub fn bind(&mut self, request: &[u8], signer: impl FnOnce(usize) -> Signer) -> Option<Vec<u8>> {
        let asked = FreshStatement::decode(request).ok()?;
        let node = node_of(asked.node_id.parse().ok()?);
        let generation = *self.newest.get(node)?;
        let spec = &self.specs.get(&(node, self.newest_epoch[node], generation))?.body;
        let statement = FreshStatement {
            node_id: asked.node_id,
            nonce: asked.nonce.clone(),
            generation,
            deployment_epoch: spec.deployment_epoch,
            spec_hash: spec.spec_hash.clone(),
        };
        let statement = Bytes::from(statement.encode_to_vec());
        let value = keys().sign_by(signer(node), Purpose::DeploymentEpoch, &statement);
        self.bindings.insert((node, asked.nonce.to_vec(), generation));
        Some(FreshBinding { statement, signature: Some(IntentSignature { value }) }.encode_to_vec())
    }

    /// Whether the newest spec of a node lists this allocation as held.
    pub fn lists(&self, node: usize, allocation: AllocationId) -> Option<bool> {
        self.holds[node].get(&allocation).copied()
    }
}
