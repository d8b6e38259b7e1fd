//! Secrets at rest. Each record has its own data key, wrapped by a key-encryption key that lives in a file beside the
//! server, never in the database: a copied database gives nothing away, and rotation rewraps without touching contents.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

use crate::codec::{self, DecodeError, Reader};
use crate::entropy::{self, Entropy};
use crate::gcm::{self, NONCE_BYTES, TAG_BYTES};

/// More than a rotation ever leaves behind.
pub const KEKS_MAX: usize = 32;
/// What a row may hold: the largest secret is an instance's user data.
pub const ENVELOPE_PLAINTEXT_BYTES_MAX: usize = 256 * 1024;
/// Names a row and a column, so it is short.
pub const CONTEXT_BYTES_MAX: usize = 512;

const ENVELOPE_BYTES_MAX: usize = ENVELOPE_PLAINTEXT_BYTES_MAX + 256;
const RING_BYTES_MAX: usize = 8 * 1024;
const KEY_BYTES: usize = 32;
const WRAPPED_BYTES: usize = KEY_BYTES + TAG_BYTES;
const VERSION: u8 = 1;
const LINE_PREFIX: &str = "kek1";

/// The name of a key-encryption key: 1 to 32 characters of a-z, 0-9 and '-'. Stored in every record; not a secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KekId(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read a key-encryption key's name: it is 1 to 32 characters of a-z, 0-9 and '-'")]
pub struct KekIdError;

impl FromStr for KekId {
    type Err = KekIdError;

    fn from_str(text: &str) -> Result<Self, KekIdError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > 32 || !text.bytes().all(plain) {
            return Err(KekIdError);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for KekId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A ring file does not parse. Says which line, never what is on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    #[error("read a key ring: line {line} is not {LINE_PREFIX:?}, a name and 43 characters of base64url")]
    Line { line: usize },
    #[error("read a key ring: key {id} is listed twice")]
    Twice { id: KekId },
    #[error(
        "read a key ring: it lists no key, more than {KEKS_MAX}, or is longer than {RING_BYTES_MAX} bytes"
    )]
    Size,
}

/// Why a record was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("open a stored secret")]
    Malformed(#[from] DecodeError),
    #[error("open a stored secret: its key {id} is not in the ring")]
    UnknownKek { id: KekId },
    #[error("open a stored secret: it was changed, or belongs to another record")]
    Refused,
    #[error("store a secret: it is longer than {ENVELOPE_PLAINTEXT_BYTES_MAX} bytes")]
    TooLong,
    #[error("store or open a secret: the context is longer than {CONTEXT_BYTES_MAX} bytes")]
    Context,
}

#[derive(Clone)]
struct Kek {
    id: KekId,
    key: gcm::Key,
}

/// The key-encryption keys, oldest first. Opens with any, seals with the newest.
///
/// File format: UTF-8 lines, `kek1 <name> <32 bytes in base64url>`, oldest first; blank lines and lines that start with
/// `#` are skipped. Rotation appends a line, rewraps every record, then drops the older lines.
#[derive(Clone)]
pub struct KekRing {
    keks: Vec<Kek>,
}

impl KekRing {
    /// A ring of one new key.
    pub fn generate(id: KekId, entropy: &dyn Entropy) -> Self {
        Self { keks: vec![new_kek(id, entropy)] }
    }

    /// The ring with one more key, which seals from now on.
    pub fn with_new(&self, id: KekId, entropy: &dyn Entropy) -> Result<Self, RingError> {
        let mut keks = self.keks.clone();
        keks.push(new_kek(id, entropy));
        Self::checked(keks)
    }

