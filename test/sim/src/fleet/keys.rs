//! A deployment's keys, from the seed alone.

use std::sync::Arc;
use std::time::Duration;

use fleet::FleetKeys;
use kit::Rng;
use model::{DeploymentId, Timestamp};
use pki::ca::{CertificateAuthority, Validity};
use pki::envelope::KekRing;
use pki::seal::{DecryptionKey, EncryptionKey};
use pki::trust::TrustBundle;
use pki::worker::{IntentSigner, WorkerCertificate, WorkerKeyStatement};
use pki::{Entropy, SeededEntropy, SigningKey};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub struct Keys {
    deployment_id: DeploymentId,
    root: SigningKey,
    worker: SigningKey,
    worker_certificate: Vec<u8>,
    node_ca: SigningKey,
    node_ca_certificate: Vec<u8>,
    join_signing: SigningKey,
    join_encryption: String,
    serving_pin: pki::Pin,
    secrets_ring: String,
}

impl Keys {
    pub fn new(seed: u64, now: Timestamp, rng: &dyn Rng) -> anyhow::Result<Self> {
        let entropy: &dyn Entropy = &SeededEntropy::new(seed);
        let deployment_id: DeploymentId = rng.id(now);
        let root = SigningKey::generate(entropy);
        let worker = SigningKey::generate(entropy);
        let statement = WorkerKeyStatement {
            key: worker.verifying_key().clone(),
            not_before: now.saturating_sub(Duration::from_secs(3600)),
            not_after: now.saturating_add(YEAR),
            deployment_id,
        };
        let validity = Validity::starting(now, 10 * YEAR);
        let node_ca = CertificateAuthority::create("simulated node CA", validity, entropy)?;
        let serving = CertificateAuthority::create("simulated serving CA", validity, entropy)?;
        Ok(Self {
            deployment_id,
            worker_certificate: WorkerCertificate::issue(&root, statement).encode(),
            worker,
            root,
            node_ca: node_ca.key().clone(),
            node_ca_certificate: node_ca.certificate_der().to_vec(),
            join_signing: SigningKey::generate(entropy),
            join_encryption: DecryptionKey::generate(entropy).to_pkcs8_pem().to_string(),
            serving_pin: serving.pin(),
            secrets_ring: KekRing::generate("simulated".parse()?, entropy).render().to_string(),
        })
    }

    /// What one process of the control plane holds.
    pub fn worker(&self) -> anyhow::Result<FleetKeys> {
        let certificate = WorkerCertificate::decode(&self.worker_certificate)?;
        let intent = IntentSigner::new(self.worker.clone(), certificate);
        let trust = TrustBundle {
            version: 0,
            deployment_id: self.deployment_id,
            deployment_epoch: 0,
            trust_domain: "fleet.simulated.internal".parse()?,
            command_roots: vec![self.root.verifying_key().clone()],
            serving_ca_pins: vec![self.serving_pin],
            join_signing_pins: vec![self.join_signing_pin()],
            node_cas: vec![self.node_ca_certificate.clone()],
            issued_at: Timestamp::from_micros(0),
        };
        Ok(FleetKeys {
            deployment_id: self.deployment_id,
            intent: intent.ok_or_else(|| anyhow::anyhow!("the certificate is the worker's"))?,
            node_ca: CertificateAuthority::load(self.node_ca_certificate.clone(), self.node_ca.clone())?,
            join_signing: self.join_signing.clone(),
            join_encryption: DecryptionKey::from_pkcs8_pem(&self.join_encryption)?,
            trust,
        })
    }

    pub fn secrets_ring(&self) -> anyhow::Result<KekRing> {
        Ok(KekRing::parse(&self.secrets_ring)?)
    }

    pub fn join_signing_pin(&self) -> pki::Pin {
        self.join_signing.verifying_key().pin()
    }

    pub fn join_encryption_key(&self) -> anyhow::Result<EncryptionKey> {
        Ok(DecryptionKey::from_pkcs8_pem(&self.join_encryption)?.encryption_key().clone())
    }
}

/// Our generator where key code wants randomness.
pub struct AsEntropy(pub Arc<dyn Rng>);

impl Entropy for AsEntropy {
    fn fill(&self, out: &mut [u8]) {
        self.0.fill(out);
    }
}
