//! Joining: from a token to an identity. The library side of `bcd join`.

mod token;
mod well_known;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kit::fs::{self, FsError};
use kit::{Backoff, Clock, Rng};
use model::{Role, Timestamp};
use pki::join::{JoinPayload, seal_join};
use pki::response::{Expected, ResponseRefused, verify_join_response};
use pki::seal::EncryptionKey;
use pki::{JoinToken, KeyError, Pin, SigningKey};
use wire::limits::TEXT_BYTES_MAX;
use wire::paths::PROTOCOL_MAX;
use wire::proto::agent::{JoinReply, JoinRequest, join_reply};
use zeroize::Zeroizing;

use crate::entropy::RngEntropy;
use crate::identity::{
    FileIdentity, IDENTITY_FILE, Identity, IdentityError, IdentityStore, KEY_FILE, NEXT_KEY_FILE,
};
use crate::journal::{JOURNAL_FILE, Marks};
use crate::link::{Link, LinkError};

pub use token::{TokenError, TokenSource, discard, read_token};
pub use well_known::{Pins, WellKnown, WellKnownError, fetch};

/// The key of a join that has not been answered, so that a retry, also after a restart, asks with the same CSR.
pub const JOIN_KEY_FILE: &str = "join.key";
/// The join key, next to the configuration, so that a later join needs no `--server`.
pub const ENCRYPTION_KEY_FILE: &str = "join-encryption.jwk";

