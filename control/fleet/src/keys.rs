//! The keys a worker holds. A gateway holds none of them.

use model::DeploymentId;
use pki::ca::CertificateAuthority;
use pki::seal::DecryptionKey;
use pki::trust::TrustBundle;
use pki::worker::IntentSigner;
use pki::{Purpose, SigningKey};

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

impl FleetKeys {
    /// A worker's signature as it is stored and sent.
    pub fn sign(&self, purpose: Purpose, body: &[u8]) -> Vec<u8> {
        self.intent.sign(purpose, body).encode()
    }
}

impl std::fmt::Debug for FleetKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetKeys").field("deployment_id", &self.deployment_id).finish_non_exhaustive()
    }
}
