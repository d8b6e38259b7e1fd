//! A deployment in a box, for tests here and above: keys, a node that has joined, and whatever a control plane would sign.

use std::time::Duration;

use bytes::Bytes;
use model::{
    CommandId, CommandKind, DeploymentId, Id, IncarnationId, JournalId, NodeId, Role, SiteId, Timestamp,
};
use pki::ca::NODE_CERTIFICATE_LIFETIME;
use pki::response::JoinResponse;
use pki::seal::DecryptionKey;
use pki::worker::{WorkerCertificate, WorkerKeyStatement};
use pki::{
    CertificateAuthority, IntentSigner, NodeName, Purpose, SeededEntropy, SigningKey, TrustBundle,
    TrustDomain, Validity,
};
use prost::Message;
use wire::proto::agent::{
    Command, CommandBody, DesiredState, DesiredStateBody, FreshBinding, FreshStatement, NodeSpec,
    SignedJoinResponse,
};
use wire::proto::common::{IntentSignature, SignedTrustBundle};

use crate::identity::Identity;
use crate::journal::Marks;

/// A fixed moment every test deployment starts at: 2026-03-01T00:00:00Z.
pub const START: Timestamp = Timestamp::from_millis(1_772_323_200_000);

/// Seconds after the start.
pub fn at(seconds: u64) -> Timestamp {
    START.saturating_add(Duration::from_secs(seconds))
}

/// The same moment as frames state it.
pub fn at_ms(seconds: u64) -> u64 {
    u64::try_from(at(seconds).millis()).expect("the start is after 1970")
}

/// The nth id of any kind.
pub fn nth<I: Id>(n: u128) -> I {
    I::from_uuid(uuid::Uuid::from_u128(n))
}

pub fn command_id(n: u128) -> CommandId {
    nth(n)
}

/// Keys and authorities of one deployment.
pub struct Deployment {
    pub entropy: SeededEntropy,
    pub id: DeploymentId,
    pub epoch: u64,
    pub root: SigningKey,
    pub worker: IntentSigner,
    pub join_signing: SigningKey,
    pub join_decryption: DecryptionKey,
    pub node_ca: CertificateAuthority,
    pub serving_ca: CertificateAuthority,
    pub trust_domain: TrustDomain,
    pub trust_version: u64,
}

impl Deployment {
    pub fn new(seed: u64) -> Self {
        let entropy = SeededEntropy::new(seed);
        let id: DeploymentId = nth(77);
        let root = SigningKey::generate(&entropy);
        let worker_key = SigningKey::generate(&entropy);
        let decade = Validity::starting(START, Duration::from_secs(3650 * 86_400));
        let certificate = WorkerCertificate::issue(
            &root,
            WorkerKeyStatement {
                key: worker_key.verifying_key().clone(),
                not_before: decade.not_before,
                not_after: decade.not_after,
                deployment_id: id,
            },
        );
        let authority =
            |name| CertificateAuthority::create(name, decade, &entropy).expect("fixed parameters");
        let (node_ca, serving_ca) = (authority("nodes"), authority("gateways"));
        let (join_signing, join_decryption) =
            (SigningKey::generate(&entropy), DecryptionKey::generate(&entropy));
        Self {
            id,
            epoch: 1,
            root,
            worker: IntentSigner::new(worker_key, certificate).expect("the certificate is for this key"),
            join_signing,
            join_decryption,
            node_ca,
            serving_ca,
            trust_domain: "example.test".parse().expect("a fixed name"),
            trust_version: 1,
            entropy,
        }
    }

    pub fn trust(&self) -> TrustBundle {
        TrustBundle {
            version: self.trust_version,
            deployment_id: self.id,
            deployment_epoch: self.epoch,
            trust_domain: self.trust_domain.clone(),
            command_roots: vec![self.root.verifying_key().clone()],
            serving_ca_pins: vec![self.serving_ca.pin()],
            join_signing_pins: vec![self.join_signing.verifying_key().pin()],
            node_cas: vec![self.node_ca.certificate_der().to_vec()],
            issued_at: START,
        }
    }

    pub fn signed_trust(&self) -> SignedTrustBundle {
        SignedTrustBundle { value: self.trust().sign(&self.join_signing).encode().into() }
    }

