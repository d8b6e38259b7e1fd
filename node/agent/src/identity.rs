//! Who this node is: its key and certificate, what it trusts, and the marks mirrored from the journal.
//!
//! Two files: `identity.json` and `node.key`, both 0600. A renewal must swap both and can swap only one at a time, so the
//! new key is written beside the old one first, then `identity.json` names it by its pin, then it takes the old one's
//! name. Whatever the crash, the key that `identity.json` names is there under one of the two names.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use kit::fs::{self, FsError};
use model::{NodeId, Role, SiteId, Timestamp};
use pki::{Pin, Serial, SignedMessage, SigningKey, TrustBundle};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::journal::Marks;
use crate::link::Credentials;

pub const IDENTITY_FILE: &str = "identity.json";
pub const KEY_FILE: &str = "node.key";
/// The next key, until `identity.json` names it and it takes over `node.key`.
pub const NEXT_KEY_FILE: &str = "node.key.next";

/// A bundle of 64 keys and a chain of 4 certificates stay far below.
const IDENTITY_BYTES_MAX: u64 = 1 << 20;
const KEY_BYTES_MAX: u64 = 4096;

/// Everything a node is. Cheap to clone, apart from the certificates.
#[derive(Debug, Clone)]
pub struct Identity {
    pub node_id: NodeId,
    pub site_id: SiteId,
    pub role: Role,
    pub key: SigningKey,
    /// DER, the node's certificate first.
    pub chain: Vec<Vec<u8>>,
    pub serial: Serial,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub trust: TrustBundle,
    /// The bundle as it was signed.
    pub signed_trust: Bytes,
    pub marks: Marks,
}

impl Identity {
    /// What a believed join response makes this node.
    pub fn from_joined(joined: pki::response::Joined, key: SigningKey, marks: Marks) -> Self {
        let pki::response::Joined { response, bundle, identity } = joined;
        let server_time_ms = u64::try_from(response.served_at.millis()).unwrap_or(0);
        let deployment_epoch = response.deployment_epoch;
        Self {
            node_id: response.node_id,
            site_id: response.site_id,
            role: response.role,
            key,
            chain: response.chain,
            serial: identity.serial,
            not_before: identity.not_before,
            not_after: identity.not_after,
            signed_trust: response.trust_bundle.encode().into(),
            trust: bundle,
            marks: marks.max(Marks { server_time_ms, deployment_epoch, generation: 0 }),
        }
    }

    pub fn credentials(&self) -> Credentials {
        Credentials {
            chain: self.chain.clone().into(),
            key: self.key.clone(),
            serving_ca_pins: self.trust.serving_ca_pins.clone().into(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("keep the node's identity")]
    File(#[from] FsError),
    #[error("read {path:?}: {problem}; to start over run: bcd join --reset --yes, then bcd join")]
    Malformed { path: PathBuf, problem: String },
    #[error(
        "load the node's identity: no key in {dir:?} is the one its certificate names; to start over run: bcd join \
         --reset --yes, then bcd join"
    )]
    KeyMissing { dir: PathBuf },
}

/// Keeps an identity. `store` is atomic: after a crash `load` gives the old one or the new one, whole.
pub trait IdentityStore: Send + Sync + 'static {
    fn load(&self) -> Result<Option<Identity>, IdentityError>;
    fn store(&self, identity: &Identity) -> Result<(), IdentityError>;
}

