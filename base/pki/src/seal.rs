//! Sealed boxes: JWE compact serialisation (RFC 7516) with ECDH-ES direct agreement on P-256 and A256GCM (RFC 7518).
//! Only the holder of the private key reads one; anyone with the public key makes one, so a box proves no sender.

use std::fmt;

use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey, LineEnding};
use p256::{PublicKey, SecretKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::codec;
use crate::entropy::{self, Entropy};
use crate::gcm;
use crate::key::{KEY_BYTES_MAX, KeyError, KeyId, Pin, VerifyingKey, generate_secret};

/// The largest secret sealed is an instance's user data.
pub const SEALED_PLAINTEXT_BYTES_MAX: usize = 256 * 1024;
/// Base64url of the largest plaintext, and the header beside it.
pub const SEALED_BYTES_MAX: usize = SEALED_PLAINTEXT_BYTES_MAX / 3 * 4 + 2048;
/// Our header is about 250 characters.
const HEADER_CHARS_MAX: usize = 1024;
const KID_CHARS_MAX: usize = 64;

/// Why a box was not opened. Never says more, so that nothing about the plaintext or the key can be learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("open a sealed box: it is longer than {SEALED_BYTES_MAX} characters")]
    TooLong,
    #[error("open a sealed box: it is not a compact JWE of ECDH-ES with A256GCM on P-256")]
    Malformed,
    #[error("open a sealed box: it is sealed for another key or request")]
    OtherRecipient,
    #[error("open a sealed box: it does not decrypt")]
    Refused,
}

/// Why a box was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("seal a box: the plaintext is longer than {SEALED_PLAINTEXT_BYTES_MAX} bytes")]
    TooLong,
    #[error(
        "seal a box: the key id is not 1 to {KID_CHARS_MAX} characters of A-Z, a-z, 0-9, '.', '_' and '-'"
    )]
    KeyId,
}

/// The public half a box is sealed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptionKey(VerifyingKey);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicJwk {
    kty: String,
    crv: String,
    x: String,
    y: String,
}

/// A published key may carry what RFC 7517 lets it; only the point counts.
#[derive(Deserialize)]
struct PublishedJwk {
    kty: String,
    crv: String,
    x: String,
    y: String,
}

impl EncryptionKey {
    pub fn from_spki_der(spki: &[u8]) -> Result<Self, KeyError> {
        VerifyingKey::from_spki_der(spki).map(Self)
    }

    pub fn spki_der(&self) -> &[u8] {
        self.0.spki_der()
    }

    pub fn pin(&self) -> Pin {
        self.0.pin()
    }

    /// What `kid` says for a long-lived key.
    pub fn key_id(&self) -> KeyId {
        self.0.key_id()
    }

    /// The JSON Web Key (RFC 7517): `{"kty":"EC","crv":"P-256","x":…,"y":…}`.
    pub fn to_jwk(&self) -> String {
        String::from_utf8(codec::to_json(&self.jwk())).expect("JSON is UTF-8")
    }

    /// Reads a public P-256 JWK; other members are ignored. The caller compares `pin()` with the one it was given.
    pub fn from_jwk(text: &str) -> Result<Self, KeyError> {
        if text.len() > KEY_BYTES_MAX {
            return Err(KeyError::PublicKey);
        }
        let jwk: PublishedJwk = serde_json::from_str(text).map_err(|_| KeyError::PublicKey)?;
        Self::from_parts(&jwk.kty, &jwk.crv, &jwk.x, &jwk.y).ok_or(KeyError::PublicKey)
    }

    fn jwk(&self) -> PublicJwk {
        let point = self.0.sec1_uncompressed();
        PublicJwk {
            kty: "EC".to_owned(),
            crv: "P-256".to_owned(),
            x: codec::to_base64url(&point[1..33]),
            y: codec::to_base64url(&point[33..]),
        }
    }

    /// Refuses a point that is not on the curve, which is what makes the agreement safe.
    fn from_parts(kty: &str, crv: &str, x: &str, y: &str) -> Option<Self> {
        let (x, y) = (codec::from_base64url(x)?, codec::from_base64url(y)?);
        if kty != "EC" || crv != "P-256" || x.len() != 32 || y.len() != 32 {
            return None;
        }
        let point = [&[0x04], x.as_slice(), y.as_slice()].concat();
        let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(&point).ok()?;
        Some(Self(VerifyingKey::from_point(key)))
    }

    fn public(&self) -> PublicKey {
        PublicKey::from_sec1_bytes(&self.0.sec1_uncompressed())
            .expect("the point was checked when it was read")
    }
}

/// The private half. Used for agreement only, never for signatures; `Debug` shows the key id only.
#[derive(Clone)]
pub struct DecryptionKey {
    secret: SecretKey,
    public: EncryptionKey,
}

