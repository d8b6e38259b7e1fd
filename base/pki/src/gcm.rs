//! AES-256-GCM with a 96-bit nonce, as both sealed boxes and stored secrets use it.

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use zeroize::Zeroizing;

pub(crate) const NONCE_BYTES: usize = 12;
pub(crate) const TAG_BYTES: usize = 16;

pub(crate) type Key = Zeroizing<[u8; 32]>;

/// The ciphertext with its 16-byte tag behind it.
pub(crate) fn encrypt(key: &Key, nonce: &[u8; NONCE_BYTES], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    cipher(key)
        .encrypt(&Nonce::from(*nonce), Payload { msg: plaintext, aad })
        .expect("plaintexts are bounded far below the mode's limit")
}

pub(crate) fn decrypt(
    key: &Key,
    nonce: &[u8; NONCE_BYTES],
    aad: &[u8],
    ciphertext: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    cipher(key).decrypt(&Nonce::from(*nonce), Payload { msg: ciphertext, aad }).ok().map(Zeroizing::new)
}

fn cipher(key: &Key) -> Aes256Gcm {
    Aes256Gcm::new_from_slice(key.as_slice()).expect("the key is 32 bytes")
}