/// In a data directory.
#[derive(Debug, Clone)]
pub struct FileIdentity {
    dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IdentityJson {
    v: u32,
    node_id: String,
    site_id: String,
    role: String,
    /// Pin of the key in `node.key`.
    key_pin: String,
    certificate_chain: Vec<String>,
    serial: String,
    not_before: String,
    not_after: String,
    trust_bundle: String,
    marks: MarksJson,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MarksJson {
    server_time_ms: u64,
    generation: u64,
    deployment_epoch: u64,
}

impl FileIdentity {
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    fn read_key(&self, name: &str) -> Result<Option<SigningKey>, IdentityError> {
        let path = self.dir.join(name);
        let Some(bytes) = fs::read_if_present(&path, KEY_BYTES_MAX)? else { return Ok(None) };
        let bytes = Zeroizing::new(bytes);
        fs::check_private(&path)?;
        let malformed = |problem: String| IdentityError::Malformed { path: path.clone(), problem };
        let text = std::str::from_utf8(&bytes).map_err(|_| malformed("it is not text".into()))?;
        SigningKey::from_pkcs8_pem(text).map(Some).map_err(|err| malformed(err.to_string()))
    }

    /// The key with this pin, brought back under its name when a crash left it beside.
    fn key_with(&self, pin: Pin) -> Result<SigningKey, IdentityError> {
        // A half-written next key is not a reason to refuse the current one.
        if let Some(key) = self.read_key(KEY_FILE)?.filter(|key| key.verifying_key().pin() == pin) {
            return Ok(key);
        }
        let next = self.read_key(NEXT_KEY_FILE)?.filter(|key| key.verifying_key().pin() == pin);
        let key = next.ok_or_else(|| IdentityError::KeyMissing { dir: self.dir.clone() })?;
        self.promote()?;
        Ok(key)
    }

    fn promote(&self) -> Result<(), IdentityError> {
        let (from, to) = (self.dir.join(NEXT_KEY_FILE), self.dir.join(KEY_FILE));
        std::fs::rename(&from, &to)
            .map_err(|source| FsError { doing: "rename", path: from, source })
            .map_err(IdentityError::from)?;
        Ok(fs::sync_dir(&self.dir)?)
    }
}

impl IdentityStore for FileIdentity {
    fn load(&self) -> Result<Option<Identity>, IdentityError> {
        let path = self.dir.join(IDENTITY_FILE);
        let Some(bytes) = fs::read_if_present(&path, IDENTITY_BYTES_MAX)? else { return Ok(None) };
        let malformed = |problem: String| IdentityError::Malformed { path: path.clone(), problem };
        let json: IdentityJson = serde_json::from_slice(&bytes).map_err(|err| malformed(err.to_string()))?;
        let key_pin: Pin = json.key_pin.parse().map_err(|_| malformed("its key pin is not one".into()))?;
        let key = self.key_with(key_pin)?;
        parse(&json, key).map(Some).map_err(|problem| malformed(problem.to_owned()))
    }

    fn store(&self, identity: &Identity) -> Result<(), IdentityError> {
        fs::create_dir(&self.dir, 0o700)?;
        let pin = identity.key.verifying_key().pin();
        let current = self.read_key(KEY_FILE)?.is_some_and(|key| key.verifying_key().pin() == pin);
        if !current {
            fs::write_atomic(&self.dir.join(NEXT_KEY_FILE), identity.key.to_pkcs8_pem().as_bytes(), 0o600)?;
        }
        let json =
            serde_json::to_vec_pretty(&render(identity)).expect("structs of texts and numbers serialise");
        fs::write_atomic(&self.dir.join(IDENTITY_FILE), &json, 0o600)?;
        if current { Ok(()) } else { self.promote() }
    }
}

fn render(identity: &Identity) -> IdentityJson {
    IdentityJson {
        v: 1,
        node_id: identity.node_id.to_string(),
        site_id: identity.site_id.to_string(),
        role: identity.role.name().to_owned(),
        key_pin: identity.key.verifying_key().pin().to_string(),
        certificate_chain: identity.chain.iter().map(|der| BASE64.encode(der)).collect(),
        serial: identity.serial.to_string(),
        not_before: identity.not_before.to_string(),
        not_after: identity.not_after.to_string(),
        trust_bundle: BASE64.encode(&identity.signed_trust),
        marks: MarksJson {
            server_time_ms: identity.marks.server_time_ms,
            generation: identity.marks.generation,
            deployment_epoch: identity.marks.deployment_epoch,
        },
    }
}

/// The identity, given the key that the file names.
fn parse(json: &IdentityJson, key: SigningKey) -> Result<Identity, &'static str> {
    if json.v != 1 {
        return Err("its version is not one this build reads");
    }
    let chain: Vec<Vec<u8>> = json
        .certificate_chain
        .iter()
        .map(|text| BASE64.decode(text).map_err(|_| "a certificate in it is not base64"))
        .collect::<Result<_, _>>()?;
    if chain.is_empty() {
        return Err("it holds no certificate");
    }
    let signed = BASE64.decode(&json.trust_bundle).map_err(|_| "its trust bundle is not base64")?;
    let message = SignedMessage::decode(&signed).map_err(|_| "its trust bundle is not a signed message")?;
    // Believed when it was stored; the directory is this machine's own.
    let trust = TrustBundle::parse(&message.body).map_err(|_| "its trust bundle cannot be read")?;
    Ok(Identity {
        node_id: json.node_id.parse().map_err(|_| "its node id is not one")?,
        site_id: json.site_id.parse().map_err(|_| "its site id is not one")?,
        role: Role::parse(&json.role).ok_or("its role is not one")?,
        key,
        chain,
        serial: json.serial.parse().map_err(|_| "its serial is not one")?,
        not_before: json.not_before.parse().map_err(|_| "a time in it is not RFC 3339")?,
        not_after: json.not_after.parse().map_err(|_| "a time in it is not RFC 3339")?,
        trust,
        signed_trust: signed.into(),
        marks: Marks {
            server_time_ms: json.marks.server_time_ms,
            generation: json.marks.generation,
            deployment_epoch: json.marks.deployment_epoch,
        },
    })
}

/// In memory, for simulations: survives the agent, not the process.
#[derive(Debug, Clone, Default)]
pub struct MemoryIdentity(Arc<Mutex<Option<Identity>>>);

impl MemoryIdentity {
    pub fn holding(identity: Identity) -> Self {
        Self(Arc::new(Mutex::new(Some(identity))))
    }
}

impl IdentityStore for MemoryIdentity {
    fn load(&self) -> Result<Option<Identity>, IdentityError> {
        Ok(self.0.lock().expect("no holder of this lock panics").clone())
    }

    fn store(&self, identity: &Identity) -> Result<(), IdentityError> {
        *self.0.lock().expect("no holder of this lock panics") = Some(identity.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
