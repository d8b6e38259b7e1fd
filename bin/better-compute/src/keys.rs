//! The folder that holds a deployment's keys: made once by `pki init`, read by `serve` and `dev`.
//!
//! ```text
//! deployment.json        the deployment's id, trust domain and gateway names
//! root/                  the command-signing root: needed to certify a worker key, and otherwise kept away
//! worker/                what a worker holds: worker, node CA, SSH CA, join signing and join encryption keys, and the key ring
//!                        by which secrets are kept in the database
//! gateway/               what a gateway holds: its serving key and certificate chain, and the node CA's certificate
//! public/                pins and certificates that anybody may read
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use fleet::FleetKeys;
use kit::{Clock, Rng};
use model::DeploymentId;
use pki::ca::{CertificateAuthority, Validity};
use pki::envelope::{KekId, KekRing};
use pki::seal::DecryptionKey;
use pki::spiffe::TrustDomain;
use pki::ssh::{SshPublicKey, ssh_ca_public_key};
use pki::tls::TlsIdentity;
use pki::trust::TrustBundle;
use pki::worker::{CommandVerifier, IntentSigner, WorkerCertificate, WorkerKeyStatement};
use pki::{OsEntropy, Pin, SigningKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const SERVING_LIFETIME: Duration = Duration::from_secs(397 * 24 * 3600);
const WORKER_LIFETIME: Duration = Duration::from_secs(397 * 24 * 3600);
/// Lost, it takes every secret with it; copied, it opens a copied database.
const SECRETS_RING: &str = "worker/secrets.kek";
/// No file here is larger than a few KiB.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const SSH_CA: &str = "worker/ssh-ca.key.pem";

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deployment {
    pub deployment_id: String,
    pub trust_domain: String,
    /// DNS names and addresses in the gateway's certificate; nodes check the first.
    pub gateway_names: Vec<String>,
}

/// Pins a machine needs before it joins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pins {
    pub serving_ca_pin: String,
    pub join_signing_pin: String,
    pub join_encryption_pin: String,
    pub join_encryption_jwk: serde_json::Value,
}

pub struct KeyFolder {
    dir: PathBuf,
    pub deployment: Deployment,
}

impl KeyFolder {
    pub fn exists(dir: &Path) -> bool {
        dir.join("deployment.json").is_file()
    }