impl DecryptionKey {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self::from_secret(generate_secret(entropy))
    }

    fn from_secret(secret: SecretKey) -> Self {
        let public = VerifyingKey::from_point((&secret.public_key()).into());
        Self { secret, public: EncryptionKey(public) }
    }

    pub fn from_pkcs8_pem(pem: &str) -> Result<Self, KeyError> {
        if pem.len() > KEY_BYTES_MAX {
            return Err(KeyError::PrivateKey);
        }
        SecretKey::from_pkcs8_pem(pem.trim()).map(Self::from_secret).map_err(|_| KeyError::PrivateKey)
    }

    pub fn to_pkcs8_pem(&self) -> Zeroizing<String> {
        self.secret.to_pkcs8_pem(LineEnding::LF).expect("a P-256 key always encodes")
    }

    pub fn encryption_key(&self) -> &EncryptionKey {
        &self.public
    }
}

impl fmt::Debug for DecryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecryptionKey({})", self.public.key_id())
    }
}

// Strict: `zip`, `crit`, `apu` and every other member would change what the box means, and we write none of them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    enc: String,
    kid: String,
    epk: PublicJwk,
}

/// Seals `plaintext` to `key`. `kid` tells the recipient which key, and for a one-time key which request, this answers.
pub fn seal(
    plaintext: &[u8],
    key: &EncryptionKey,
    kid: &str,
    entropy: &dyn Entropy,
) -> Result<String, SealError> {
    if plaintext.len() > SEALED_PLAINTEXT_BYTES_MAX {
        return Err(SealError::TooLong);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if kid.is_empty() || kid.len() > KID_CHARS_MAX || !kid.bytes().all(plain) {
        return Err(SealError::KeyId);
    }
    let ephemeral = DecryptionKey::generate(entropy);
    let header = Header {
        alg: "ECDH-ES".to_owned(),
        enc: "A256GCM".to_owned(),
        kid: kid.to_owned(),
        epk: ephemeral.public.jwk(),
    };
    let header = codec::to_base64url(&codec::to_json(&header));
    let content_key = agree(&ephemeral.secret, &key.public());
    let nonce = entropy::bytes(entropy);
    let sealed = gcm::encrypt(&content_key, &nonce, header.as_bytes(), plaintext);
    let (ciphertext, tag) = sealed.split_at(sealed.len() - gcm::TAG_BYTES);
    let encode = codec::to_base64url;
    // Direct agreement has no encrypted key: the second part is empty.
    Ok(format!("{header}..{}.{}.{}", encode(&nonce), encode(ciphertext), encode(tag)))
}

/// Opens a box sealed to `key` under exactly `kid`.
pub fn open(sealed: &str, key: &DecryptionKey, kid: &str) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    if sealed.len() > SEALED_BYTES_MAX {
        return Err(OpenError::TooLong);
    }
    let parts: Vec<&str> = sealed.splitn(6, '.').collect();
    let [header_text, "", nonce, ciphertext, tag] = parts[..] else {
        return Err(OpenError::Malformed);
    };
    let (header, ephemeral) = parse_header(header_text).ok_or(OpenError::Malformed)?;
    if header.kid != kid {
        return Err(OpenError::OtherRecipient);
    }
    let bytes = |text: &str| codec::from_base64url(text).ok_or(OpenError::Malformed);
    let nonce = bytes(nonce)?.try_into().map_err(|_| OpenError::Malformed)?;
    let tag = bytes(tag)?;
    if tag.len() != gcm::TAG_BYTES {
        return Err(OpenError::Malformed);
    }
    let ciphertext = [bytes(ciphertext)?, tag].concat();
    let content_key = agree(&key.secret, &ephemeral.public());
    gcm::decrypt(&content_key, &nonce, header_text.as_bytes(), &ciphertext).ok_or(OpenError::Refused)
}

fn parse_header(text: &str) -> Option<(Header, EncryptionKey)> {
    if text.len() > HEADER_CHARS_MAX {
        return None;
    }
    let header: Header = serde_json::from_slice(&codec::from_base64url(text)?).ok()?;
    let epk = &header.epk;
    let ephemeral = EncryptionKey::from_parts(&epk.kty, &epk.crv, &epk.x, &epk.y)?;
    (header.alg == "ECDH-ES" && header.enc == "A256GCM").then_some((header, ephemeral))
}

fn agree(secret: &SecretKey, public: &PublicKey) -> gcm::Key {
    let shared = secret.diffie_hellman(public);
    concat_kdf::<32>(shared.raw_secret_bytes(), "A256GCM", b"", b"")
}

/// Concat KDF as RFC 7518 section 4.6.2 profiles it, for keys of one hash's length or less: one round of SHA-256 over
/// the round number, Z, and the length-prefixed algorithm, both parties' info and the key length in bits.
fn concat_kdf<const N: usize>(z: &[u8], algorithm: &str, apu: &[u8], apv: &[u8]) -> Zeroizing<[u8; N]> {
    const { assert!(N <= 32) };
    let mut hash = Sha256::new();
    hash.update(1u32.to_be_bytes());
    hash.update(z);
    for part in [algorithm.as_bytes(), apu, apv] {
        hash.update(u32::try_from(part.len()).expect("party info is short").to_be_bytes());
        hash.update(part);
    }
    hash.update((N as u32 * 8).to_be_bytes());
    let digest = Zeroizing::new(<[u8; 32]>::from(hash.finalize()));
    let mut key = Zeroizing::new([0u8; N]);
    key.copy_from_slice(&digest[..N]);
    key
}

#[cfg(test)]
mod tests;