    /// What answers a CSR: the nth node's certificate and the deployment's trust.
    pub fn admit(&self, n: u128, role: Role, csr_der: &[u8], served_at: Timestamp) -> SignedJoinResponse {
        let key = pki::verify_csr(csr_der).expect("tests send valid requests");
        let name = NodeName {
            trust_domain: self.trust_domain.clone(),
            site_id: nth::<SiteId>(1),
            role,
            node_id: nth::<NodeId>(n),
        };
        let issued =
            self.node_ca.issue_node(&name, &key, served_at, &self.entropy).expect("fixed parameters");
        let response = JoinResponse {
            node_id: name.node_id,
            site_id: name.site_id,
            role,
            chain: vec![issued.der],
            csr_sha256: pki::csr_sha256(csr_der),
            trust_bundle: self.trust().sign(&self.join_signing),
            served_at,
            deployment_id: self.id,
            deployment_epoch: self.epoch,
        };
        SignedJoinResponse { value: response.sign(&self.join_signing).encode().into() }
    }

    /// The nth node, joined at the start.
    pub fn identity(&self, n: u128) -> Identity {
        let key = SigningKey::generate(&self.entropy);
        let csr_der = pki::make_csr(&key, "node");
        let admitted = self.admit(n, Role::Node, &csr_der, START);
        let expected = pki::response::Expected {
            pins: &[self.join_signing.verifying_key().pin()],
            csr_der: &csr_der,
            key: key.verifying_key(),
            role: Role::Node,
            node_id: None,
            at: START,
        };
        let joined = pki::response::verify_join_response(&admitted.value, &expected)
            .expect("the deployment's own answer");
        Identity::from_joined(joined, key, Marks::default())
    }

    pub fn sign(&self, purpose: Purpose, body: &[u8]) -> IntentSignature {
        IntentSignature { value: self.worker.sign(purpose, body).encode().into() }
    }

    /// A command for node `n`, valid from the start for an hour.
    pub fn command_body(&self, n: u128, id: CommandId, kind: CommandKind) -> CommandBody {
        CommandBody {
            command_id: id.to_string(),
            node_id: nth::<NodeId>(n).to_string(),
            deployment_epoch: self.epoch,
            kind: kind.name().to_owned(),
            not_before_ms: at_ms(0),
            not_after_ms: at_ms(3600),
            payload: Some(wire::command::empty_payload(kind)),
            ..CommandBody::default()
        }
    }

    pub fn signed_command(&self, body: &CommandBody) -> Command {
        let body = Bytes::from(body.encode_to_vec());
        Command { signature: Some(self.sign(Purpose::Command, &body)), body, delivery_attempt: 1 }
    }

    pub fn command(&self, n: u128, id: CommandId, kind: CommandKind) -> Command {
        self.signed_command(&self.command_body(n, id, kind))
    }

    pub fn spec_body(&self, n: u128, generation: u64, spec: NodeSpec) -> DesiredStateBody {
        DesiredStateBody {
            node_id: nth::<NodeId>(n).to_string(),
            generation,
            deployment_epoch: self.epoch,
            spec_hash: wire::spec::hash(&spec),
            base_generation: 0,
            spec: Some(spec),
        }
    }

    /// A signed spec, bound to `nonce` when one is given.
    pub fn signed_spec(&self, body: &DesiredStateBody, nonce: Option<&[u8]>) -> DesiredState {
        let bytes = Bytes::from(body.encode_to_vec());
        let fresh = nonce.map(|nonce| {
            let statement = FreshStatement {
                node_id: body.node_id.clone(),
                nonce: Bytes::copy_from_slice(nonce),
                generation: body.generation,
                deployment_epoch: body.deployment_epoch,
                spec_hash: body.spec_hash.clone(),
            };
            let statement = Bytes::from(statement.encode_to_vec());
            FreshBinding { signature: Some(self.sign(Purpose::DeploymentEpoch, &statement)), statement }
        });
        DesiredState { signature: Some(self.sign(Purpose::DesiredState, &bytes)), body: bytes, fresh }
    }
}

/// How long the certificates of this module last.
pub const CERTIFICATE_LIFETIME: Duration = NODE_CERTIFICATE_LIFETIME;

pub fn incarnation(n: u128) -> IncarnationId {
    nth(n)
}

pub fn journal_id(n: u128) -> JournalId {
    nth(n)
}