    /// Makes every key and certificate. Refuses a folder that has some already: keys are not replaced by accident.
    pub fn create(
        dir: &Path,
        trust_domain: &str,
        gateway_names: &[String],
        clock: &dyn Clock,
        rng: &dyn Rng,
    ) -> anyhow::Result<Self> {
        if Self::exists(dir) {
            bail!("{} holds a deployment's keys already", dir.display());
        }
        let domain: TrustDomain = trust_domain.parse().context("the trust domain")?;
        let now = clock.now();
        let deployment_id: DeploymentId = rng.id(now);
        kit::fs::create_dir(dir, 0o711)?;
        for part in ["root", "worker", "gateway"] {
            kit::fs::create_dir(&dir.join(part), 0o700)?;
        }
        kit::fs::create_dir(&dir.join("public"), 0o755)?;
        let folder = Self {
            dir: dir.to_owned(),
            deployment: Deployment {
                deployment_id: deployment_id.to_string(),
                trust_domain: domain.to_string(),
                gateway_names: gateway_names.to_vec(),
            },
        };
        let root = SigningKey::generate(&OsEntropy);
        folder.put_key("root/command-root.key.pem", &root.to_pkcs8_pem())?;
        folder.put_public("public/command-root.spki.der", root.verifying_key().spki_der())?;

        let serving_ca = CertificateAuthority::create(
            "better-compute serving CA",
            Validity::starting(now, CA_LIFETIME),
            &OsEntropy,
        )?;
        folder.put_key("root/serving-ca.key.pem", &serving_ca.key().to_pkcs8_pem())?;
        folder.put_public("public/serving-ca.crt.der", serving_ca.certificate_der())?;
        folder.put_public("public/serving-ca.spki.der", serving_ca.key().verifying_key().spki_der())?;

        let node_ca = CertificateAuthority::create(
            "better-compute node CA",
            Validity::starting(now, CA_LIFETIME),
            &OsEntropy,
        )?;
        folder.put_key("worker/node-ca.key.pem", &node_ca.key().to_pkcs8_pem())?;
        folder.put_public("public/node-ca.crt.der", node_ca.certificate_der())?;

        folder.put_key("worker/join-signing.key.pem", &SigningKey::generate(&OsEntropy).to_pkcs8_pem())?;
        folder
            .put_key("worker/join-encryption.key.pem", &DecryptionKey::generate(&OsEntropy).to_pkcs8_pem())?;

        let worker = SigningKey::generate(&OsEntropy);
        let statement = WorkerKeyStatement {
            key: worker.verifying_key().clone(),
            not_before: now.saturating_sub(Duration::from_secs(3600)),
            not_after: now.saturating_add(WORKER_LIFETIME),
            deployment_id,
        };
        folder.put_key("worker/worker.key.pem", &worker.to_pkcs8_pem())?;
        folder.put_public("worker/worker.cert", &WorkerCertificate::issue(&root, statement).encode())?;

        folder.make_ssh_ca(false)?;
        folder.put_key(SECRETS_RING, &KekRing::generate(kek_id(rng)?, &OsEntropy).render())?;

        let gateway = SigningKey::generate(&OsEntropy);
        let names: Vec<&str> = gateway_names.iter().map(String::as_str).collect();
        let leaf = serving_ca.issue_serving(
            &names,
            gateway.verifying_key(),
            Validity::starting(now, SERVING_LIFETIME),
            &OsEntropy,
        )?;
        folder.put_key("gateway/gateway.key.pem", &gateway.to_pkcs8_pem())?;
        folder.put_public("gateway/gateway.crt.der", &leaf.der)?;

        let pins = serde_json::to_vec_pretty(&folder.pins()?)?;
        folder.put_public("public/pins.json", &pins)?;
        // Last, since it says that all of it is there.
        let deployment = serde_json::to_vec_pretty(&folder.deployment)?;
        kit::fs::write_atomic(&dir.join("deployment.json"), &deployment, 0o644)?;
        Ok(folder)
    }

    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let bytes = kit::fs::read_bounded(&dir.join("deployment.json"), FILE_BYTES_MAX)
            .context("no keys here; make them with: better-compute pki init")?;
        let deployment = serde_json::from_slice(&bytes).context("deployment.json is damaged")?;
        Ok(Self { dir: dir.to_owned(), deployment })
    }

    /// What a worker signs and issues with.
    pub fn worker(&self) -> anyhow::Result<FleetKeys> {
        let deployment_id: DeploymentId = self.deployment.deployment_id.parse()?;
        let worker = self.key("worker/worker.key.pem")?;
        let certificate = WorkerCertificate::decode(&self.read("worker/worker.cert")?)?;
        let Some(intent) = IntentSigner::new(worker, certificate) else {
            bail!("worker/worker.cert certifies another key than worker/worker.key.pem");
        };
        let node_ca = CertificateAuthority::load(
            self.read("public/node-ca.crt.der")?,
            self.key("worker/node-ca.key.pem")?,
        )?;
        let join_signing = self.key("worker/join-signing.key.pem")?;
        let root = pki::VerifyingKey::from_spki_der(&self.read("public/command-root.spki.der")?)?;
        let trust = TrustBundle {
            version: 0,
            deployment_id,
            deployment_epoch: 0,
            trust_domain: self.trust_domain()?,
            command_roots: vec![root],
            serving_ca_pins: vec![self.serving_ca_pin()?],
            join_signing_pins: vec![join_signing.verifying_key().pin()],
            node_cas: vec![node_ca.certificate_der().to_vec()],
            issued_at: model::Timestamp::from_micros(0),
        };
        Ok(FleetKeys {
            deployment_id,
            intent,
            node_ca,
            join_signing,
            join_encryption: self.join_encryption()?,
            trust,
        })
    }

    /// What signs SSH certificates for nodes; none in a folder from before there were any.
    pub fn ssh_ca(&self) -> anyhow::Result<Option<SigningKey>> {
        if !self.dir.join(SSH_CA).exists() {
            return Ok(None);
        }
        self.key(SSH_CA).map(Some)
    }

    /// Makes the key that signs SSH certificates, and gives its public half. One that is there stays, unless it is to be
    /// replaced: nodes then go on to trust it while a certificate of it is good.
    pub fn make_ssh_ca(&self, replace: bool) -> anyhow::Result<SshPublicKey> {
        if let Some(key) = self.ssh_ca()?.filter(|_| !replace) {
            return Ok(ssh_ca_public_key(&key));
        }
        let key = SigningKey::generate(&OsEntropy);
        kit::fs::write_atomic(&self.dir.join(SSH_CA), key.to_pkcs8_pem().as_bytes(), 0o600)?;
        Ok(ssh_ca_public_key(&key))
    }

    /// By what secrets are kept. None in a folder of before there were any.
    pub fn secrets_ring(&self) -> anyhow::Result<Option<KekRing>> {
        if !self.dir.join(SECRETS_RING).try_exists()? {
            return Ok(None);
        }
        let text = Zeroizing::new(self.secret(SECRETS_RING)?);
        Ok(Some(KekRing::parse(&text).with_context(|| format!("{SECRETS_RING} is damaged"))?))
    }

    /// Makes the ring, or a further key in it, which seals from now on. The earlier ones stay, for what they sealed.
    pub fn add_secrets_key(&self, rng: &dyn Rng) -> anyhow::Result<KekId> {
        let id = kek_id(rng)?;
        match self.secrets_ring()? {
            None => self.put_key(SECRETS_RING, &KekRing::generate(id.clone(), &OsEntropy).render())?,
            Some(ring) => {
                let ring = ring.with_new(id.clone(), &OsEntropy)?;
                kit::fs::write_atomic(&self.dir.join(SECRETS_RING), ring.render().as_bytes(), 0o600)?;
            }
        }
        Ok(id)
    }

    /// What a gateway presents: its chain, the CA included, so that a node that knows only the pin can check it.
    pub fn gateway(&self) -> anyhow::Result<TlsIdentity> {
        Ok(TlsIdentity {
            chain: vec![self.read("gateway/gateway.crt.der")?, self.read("public/serving-ca.crt.der")?],
            key: self.key("gateway/gateway.key.pem")?,
        })
    }

    /// Judges what this deployment's workers signed. Needs no key that signs.
    pub fn verifier(&self) -> anyhow::Result<CommandVerifier> {
        let root = pki::VerifyingKey::from_spki_der(&self.read("public/command-root.spki.der")?)?;
        Ok(CommandVerifier::new(self.deployment.deployment_id.parse()?, &[root]))
    }

    pub fn node_cas(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        Ok(vec![self.read("public/node-ca.crt.der")?])
    }

    pub fn trust_domain(&self) -> anyhow::Result<TrustDomain> {
        Ok(self.deployment.trust_domain.parse()?)
    }

    pub fn pins(&self) -> anyhow::Result<Pins> {
        let encryption = self.join_encryption()?;
        Ok(Pins {
            serving_ca_pin: self.serving_ca_pin()?.to_string(),
            join_signing_pin: self.key("worker/join-signing.key.pem")?.verifying_key().pin().to_string(),
            join_encryption_pin: encryption.encryption_key().pin().to_string(),
            join_encryption_jwk: serde_json::from_str(&encryption.encryption_key().to_jwk())?,
        })
    }

    /// The pins as `pki init` published them, for a process that holds no worker key.
    pub fn public_pins(&self) -> anyhow::Result<Pins> {
        Ok(serde_json::from_slice(&self.read("public/pins.json")?)?)
    }

    fn serving_ca_pin(&self) -> anyhow::Result<Pin> {
        Ok(Pin::of_spki(&self.read("public/serving-ca.spki.der")?))
    }

    fn join_encryption(&self) -> anyhow::Result<DecryptionKey> {
        Ok(DecryptionKey::from_pkcs8_pem(&self.secret("worker/join-encryption.key.pem")?)?)
    }

    fn key(&self, name: &str) -> anyhow::Result<SigningKey> {
        SigningKey::from_pkcs8_pem(&self.secret(name)?).with_context(|| format!("{name} is damaged"))
    }

    fn secret(&self, name: &str) -> anyhow::Result<String> {
        kit::fs::check_private(&self.dir.join(name))?;
        String::from_utf8(self.read(name)?).with_context(|| format!("{name} is damaged"))
    }

    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        Ok(kit::fs::read_bounded(&self.dir.join(name), FILE_BYTES_MAX)?)
    }

    fn put_key(&self, name: &str, pem: &str) -> anyhow::Result<()> {
        Ok(kit::fs::create_exclusive(&self.dir.join(name), pem.as_bytes(), 0o600)?)
    }

    fn put_public(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(kit::fs::create_exclusive(&self.dir.join(name), bytes, 0o644)?)
    }
}

/// A name that no other key has had.
fn kek_id(rng: &dyn Rng) -> anyhow::Result<KekId> {
    let number: [u8; 6] = rng.bytes();
    Ok(format!("kek-{}", hex::encode(number)).parse()?)
}
