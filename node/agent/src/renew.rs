//! The next certificate, long before the current one ends: a new key, vouched for by the old one.

use std::time::Duration;

use model::Timestamp;
use pki::renew::{RenewProof, RenewStatement};
use pki::response::{Expected, ResponseRefused, verify_join_response};
use pki::{Entropy, SigningKey};
use wire::proto::agent::RenewRequest;

use crate::identity::Identity;
use crate::link::{Link, LinkError};

/// Waits between failed renewals. A day's certificate leaves nine hours for them.
pub const RETRY_FIRST: Duration = Duration::from_secs(30);
pub const RETRY_CEILING: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, thiserror::Error)]
pub enum RenewError {
    #[error("renew the certificate")]
    Link(#[from] LinkError),
    #[error("renew the certificate: the gateway answered with nothing")]
    Empty,
    #[error("renew the certificate")]
    Refused(#[from] ResponseRefused),
}

/// When to renew: at 60% of the lifetime.
pub fn due(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    not_before.saturating_add(not_after.since(not_before).mul_f64(0.6))
}

/// When a certificate that was still not renewed is worth a person's attention: at 80%, after hours of tries.
pub fn late(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    not_before.saturating_add(not_after.since(not_before).mul_f64(0.8))
}

/// Asks for the next certificate for a new key. The identity that comes back replaces nothing yet: the caller makes it
/// durable first, and keeps the old key and certificate until then. `at` is server time.
pub async fn renew(
    link: &dyn Link,
    identity: &Identity,
    entropy: &dyn Entropy,
    at: Timestamp,
) -> Result<Identity, RenewError> {
    let key = SigningKey::generate(entropy);
    let csr_der = pki::make_csr(&key, &identity.node_id.to_string());
    let statement = RenewStatement::new(identity.node_id, &csr_der, identity.serial, at, entropy);
    let proof = RenewProof::sign(&identity.key, statement).encode();
    let request = RenewRequest { csr_der: csr_der.clone().into(), proof: proof.into() };
    let reply = link.renew(&identity.credentials(), request).await?;
    let renewed = reply.renewed.ok_or(RenewError::Empty)?;
    let joined = verify_join_response(
        &renewed.value,
        &Expected {
            pins: &identity.trust.join_signing_pins,
            csr_der: &csr_der,
            key: key.verifying_key(),
            role: identity.role,
            node_id: Some(identity.node_id),
            at,
        },
    )?;
    Ok(take(identity, Identity::from_joined(joined, key, identity.marks)))
}

/// The renewed identity, with whichever trust bundle is newer: an answer may have crossed one taken on the session.
pub fn take(held: &Identity, mut renewed: Identity) -> Identity {
    let newer = pki::SignedMessage::decode(&renewed.signed_trust)
        .map_err(pki::trust::TrustRefused::from)
        .and_then(|message| held.trust.replaced_by(&message));
    if !matches!(newer, Ok(Some(_))) {
        renewed.trust = held.trust.clone();
        renewed.signed_trust = held.signed_trust.clone();
    }
    renewed.marks = renewed.marks.max(held.marks);
    renewed
}

#[cfg(test)]
mod tests;
