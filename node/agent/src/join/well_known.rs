//! A machine without a configuration asks the control plane for one, at `/.well-known/better-compute`. What comes back is
//! only as good as the pins the operator gave: every pin must be given, and must match.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use pki::Pin;
use pki::seal::EncryptionKey;
use serde::Deserialize;

use crate::config::{Config, InstancesConfig, parse_url};
use crate::journal::{EVENTS_MAX, FILE_BYTES_MAX};

const PATH: &str = "/.well-known/better-compute";
/// A few pins, a key and a URL.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the operator was told out of band. All three are required: taking one from the document would be trust on first
/// use of whoever answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pins {
    pub serving_ca: Vec<Pin>,
    pub join_signing: Vec<Pin>,
    pub join_encryption: Pin,
}

#[derive(Debug, thiserror::Error)]
pub enum WellKnownError {
    #[error("read the server's document: the server is given as https://host[:port]")]
    Server,
    #[error("read the server's document at {url}")]
    Fetch {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("read the server's document at {url}: it answered {status}")]
    Status { url: String, status: u16 },
    #[error("read the server's document: it is larger than 64 KiB")]
    TooLarge,
    #[error("read the server's document: {problem}")]
    Malformed { problem: String },
    #[error("trust the server's document: its {what} is not the one given with {flag}")]
    PinMismatch { what: &'static str, flag: &'static str },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    gateway: GatewayPart,
    join: JoinPart,
    pins: PinsPart,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GatewayPart {
    url: String,
    server_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JoinPart {
    encryption_jwk: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PinsPart {
    serving_ca: Vec<String>,
    join_signing: Vec<String>,
    join_encryption: String,
}

/// A document whose every pin matched.
#[derive(Debug, Clone)]
pub struct WellKnown {
    pub config: Config,
    pub encryption_key: EncryptionKey,
}

/// Fetches the document of `server` (`https://host[:port]`) over `client` and holds it against `pins`.
pub async fn fetch(
    client: &reqwest::Client,
    server: &str,
    pins: &Pins,
    data_dir: PathBuf,
) -> Result<WellKnown, WellKnownError> {
    parse_url(server).map_err(|_| WellKnownError::Server)?;
    let url = format!("{}{PATH}", server.trim_end_matches('/'));
    let failed = |source| WellKnownError::Fetch { url: url.clone(), source };
    let response = client.get(&url).timeout(TIMEOUT).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Err(WellKnownError::Status { url: url.clone(), status: response.status().as_u16() });
    }
    let mut bytes = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(chunk) = body.next().await {
        bytes.extend_from_slice(&chunk.map_err(failed)?);
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(WellKnownError::TooLarge);
        }
    }
    check(&bytes, pins, data_dir)
}

/// Holds a document against the pins and makes a configuration of it.
pub fn check(bytes: &[u8], pins: &Pins, data_dir: PathBuf) -> Result<WellKnown, WellKnownError> {
    let malformed = |problem: &str| WellKnownError::Malformed { problem: problem.to_owned() };
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(WellKnownError::TooLarge);
    }
    let document: Document =
        serde_json::from_slice(bytes).map_err(|err| malformed(&format!("it is not the document: {err}")))?;
    let mut gateway = parse_url(&document.gateway.url)
        .map_err(|problem| malformed(&format!("its gateway.url {problem}")))?;
    if let Some(name) = document.gateway.server_name {
        gateway.server_name = name;
    }
    let encryption_key = EncryptionKey::from_jwk(&document.join.encryption_jwk.to_string())
        .map_err(|_| malformed("its join.encryptionJwk is not a P-256 key"))?;
    let mismatch = |what, flag| WellKnownError::PinMismatch { what, flag };
    same(&document.pins.serving_ca, &pins.serving_ca)
        .then_some(())
        .ok_or(mismatch("serving CA", "--serving-ca-pin"))?;
    same(&document.pins.join_signing, &pins.join_signing)
        .then_some(())
        .ok_or(mismatch("join-signing key", "--join-signing-pin"))?;
    let named = document.pins.join_encryption.parse::<Pin>().ok();
    if encryption_key.pin() != pins.join_encryption || named != Some(pins.join_encryption) {
        return Err(mismatch("join-encryption key", "--join-encryption-pin"));
    }
    let config = Config {
        gateway,
        tunnel_hosts: Vec::new(),
        serving_ca_pins: pins.serving_ca.clone(),
        join_signing_pins: pins.join_signing.clone(),
        join_encryption_key_pin: pins.join_encryption,
        site: None,
        data_dir,
        socket_path: crate::config::SOCKET_PATH.into(),
        journal_file_bytes_max: FILE_BYTES_MAX,
        journal_events_max: EVENTS_MAX,
        log_format: Default::default(),
        log_level: Default::default(),
        instances: InstancesConfig::usual(),
    };
    Ok(WellKnown { config, encryption_key })
}

/// The same set. One more in the document would be a key nobody vouched for, one fewer a rotation the operator's note missed.
fn same(texts: &[String], pins: &[Pin]) -> bool {
    let Ok(mut named) = texts.iter().map(|text| text.parse()).collect::<Result<Vec<Pin>, _>>() else {
        return false;
    };
    let mut given = pins.to_vec();
    named.sort();
    named.dedup();
    given.sort();
    given.dedup();
    !given.is_empty() && named == given
}
