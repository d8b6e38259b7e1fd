//! A body with the key that signed it and the signature: what travels when the reader knows only the signer's pin.

use crate::codec::{DecodeError, Reader};
use crate::key::{Pin, SIGNATURE_BYTES, SPKI_BYTES, Signature, SigningKey, VerifyingKey};
use crate::purpose::Purpose;

/// Holds a join response with a trust bundle of hundreds of keys; far below any message limit of the transport.
pub const SIGNED_BYTES_MAX: usize = 256 * 1024;

const VERSION: u8 = 1;

/// Why a signed message was not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignedRefused {
    #[error("believe a {purpose} message: its signer {signer} is none of the pinned keys")]
    UnknownSigner { purpose: Purpose, signer: Pin },
    #[error("believe a {purpose} message: the signature does not verify")]
    BadSignature { purpose: Purpose },
}

/// A signed body. Bytes: 0x01, the signer's SPKI (91), the signature (64), the body (the rest).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedMessage {
    pub signer: VerifyingKey,
    pub signature: Signature,
    /// Exactly what was signed: it is never re-encoded before it is verified.
    pub body: Vec<u8>,
}

impl SignedMessage {
    pub fn sign(key: &SigningKey, purpose: Purpose, body: Vec<u8>) -> Self {
        Self { signer: key.verifying_key().clone(), signature: key.sign(purpose, &body), body }
    }

    /// The body, once its signer is one of `pins` and the signature verifies for `purpose`.
    pub fn verify(&self, purpose: Purpose, pins: &[Pin]) -> Result<&[u8], SignedRefused> {
        let signer = self.signer.pin();
        if !pins.contains(&signer) {
            return Err(SignedRefused::UnknownSigner { purpose, signer });
        }
        self.signer
            .verify(purpose, &self.body, &self.signature)
            .map_err(|_| SignedRefused::BadSignature { purpose })?;
        Ok(&self.body)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + SPKI_BYTES + SIGNATURE_BYTES + self.body.len());
        out.push(VERSION);
        out.extend_from_slice(self.signer.spki_der());
        out.extend_from_slice(&self.signature.to_bytes());
        out.extend_from_slice(&self.body);
        out
    }

    /// Reads the bytes without believing them.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::versioned("signed message", bytes, SIGNED_BYTES_MAX, VERSION)?;
        let signer = VerifyingKey::from_spki_der(reader.take(SPKI_BYTES)?)
            .map_err(|_| reader.error("its signer is not a P-256 key"))?;
        let signature = Signature::from_bytes(reader.take(SIGNATURE_BYTES)?)
            .map_err(|_| reader.error("its signature is not one"))?;
        Ok(Self { signer, signature, body: reader.rest().to_vec() })
    }
}

#[cfg(test)]
mod tests;
