//! Keys, signatures with a purpose, certificates, tokens and sealed boxes.
//!
//! Everything here is a function of its arguments: times are given, random bytes come from an [`Entropy`] that is
//! given, and nothing touches a socket or a file. The one exception is the TLS handshake, see [`tls`].
//!
//! Every format is versioned, bounded by a constant beside its code, and read strictly. Keys are P-256 throughout.
//!
//! | What | Text or bytes | Where |
//! |---|---|---|
//! | signed message | `better-compute/v1/` + purpose + 0x00 + body | [`purpose`] |
//! | signature | r and s, 64 bytes, ECDSA with SHA-256, low s | [`key`] |
//! | public key | DER SubjectPublicKeyInfo, 91 bytes, uncompressed point | [`key`] |
//! | private key | PKCS#8, PEM or DER, unencrypted | [`key`] |
//! | pin | SHA-256 of the SPKI, 64 lowercase hexadecimal characters | [`key`] |
//! | key id | first 8 bytes of the pin, 16 hexadecimal characters | [`key`] |
//! | signed message with its signer | 0x01, SPKI (91), signature (64), body | [`signed`] |
//! | worker certificate | 0x01, root key id (8), signature (64), JSON `{v, deploymentId, spki, notBefore, notAfter}` | [`worker`] |
//! | intent signature | 0x01, signature (64), worker certificate | [`worker`] |
//! | trust bundle | signed message of JSON `{v, version, deploymentId, deploymentEpoch, trustDomain, …}` | [`trust`] |
//! | node name | `spiffe://<trust domain>/site/<site id>/<role>/<node id>` | [`spiffe`] |
//! | certificate serial | 128 bits, 32 hexadecimal characters | [`ca`] |
//! | node certificate | X.509 v3, 24 h, clientAuth, one URI name | [`ca`], [`identity`] |
//! | CSR | PKCS#10 DER | [`csr`] |
//! | sealed box | JWE compact, ECDH-ES, A256GCM | [`seal`] |
//! | join | sealed box of JSON `{v, token, csrSha256, issuedAt, hostname, role}` | [`join`] |
//! | join response | signed message of JSON `{v, nodeId, siteId, role, certificateChain, csrSha256, trustBundle, …}` | [`response`] |
//! | renewal proof | 0x01, signature (64), JSON `{v, nodeId, csrSha256, oldSerial, at, nonce}` | [`renew`] |
//! | API token | `bct_<token id>_<43 characters>` | [`token`] |
//! | join token | `bcjt_<join token id>_<43 characters>` | [`token`] |
//! | stored secret | 0x01, name length, name, nonce (12), wrapped key (48), nonce (12), ciphertext | [`envelope`] |
//! | key ring file | lines `kek1 <name> <base64url of 32 bytes>`, newest last | [`envelope`] |
//! | SSH principal | `<account>@<node id>` | [`ssh`] |
//! | SSH user certificate | OpenSSH `-cert.pub` line, at most 24 h | [`ssh`] |
//! | SSH revocation list | OpenSSH KRL, format version 1 | [`ssh`] |
//!
//! JSON is compact, keys and certificates in it are base64url without padding, times are RFC 3339, and a signature
//! covers the bytes as they travel: nothing is re-encoded before it is verified. Statements refuse unknown members;
//! what the control plane tells an older agent (trust bundles, join responses) ignores them, because refusing would
//! keep the agent from trust it needs.

pub mod ca;
mod codec;
pub mod csr;
pub mod entropy;
pub mod envelope;
mod gcm;
pub mod identity;
pub mod join;
pub mod key;
pub mod purpose;
pub mod redact;
pub mod renew;
pub mod response;
pub mod seal;
pub mod signed;
pub mod spiffe;
pub mod ssh;
pub mod tls;
pub mod token;
pub mod trust;
pub mod worker;
mod x509;

#[cfg(test)]
mod testing;

pub use ca::{CertificateAuthority, IssuedCertificate, Serial, Validity};
pub use codec::DecodeError;
pub use csr::{csr_sha256, make_csr, verify_csr};
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use identity::{NodeTrust, PeerIdentity};
pub use key::{KeyError, KeyId, Pin, Signature, SigningKey, VerifyingKey, sign_the_same_each_time};
pub use purpose::Purpose;
pub use redact::{looks_like_secret, redact};
pub use signed::SignedMessage;
pub use spiffe::{NodeName, TrustDomain};
pub use token::{ApiToken, JoinToken, TokenHash};
pub use trust::TrustBundle;
pub use worker::{CommandVerifier, IntentSignature, IntentSigner, SignatureRefused, WorkerCertificate};
