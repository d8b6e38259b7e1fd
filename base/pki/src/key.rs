//! P-256 signing keys, their public halves, and pins.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use p256::SecretKey;
use p256::ecdsa::signature::MultipartSigner;
use p256::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, LineEnding};
use rustls::SignatureScheme;
use rustls::sign::Signer;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, SignatureVerificationAlgorithm, alg_id};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::entropy::{self, Entropy};
use crate::purpose::Purpose;

/// No key in any encoding this crate reads is larger.
pub const KEY_BYTES_MAX: usize = 4096;
/// The length of a P-256 SubjectPublicKeyInfo with an uncompressed point, the only one accepted.
pub const SPKI_BYTES: usize = 91;
/// Of its last part, the point: a byte that says so, x and y.
const POINT_BYTES: usize = 65;
pub const SIGNATURE_BYTES: usize = 64;

/// Why a key or a pin was not read. The text never holds key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("read a private key: it is not one unencrypted PKCS#8 P-256 key")]
    PrivateKey,
    #[error("read a public key: it is not one SubjectPublicKeyInfo of a P-256 point in uncompressed form")]
    PublicKey,
    #[error("read a pin: it is 64 lowercase hexadecimal characters, the SHA-256 of a SubjectPublicKeyInfo")]
    Pin,
    #[error("read a key id: it is 16 lowercase hexadecimal characters")]
    KeyId,
    #[error("read a signature: it is 64 bytes, r and s, with s in the lower half of the order")]
    Signature,
}

/// A signature did not verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("verify a signature made for {purpose:?}")]
pub struct BadSignature {
    pub purpose: Purpose,
}

static THE_SAME_EACH_TIME: AtomicBool = AtomicBool::new(false);

/// From here on every key of this process signs by RFC 6979, which is slower, and the same message has the same signature each
/// time: for simulations, whose bytes are those of their seed. Nothing takes it back.
pub fn sign_the_same_each_time() {
    THE_SAME_EACH_TIME.store(true, Ordering::Relaxed);
}

/// A P-256 private key. Signatures are ECDSA with SHA-256, with s in the lower half of the order; those of one message and
/// purpose differ, unless [`sign_the_same_each_time`] was asked for. Memory is wiped when dropped; `Debug` shows the key id only.
#[derive(Clone)]
pub struct SigningKey {
    inner: p256::ecdsa::SigningKey,
    /// The same key for who signs often: a control plane signs every spec, and this takes a fifth of the time.
    quick: Arc<dyn Signer>,
    public: VerifyingKey,
}

impl SigningKey {
    pub fn generate(entropy: &dyn Entropy) -> Self {
        Self::from_secret(&generate_secret(entropy))
    }

