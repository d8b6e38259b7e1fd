//! Keys, signatures with a purpose, certificates and sealed boxes.

pub mod ca;
mod codec;
pub mod csr;
pub mod entropy;
mod gcm;
pub mod identity;
pub mod join;
pub mod key;
pub mod purpose;
pub mod renew;
pub mod response;
pub mod seal;
pub mod signed;
pub mod spiffe;
pub mod tls;
pub mod token;
pub mod trust;
pub mod worker;
mod x509;

#[cfg(test)]
mod testing;

pub use codec::DecodeError;
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use key::{KeyError, KeyId, Pin, Signature, SigningKey, VerifyingKey};
pub use purpose::Purpose;