    pub fn parse(text: &str) -> Result<Self, RingError> {
        if text.len() > RING_BYTES_MAX {
            return Err(RingError::Size);
        }
        let mut keks = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            keks.push(parse_line(line).ok_or(RingError::Line { line: index + 1 })?);
        }
        Self::checked(keks)
    }

    fn checked(keks: Vec<Kek>) -> Result<Self, RingError> {
        if keks.is_empty() || keks.len() > KEKS_MAX {
            return Err(RingError::Size);
        }
        for (index, kek) in keks.iter().enumerate() {
            if keks[..index].iter().any(|other| other.id == kek.id) {
                return Err(RingError::Twice { id: kek.id.clone() });
            }
        }
        Ok(Self { keks })
    }

    /// The file's text.
    pub fn render(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(self.keks.len() * 96));
        for kek in &self.keks {
            let key = Zeroizing::new(codec::to_base64url(kek.key.as_slice()));
            for part in [LINE_PREFIX, " ", &kek.id.0, " ", &key, "\n"] {
                text.push_str(part);
            }
        }
        text
    }

    pub fn newest(&self) -> &KekId {
        &self.newest_kek().id
    }

    fn newest_kek(&self) -> &Kek {
        self.keks.last().expect("a ring is never empty")
    }

    /// Seals a secret for `context`, which names the record and its column; it opens for no other.
    pub fn seal(
        &self,
        plaintext: &[u8],
        context: &str,
        entropy: &dyn Entropy,
    ) -> Result<Vec<u8>, EnvelopeError> {
        if plaintext.len() > ENVELOPE_PLAINTEXT_BYTES_MAX {
            return Err(EnvelopeError::TooLong);
        }
        check_context(context)?;
        let mut data_key = Zeroizing::new([0u8; KEY_BYTES]);
        entropy.fill(data_key.as_mut_slice());
        let mut out = wrap(self.newest_kek(), &data_key, context, entropy);
        let nonce = entropy::bytes(entropy);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&gcm::encrypt(&data_key, &nonce, &data_aad(context), plaintext));
        Ok(out)
    }

    pub fn open(&self, record: &[u8], context: &str) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
        check_context(context)?;
        let envelope = Envelope::parse(record)?;
        let data_key = self.unwrap_key(&envelope, context)?;
        gcm::decrypt(&data_key, &envelope.nonce, &data_aad(context), envelope.ciphertext)
            .ok_or(EnvelopeError::Refused)
    }

    /// The record under the newest key, or `None` when it already is. The content is not decrypted.
    pub fn rewrap(
        &self,
        record: &[u8],
        context: &str,
        entropy: &dyn Entropy,
    ) -> Result<Option<Vec<u8>>, EnvelopeError> {
        check_context(context)?;
        let envelope = Envelope::parse(record)?;
        if envelope.kek_id == *self.newest() {
            return Ok(None);
        }
        let data_key = self.unwrap_key(&envelope, context)?;
        let mut out = wrap(self.newest_kek(), &data_key, context, entropy);
        out.extend_from_slice(&envelope.nonce);
        out.extend_from_slice(envelope.ciphertext);
        Ok(Some(out))
    }

    /// Tells equal contents from different ones, for whoever has the ring and for nobody else: of a password that could be
    /// guessed, a plain hash would be as good as the password. Another one after a rotation.
    pub fn mark(&self, content: &[u8], context: &str) -> Result<[u8; 32], EnvelopeError> {
        check_context(context)?;
        // A key of its own, which seals nothing.
        let key =
            Zeroizing::new(hmac(self.newest_kek().key.as_slice(), &[b"better-compute/v1/envelope-mark"]));
        Ok(hmac(key.as_slice(), &[context.as_bytes(), b"\0", content]))
    }

    fn unwrap_key(&self, envelope: &Envelope<'_>, context: &str) -> Result<gcm::Key, EnvelopeError> {
        let kek = self
            .keks
            .iter()
            .find(|kek| kek.id == envelope.kek_id)
            .ok_or_else(|| EnvelopeError::UnknownKek { id: envelope.kek_id.clone() })?;
        let aad = key_aad(&kek.id, context);
        let unwrapped = gcm::decrypt(&kek.key, &envelope.wrap_nonce, &aad, envelope.wrapped)
            .ok_or(EnvelopeError::Refused)?;
        let mut key = Zeroizing::new([0u8; KEY_BYTES]);
        key.copy_from_slice(&unwrapped);
        Ok(key)
    }
}

impl fmt::Debug for KekRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keks.iter().map(|kek| &kek.id.0)).finish()
    }
}

/// Which key a record is wrapped by, for finding what a rotation still has to rewrap.
pub fn kek_id_of(record: &[u8]) -> Result<KekId, DecodeError> {
    Envelope::parse(record).map(|envelope| envelope.kek_id)
}

/// A record's bytes: 0x01, the length of the name (1), the name, the wrap's nonce (12), the wrapped data key with its
/// tag (48), the content's nonce (12), the content with its tag (the rest).
struct Envelope<'a> {
    kek_id: KekId,
    wrap_nonce: [u8; NONCE_BYTES],
    wrapped: &'a [u8],
    nonce: [u8; NONCE_BYTES],
    ciphertext: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn parse(record: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::versioned("stored secret", record, ENVELOPE_BYTES_MAX, VERSION)?;
        let [len] = reader.array()?;
        let kek_id = std::str::from_utf8(reader.take(len.into())?)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| reader.error("its key's name is not one"))?;
        Ok(Self {
            kek_id,
            wrap_nonce: reader.array()?,
            wrapped: reader.take(WRAPPED_BYTES)?,
            nonce: reader.array()?,
            ciphertext: reader.rest(),
        })
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn new_kek(id: KekId, entropy: &dyn Entropy) -> Kek {
    let mut key = Zeroizing::new([0u8; KEY_BYTES]);
    entropy.fill(key.as_mut_slice());
    Kek { id, key }
}

fn parse_line(line: &str) -> Option<Kek> {
    let mut words = line.split_ascii_whitespace();
    let (prefix, id, text) = (words.next()?, words.next()?, words.next()?);
    if prefix != LINE_PREFIX || words.next().is_some() {
        return None;
    }
    let id = id.parse().ok()?;
    let mut bytes = codec::from_base64url(text)?;
    let mut key = Zeroizing::new([0u8; KEY_BYTES]);
    let fits = bytes.len() == KEY_BYTES;
    if fits {
        key.copy_from_slice(&bytes);
    }
    bytes.zeroize();
    fits.then_some(Kek { id, key })
}

/// The front of a record, up to the wrapped key.
fn wrap(kek: &Kek, data_key: &gcm::Key, context: &str, entropy: &dyn Entropy) -> Vec<u8> {
    let nonce = entropy::bytes(entropy);
    let mut out = vec![VERSION, u8::try_from(kek.id.0.len()).expect("a name is at most 32 bytes")];
    out.extend_from_slice(kek.id.0.as_bytes());
    out.extend_from_slice(&nonce);
    out.extend_from_slice(&gcm::encrypt(&kek.key, &nonce, &key_aad(&kek.id, context), data_key.as_slice()));
    out
}

fn check_context(context: &str) -> Result<(), EnvelopeError> {
    if context.len() > CONTEXT_BYTES_MAX { Err(EnvelopeError::Context) } else { Ok(()) }
}

/// `better-compute/v1/envelope-key`, a zero, the key's name, a zero, the context.
fn key_aad(id: &KekId, context: &str) -> Vec<u8> {
    [b"better-compute/v1/envelope-key\0", id.0.as_bytes(), b"\0", context.as_bytes()].concat()
}

/// `better-compute/v1/envelope-data`, a zero, the context. Without the key's name, so that rewrapping leaves it alone.
fn data_aad(context: &str) -> Vec<u8> {
    [b"better-compute/v1/envelope-data\0", context.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