    fn from_secret(secret: &SecretKey) -> Self {
        let inner = p256::ecdsa::SigningKey::from(secret);
        let public = VerifyingKey::from_point(*inner.verifying_key());
        let pkcs8 = secret.to_pkcs8_der().expect("a P-256 key always encodes");
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_bytes()));
        let key = rustls::crypto::ring::sign::any_ecdsa_type(&der).expect("ring reads every P-256 key");
        let signer = key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]);
        Self { inner, quick: signer.expect("a P-256 key signs with SHA-256").into(), public }
    }

    /// Reads `-----BEGIN PRIVATE KEY-----`. Encrypted keys, SEC1 keys and other curves are refused.
    pub fn from_pkcs8_pem(pem: &str) -> Result<Self, KeyError> {
        if pem.len() > KEY_BYTES_MAX {
            return Err(KeyError::PrivateKey);
        }
        let secret = SecretKey::from_pkcs8_pem(pem.trim()).map_err(|_| KeyError::PrivateKey)?;
        Ok(Self::from_secret(&secret))
    }

    pub fn from_pkcs8_der(der: &[u8]) -> Result<Self, KeyError> {
        if der.len() > KEY_BYTES_MAX {
            return Err(KeyError::PrivateKey);
        }
        let secret = SecretKey::from_pkcs8_der(der).map_err(|_| KeyError::PrivateKey)?;
        Ok(Self::from_secret(&secret))
    }

    pub fn to_pkcs8_pem(&self) -> Zeroizing<String> {
        SecretKey::from(&self.inner).to_pkcs8_pem(LineEnding::LF).expect("a P-256 key always encodes")
    }

    pub fn to_pkcs8_der(&self) -> Zeroizing<Vec<u8>> {
        SecretKey::from(&self.inner).to_pkcs8_der().expect("a P-256 key always encodes").to_bytes()
    }

    /// Signs `better-compute/v1/` + purpose + 0x00 + body.
    pub fn sign(&self, purpose: Purpose, body: &[u8]) -> Signature {
        let parts: [&[u8]; 2] = [&purpose.frame(), body];
        match THE_SAME_EACH_TIME.load(Ordering::Relaxed) {
            true => self.sign_parts(&parts),
            false => self.sign_quickly(&parts),
        }
    }

    /// Signs bytes that another standard frames: a certificate, a CSR. Never reachable from outside this crate, where
    /// every signature has a purpose. By RFC 6979: a join that is tried again keeps its CSR, byte for byte.
    pub(crate) fn sign_parts(&self, parts: &[&[u8]]) -> Signature {
        let signature: p256::ecdsa::Signature = self.inner.multipart_sign(parts);
        Signature(signature.normalize_s())
    }

    fn sign_quickly(&self, parts: &[&[u8]]) -> Signature {
        let der =
            self.quick.sign(&parts.concat()).expect("the operating system's random generator does not fail");
        let signature = p256::ecdsa::Signature::from_der(&der).expect("ring signs in DER");
        Signature(signature.normalize_s())
    }

    pub fn verifying_key(&self) -> &VerifyingKey {
        &self.public
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public.key_id())
    }
}

/// A uniformly random P-256 scalar, by rejection: a candidate is out of range once in about 2^32.
pub(crate) fn generate_secret(entropy: &dyn Entropy) -> SecretKey {
    loop {
        let candidate = Zeroizing::new(entropy::bytes::<32>(entropy));
        if let Ok(secret) = SecretKey::from_slice(candidate.as_slice()) {
            return secret;
        }
    }
}

/// A P-256 public key with the one encoding we hash and compare: DER SubjectPublicKeyInfo (RFC 5480), uncompressed.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    inner: p256::ecdsa::VerifyingKey,
    spki: Vec<u8>,
}

impl VerifyingKey {
    pub(crate) fn from_point(inner: p256::ecdsa::VerifyingKey) -> Self {
        let spki = inner.to_public_key_der().expect("a P-256 point always encodes").into_vec();
        Self { inner, spki }
    }

    /// Accepts exactly the encoding `spki_der` gives, so that one key has one pin.
    pub fn from_spki_der(spki: &[u8]) -> Result<Self, KeyError> {
        if spki.len() != SPKI_BYTES {
            return Err(KeyError::PublicKey);
        }
        let inner = p256::ecdsa::VerifyingKey::from_public_key_der(spki).map_err(|_| KeyError::PublicKey)?;
        let key = Self::from_point(inner);
        if key.spki == spki { Ok(key) } else { Err(KeyError::PublicKey) }
    }

    pub fn spki_der(&self) -> &[u8] {
        &self.spki
    }

    pub fn pin(&self) -> Pin {
        Pin::of_spki(&self.spki)
    }

    pub fn key_id(&self) -> KeyId {
        self.pin().key_id()
    }

    /// Verifies a signature over the framed body. A signature with s in the upper half never exists as a `Signature`,
    /// so one message has one valid encoding per nonce.
    pub fn verify(&self, purpose: Purpose, body: &[u8], signature: &Signature) -> Result<(), BadSignature> {
        self.verify_parts(&[&purpose.frame(), body], signature).map_err(|()| BadSignature { purpose })
    }