const KEY_BYTES_MAX: u64 = 4096;
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_CEILING: Duration = Duration::from_secs(60);
/// What a deferral may ask us to wait at most.
const DEFERRAL_MAX: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("join")]
    File(#[from] FsError),
    #[error("join")]
    Identity(#[from] IdentityError),
    #[error("join: the join key at {path:?} cannot be used")]
    Key {
        path: PathBuf,
        #[source]
        source: KeyError,
    },
    #[error("join: the join-encryption key is {found}, the configuration pins {pinned}")]
    EncryptionKey { found: Pin, pinned: Pin },
    #[error("join")]
    Link(#[from] LinkError),
    #[error("join: the gateway's answer is empty")]
    Empty,
    #[error("join: the answer is not believed")]
    Response(#[from] ResponseRefused),
    #[error("join: not approved within {} s (request {request_id}); run it again to go on waiting", waited.as_secs())]
    Deferred { request_id: String, waited: Duration },
    #[error("join: this machine is {given}, a {} already; its data directory cannot become a {}", .held.name(), .asked.name())]
    OtherRole { given: String, held: Role, asked: Role },
    #[error("reset: the daemon at {path:?} still runs; stop it first")]
    Running { path: PathBuf },
}

/// What a join asks with.
pub struct JoinParts {
    pub role: Role,
    pub hostname: String,
    pub agent_version: String,
    /// SHA-256 over what identifies the hardware; a hint for people.
    pub hardware_key: Vec<u8>,
    pub data_dir: PathBuf,
    pub join_signing_pins: Vec<Pin>,
    pub encryption_key: EncryptionKey,
    pub encryption_key_pin: Pin,
    /// How long deferrals are waited for.
    pub timeout: Duration,
    pub link: Arc<dyn Link>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

#[derive(Debug)]
pub enum Joined {
    /// This machine had joined before: nothing was asked, no token was needed.
    Already(Box<Identity>),
    Now(Box<Identity>),
}

/// The identity in `data_dir`, when this machine has joined. Called before a token is asked for, so that a join unit may run
/// on every boot.
pub fn joined_before(data_dir: &Path, role: Role) -> Result<Option<Identity>, JoinError> {
    let Some(identity) = FileIdentity::new(data_dir).load()? else { return Ok(None) };
    if identity.role != role {
        let given = identity.node_id.to_string();
        return Err(JoinError::OtherRole { given, held: identity.role, asked: role });
    }
    Ok(Some(identity))
}

/// Joins with `token`. The key that asks is on disk before the first try: whatever ends this, the next call asks with the
/// same CSR, and a join that was approved meanwhile is answered to it.
pub async fn join(parts: &JoinParts, token: &JoinToken) -> Result<Joined, JoinError> {
    if let Some(identity) = joined_before(&parts.data_dir, parts.role)? {
        return Ok(Joined::Already(Box::new(identity)));
    }
    let found = parts.encryption_key.pin();
    if found != parts.encryption_key_pin {
        return Err(JoinError::EncryptionKey { found, pinned: parts.encryption_key_pin });
    }
    fs::create_dir(&parts.data_dir, 0o700)?;
    let key = join_key(parts)?;
    let csr_der = pki::make_csr(&key, &parts.hostname);
    let accepted = ask(parts, token, &csr_der).await?;
    let joined = verify_join_response(
        &accepted,
        &Expected {
            pins: &parts.join_signing_pins,
            csr_der: &csr_der,
            key: key.verifying_key(),
            role: parts.role,
            node_id: None,
            at: parts.clock.now(),
        },
    )?;
    let identity = Identity::from_joined(joined, key, Marks::default());
    // A journal that is here was another node's: its generations and commands say nothing about this one.
    move_aside(&parts.data_dir, JOURNAL_FILE, parts.clock.now())?;
    FileIdentity::new(&parts.data_dir).store(&identity)?;
    fs::remove_if_present(&parts.data_dir.join(JOIN_KEY_FILE))?;
    Ok(Joined::Now(Box::new(identity)))
}

/// The key of the join under way, made when there is none.
fn join_key(parts: &JoinParts) -> Result<SigningKey, JoinError> {
    let path = parts.data_dir.join(JOIN_KEY_FILE);
    if let Some(bytes) = fs::read_if_present(&path, KEY_BYTES_MAX)? {
        let bytes = Zeroizing::new(bytes);
        fs::check_private(&path)?;
        let text = String::from_utf8_lossy(&bytes);
        return SigningKey::from_pkcs8_pem(&text).map_err(|source| JoinError::Key { path, source });
    }
    let key = SigningKey::generate(&RngEntropy(parts.rng.clone()));
    fs::write_atomic(&path, key.to_pkcs8_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Asks until the answer is final, or the time is over.
async fn ask(parts: &JoinParts, token: &JoinToken, csr_der: &[u8]) -> Result<Vec<u8>, JoinError> {
    let started = parts.clock.monotonic();
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_CEILING);
    loop {
        let waited = parts.clock.monotonic().saturating_sub(started);
        let left = parts.timeout.saturating_sub(waited);
        // Sealed again for each try: the seal carries the time.
        let reply = parts.link.join(request(parts, token, csr_der, parts.clock.now())).await;
        let wait = match reply.map(|JoinReply { outcome }| outcome) {
            Ok(Some(join_reply::Outcome::Accepted(accepted))) => return Ok(accepted.value.to_vec()),
            Ok(Some(join_reply::Outcome::Deferred(deferred))) => {
                let request_id = crate::conditions::cut(&deferred.join_request_id);
                if left.is_zero() {
                    return Err(JoinError::Deferred { request_id, waited });
                }
                tracing::info!(request_id, "join waits for approval");
                Duration::from_millis(deferred.retry_after_ms.into()).clamp(RETRY_FIRST, DEFERRAL_MAX)
            }
            Ok(None) => return Err(JoinError::Empty),
            Err(err) if err.refused || left.is_zero() => return Err(err.into()),
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "join failed, trying again");
                err.pushback.unwrap_or_else(|| backoff.next_wait(parts.rng.as_ref()).max(RETRY_FIRST))
            }
        };
        // The last try is at the end of the time, not before it.
        parts.clock.sleep(wait.min(left)).await;
    }
}

fn request(parts: &JoinParts, token: &JoinToken, csr_der: &[u8], issued_at: Timestamp) -> JoinRequest {
    let payload =
        JoinPayload { token: token.clone(), issued_at, hostname: parts.hostname.clone(), role: parts.role };
    let entropy = RngEntropy(parts.rng.clone());
    JoinRequest {
        csr_der: csr_der.to_vec().into(),
        sealed_token: seal_join(&payload, csr_der, &parts.encryption_key, &entropy),
        role: parts.role.name().to_owned(),
        hostname: parts.hostname.chars().take(TEXT_BYTES_MAX / 4).collect(),
        agent_version: parts.agent_version.clone(),
        protocol: PROTOCOL_MAX,
        hardware_key: parts.hardware_key.clone().into(),
    }
}

/// Moves an identity and its journal aside, so that the machine can join again as another node, whose generations start
/// anew. What is held on the machine stays held. Gives back where things went; nothing was there when it is empty.
pub fn reset(data_dir: &Path, socket_path: &Path, now: Timestamp) -> Result<Vec<PathBuf>, JoinError> {
    if std::os::unix::net::UnixStream::connect(socket_path).is_ok() {
        return Err(JoinError::Running { path: socket_path.to_owned() });
    }
    let mut moved = Vec::new();
    // The identity goes first: without it the keys are nobody's.
    for name in [IDENTITY_FILE, KEY_FILE, NEXT_KEY_FILE, JOIN_KEY_FILE, JOURNAL_FILE] {
        moved.extend(move_aside(data_dir, name, now)?);
    }
    if !moved.is_empty() {
        fs::sync_dir(data_dir)?;
    }
    Ok(moved)
}

fn move_aside(data_dir: &Path, name: &str, now: Timestamp) -> Result<Option<PathBuf>, JoinError> {
    let from = data_dir.join(name);
    if !from.exists() {
        return Ok(None);
    }
    let to = data_dir.join(format!("{name}.reset-{}", now.millis()));
    std::fs::rename(&from, &to).map_err(|source| FsError { doing: "move aside", path: from, source })?;
    Ok(Some(to))
}

/// The join key kept next to the configuration, if there is one.
pub fn stored_encryption_key(config_dir: &Path) -> Result<Option<EncryptionKey>, JoinError> {
    let path = config_dir.join(ENCRYPTION_KEY_FILE);
    let Some(bytes) = fs::read_if_present(&path, KEY_BYTES_MAX)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    EncryptionKey::from_jwk(text.trim()).map(Some).map_err(|source| JoinError::Key { path, source })
}

/// Writes what a join from a well-known document leaves: `config.toml` (0600) and the join key (0644) beside it.
pub fn write_config(
    path: &Path,
    config: &crate::config::Config,
    key: &EncryptionKey,
) -> Result<(), JoinError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir(dir, 0o755)?;
    fs::write_atomic(&dir.join(ENCRYPTION_KEY_FILE), format!("{}\n", key.to_jwk()).as_bytes(), 0o644)?;
    Ok(fs::write_atomic(path, crate::config::render(config).as_bytes(), 0o600)?)
}

#[cfg(test)]
mod tests;
