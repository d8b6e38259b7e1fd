//! The keys a worker holds. A gateway holds none of them.

use std::time::Duration;

use model::{DeploymentId, Timestamp};
use pki::ca::CertificateAuthority;
use pki::seal::DecryptionKey;
use pki::trust::TrustBundle;
use pki::worker::{CommandVerifier, IntentSignature, IntentSigner};
use pki::{Purpose, SigningKey};

/// What was signed under a certificate that ends this soon is signed again, when this process's certificate ends later:
/// a node that was away, or lost its journal, takes a spec only under a certificate that is still valid.
pub const SIGN_AGAIN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

pub struct FleetKeys {
    pub deployment_id: DeploymentId,
    /// Signs commands and specs; certified by the command-signing root, which is not here.
    pub intent: IntentSigner,
    /// Issues node certificates.
    pub node_ca: CertificateAuthority,
    /// Signs join responses and trust bundles.
    pub join_signing: SigningKey,
    /// Opens sealed join tokens.
    pub join_encryption: DecryptionKey,
    /// What a joining node is given to trust. Its version and epoch are the stored bundle's.
    pub trust: TrustBundle,
}

/// The worker certificate does not cover the moment: no node would believe a signature made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the control plane's worker certificate is valid from {from} to {to}, not now: certify the worker key again with the command-signing root"
)]
pub struct WorkerKeyOver {
    pub from: Timestamp,
    pub to: Timestamp,
}

impl FleetKeys {
    /// A worker's signature as it is stored and sent. Refused outside the worker certificate's time.
    pub fn sign(&self, purpose: Purpose, body: &[u8], at: Timestamp) -> Result<Vec<u8>, WorkerKeyOver> {
        self.usable(at)?;
        Ok(self.intent.sign(purpose, body).encode())
    }

    /// Whether nodes would believe what is signed now. For a readiness probe too.
    pub fn usable(&self, at: Timestamp) -> Result<(), WorkerKeyOver> {
        let certificate = self.intent.certificate().statement();
        if (certificate.not_before..=certificate.not_after).contains(&at) {
            return Ok(());
        }
        Err(WorkerKeyOver { from: certificate.not_before, to: certificate.not_after })
    }

    /// The last moment of the worker certificate.
    pub fn worker_ends(&self) -> Timestamp {
        self.intent.certificate().statement().not_after
    }

    /// Judges what this deployment's workers signed.
    pub fn verifier(&self) -> CommandVerifier {
        CommandVerifier::new(self.deployment_id, &self.trust.command_roots)
    }

    /// Whether a stored signature is to be made anew: its certificate ends soon, or its root is trusted no more. Only where a
    /// signature of this process would be better, or signing again would never end.
    pub fn should_sign_again(&self, stored: &[u8], at: Timestamp) -> bool {
        let (ours, roots) = (self.intent.certificate(), &self.trust.command_roots);
        let trusted = |id| roots.iter().any(|root| root.key_id() == id);
        if self.usable(at).is_err() || !trusted(ours.root_key_id()) {
            return false;
        }
        let Ok(stored) = IntentSignature::decode(stored) else { return true };
        let ends = stored.worker_certificate.statement().not_after;
        let ends_soon = ends < at.saturating_add(SIGN_AGAIN_BEFORE) && self.worker_ends() > ends;
        ends_soon || !trusted(stored.worker_certificate.root_key_id())
    }
}

impl std::fmt::Debug for FleetKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetKeys").field("deployment_id", &self.deployment_id).finish_non_exhaustive()
    }
}