    pub(crate) fn verify_parts(&self, parts: &[&[u8]], signature: &Signature) -> Result<(), ()> {
        self.verify_by_ring(&parts.concat(), signature.0.to_der().as_bytes())
    }

    /// Verifies a DER signature of a certificate or CSR. Other issuers do not normalise s, so both halves pass.
    pub(crate) fn verify_der(&self, message: &[u8], der: &[u8]) -> Result<(), ()> {
        p256::ecdsa::Signature::from_der(der).map_err(|_| ())?;
        self.verify_by_ring(message, der)
    }

    /// As handshakes do: a gateway does this for every connection and a worker for every report, and it takes a quarter of the time
    /// that `p256` takes.
    fn verify_by_ring(&self, message: &[u8], der: &[u8]) -> Result<(), ()> {
        let point = &self.spki[SPKI_BYTES - POINT_BYTES..];
        ecdsa_p256_sha256().verify_signature(point, message, der).map_err(|_| ())
    }

    pub(crate) fn sec1_uncompressed(&self) -> Vec<u8> {
        self.inner.to_sec1_point(false).as_bytes().to_vec()
    }
}

fn ecdsa_p256_sha256() -> &'static dyn SignatureVerificationAlgorithm {
    static FOUND: OnceLock<&'static dyn SignatureVerificationAlgorithm> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let known = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
        let wanted = (alg_id::ECDSA_P256, alg_id::ECDSA_SHA256);
        let is_it = |one: &&&'static dyn SignatureVerificationAlgorithm| {
            (one.public_key_alg_id(), one.signature_alg_id()) == wanted
        };
        *known.iter().find(is_it).expect("ring verifies P-256 with SHA-256")
    })
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.key_id())
    }
}

/// A raw ECDSA P-256 signature: r and s, 32 bytes each, big-endian, s in the lower half of the order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature(p256::ecdsa::Signature);

impl Signature {
    /// Refuses any length but 64, a zero or out-of-range r or s, and an s in the upper half.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let signature = p256::ecdsa::Signature::from_slice(bytes).map_err(|_| KeyError::Signature)?;
        if signature.normalize_s() == signature { Ok(Self(signature)) } else { Err(KeyError::Signature) }
    }

    /// Takes what a device that does not normalise signed, such as a TPM, into the one form we send.
    pub fn from_device_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let signature = p256::ecdsa::Signature::from_slice(bytes).map_err(|_| KeyError::Signature)?;
        Ok(Self(signature.normalize_s()))
    }

    pub fn to_bytes(&self) -> [u8; SIGNATURE_BYTES] {
        self.0.to_bytes().into()
    }

    pub(crate) fn to_der(self) -> Vec<u8> {
        self.0.to_der().as_bytes().to_vec()
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(64 bytes)")
    }
}

/// SHA-256 of a public key's DER SubjectPublicKeyInfo. Text form: 64 lowercase hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pin([u8; 32]);

impl Pin {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The pin of any SubjectPublicKeyInfo, whatever its algorithm.
    pub fn of_spki(spki: &[u8]) -> Self {
        Self(Sha256::digest(spki).into())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub fn key_id(&self) -> KeyId {
        let mut id = [0u8; 8];
        id.copy_from_slice(&self.0[..8]);
        KeyId(id)
    }
}

/// The first 8 bytes of a pin: which key to try, in logs and headers. It proves nothing. Text form: 16 lowercase
/// hexadecimal characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; 8]);

impl KeyId {
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// Strict lowercase hexadecimal of exactly `N` bytes.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut out = [0u8; N];
    hex::decode_to_slice(text, &mut out).ok()?;
    Some(out)
}

macro_rules! hex_text {
    ($name:ident, $error:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = KeyError;
            fn from_str(text: &str) -> Result<Self, KeyError> {
                parse_hex(text).map(Self).ok_or($error)
            }
        }
    };
}

hex_text!(Pin, KeyError::Pin);
hex_text!(KeyId, KeyError::KeyId);

#[cfg(test)]
mod tests;
