//! A machine's side: its key, its CSR, what it seals and signs, and what it makes of the answers.

use model::{CommandId, JournalId, NodeId, Role};
use pki::join::seal_join;
use pki::renew::{RenewProof, RenewStatement};
use pki::response::{Expected, Joined, verify_join_response};
use pki::token::JoinToken;
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use sha2::{Digest, Sha256};
use wire::proto::agent::join_reply::Outcome;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{
    AllocationBound, AllocationReleased, AttestedResult, CommandResult, CommandState, ConditionChanged,
    JoinRequest, NodeReport, RenewReply, RenewRequest,
};

use crate::world::{World, id};

pub struct Machine {
    pub hostname: String,
    pub key: SigningKey,
    pub csr: Vec<u8>,
    pub joined: Option<Joined>,
    pub journal: JournalId,
}

impl Machine {
    pub fn new(hostname: &str) -> Self {
        let key = SigningKey::generate(&OsEntropy);
        let csr = pki::make_csr(&key, hostname);
        Self { hostname: hostname.to_owned(), key, csr, joined: None, journal: id() }
    }

    pub fn node_id(&self) -> NodeId {
        self.joined.as_ref().unwrap().response.node_id
    }

    pub fn serial(&self) -> String {
        self.joined.as_ref().unwrap().identity.serial.to_string()
    }

    pub fn join_request(&self, world: &World, token: &JoinToken) -> Vec<u8> {
        let payload = world.payload(token, &self.hostname);
        let sealed = seal_join(&payload, &self.csr, world.join_key.encryption_key(), &OsEntropy);
        self.request_with(sealed)
    }

    pub fn request_with(&self, sealed_token: String) -> Vec<u8> {
        JoinRequest {
            csr_der: self.csr.clone().into(),
            sealed_token,
            role: "node".to_owned(),
            hostname: self.hostname.clone(),
            agent_version: "1.2.3".to_owned(),
            protocol: 1,
            hardware_key: vec![7; 32].into(),
        }
        .encode_to_vec()
    }

    /// Believes the answer as a real agent does, or fails the test.
    pub fn accept(&mut self, world: &World, outcome: Outcome) {
        let Outcome::Accepted(signed) = outcome else { panic!("deferred") };
        self.joined = Some(self.verify(world, &signed.value, None));
    }

    fn verify(&self, world: &World, encoded: &[u8], node_id: Option<NodeId>) -> Joined {
        let expected = Expected {
            pins: &world.bundle.join_signing_pins,
            csr_der: &self.csr,
            key: self.key.verifying_key(),
            role: Role::Node,
            node_id,
            at: world.now(),
        };
        verify_join_response(encoded, &expected).unwrap()
    }

    pub fn renewal(&self, world: &World, csr: &[u8]) -> Vec<u8> {
        let serial = self.joined.as_ref().unwrap().identity.serial;
        let statement = RenewStatement::new(self.node_id(), csr, serial, world.now(), &OsEntropy);
        let proof = RenewProof::sign(&self.key, statement).encode();
        RenewRequest { csr_der: csr.to_vec().into(), proof: proof.into() }.encode_to_vec()
    }

    /// Takes a renewal's answer over with the key it was asked for.
    pub fn renewed(&mut self, world: &World, key: SigningKey, csr: Vec<u8>, reply: &[u8]) {
        let reply: RenewReply = wire::decode("renew reply", reply, 1 << 20).unwrap();
        let node_id = Some(self.node_id());
        (self.key, self.csr) = (key, csr);
        self.joined = Some(self.verify(world, &reply.renewed.unwrap().value, node_id));
    }

    /// A report as it travels, and the node's signature over it.
    pub fn signed(&self, purpose: Purpose, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let pin = self.key.verifying_key().pin();
        (self.key.sign(purpose, body).to_bytes().to_vec(), pin.as_bytes().to_vec())
    }

    /// The database as after a gateway stored the event.
    pub async fn event(&self, world: &World, seq: i64, body: &[u8], signature: Option<(Vec<u8>, Vec<u8>)>) {
        let (signature, key) = signature.unzip();
        world
            .run(
                "INSERT INTO node_events (node_id, journal_id, seq, class, report, signature, key_sha256, observed_at)
                 VALUES ($1, $2, $3, 2, $4, $5, $6, compute_now())",
                &[&self.node_id().uuid(), &self.journal.uuid(), &seq, &body, &signature, &key],
            )
            .await;
    }

    /// The same for a signed report.
    pub async fn report(&self, world: &World, seq: i64, report: Report) {
        let body = self.body(report);
        self.event(world, seq, &body, Some(self.signed(Purpose::AttestedReport, &body))).await;
    }

    pub fn body(&self, report: Report) -> Vec<u8> {
        NodeReport { node_id: self.node_id().to_string(), report: Some(report) }.encode_to_vec()
    }

    /// The database as after a gateway stored the command's end.
    pub async fn result(&self, world: &World, command_id: CommandId, result: &CommandResult, signed: bool) {
        let bytes = result.encode_to_vec();
        let state = CommandState::Succeeded;
        let statement = AttestedResult {
            command_id: command_id.to_string(),
            state: i32::from(state),
            result_sha256: Sha256::digest(&bytes).to_vec().into(),
            node_id: self.node_id().to_string(),
        }
        .encode_to_vec();
        let (signature, key) = signed.then(|| self.signed(Purpose::AttestedResult, &statement)).unzip();
        let state = i16::try_from(i32::from(state)).unwrap();
        world
            .run(
                "UPDATE commands SET state = 'succeeded', result = $2, result_signature = $3, result_key_sha256 = $4,
                   result_state = $5, settled_at = compute_now() WHERE command_id = $1 AND settled_at IS NULL",
                &[&command_id.uuid(), &bytes, &signature, &key, &state],
            )
            .await;
    }
}

pub fn bound(allocation: &str) -> Report {
    Report::AllocationBound(AllocationBound {
        allocation_id: allocation.to_owned(),
        ..AllocationBound::default()
    })
}

pub fn released(allocation: &str) -> Report {
    Report::AllocationReleased(AllocationReleased { allocation_id: allocation.to_owned(), generation: 1 })
}

pub fn condition(kind: &str, cleared: bool) -> Report {
    let condition = wire::proto::common::Condition {
        kind: kind.to_owned(),
        severity: "warning".to_owned(),
        device: "GPU-1".to_owned(),
        ..Default::default()
    };
    Report::ConditionChanged(ConditionChanged { condition: Some(condition), cleared })
}

/// A report in a word, for what listeners heard.
pub fn told(report: &NodeReport) -> String {
    match &report.report {
        Some(Report::AllocationBound(bound)) => format!("bound {}", bound.allocation_id),
        Some(Report::AllocationFailed(failed)) => format!("failed {}", failed.allocation_id),
        Some(Report::AllocationReleased(released)) => format!("released {}", released.allocation_id),
        Some(Report::ConditionChanged(_)) => "condition".to_owned(),
        Some(Report::InstancesObserved(_)) => "instances".to_owned(),
        None => "nothing".to_owned(),
    }
}
