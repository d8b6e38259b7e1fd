//! Fixtures of this crate's own tests.

use std::time::Duration;

use model::{DeploymentId, NodeId, Role, SiteId, Timestamp};

use crate::ca::{CertificateAuthority, Validity};
use crate::spiffe::{NodeName, TrustDomain};
use crate::trust::TrustBundle;
use crate::{SeededEntropy, SigningKey};

/// Seconds after a fixed moment in 2026.
pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_772_323_200_000).saturating_add(Duration::from_secs(seconds))
}

macro_rules! nth {
    ($($name:ident -> $id:ident),*) => {$(
        pub(crate) fn $name(n: u128) -> $id {
            // Through the text form, which needs no UUID crate here.
            let digits: String = format!("{n:0>26}");
            format!("{}{digits}", <$id as model::Id>::PREFIX).parse().expect("decimal digits are in the alphabet")
        }
    )*};
}

nth!(deployment -> DeploymentId, node -> NodeId, site -> SiteId);

pub(crate) fn trust_domain() -> TrustDomain {
    "example.test".parse().expect("a fixed trust domain")
}

pub(crate) fn node_name(n: u128) -> NodeName {
    NodeName { trust_domain: trust_domain(), site_id: site(1), role: Role::Node, node_id: node(n) }
}

/// An authority valid for ten years from `at(0)`.
pub(crate) fn authority(name: &str, seed: u64) -> CertificateAuthority {
    let validity = Validity::starting(at(0), Duration::from_secs(3650 * 86400));
    CertificateAuthority::create(name, validity, &SeededEntropy::new(seed)).expect("fixed parameters")
}

/// A bundle signed and pinned by `join_key`, with the node CA `authority("node CA", 1)`.
pub(crate) fn bundle(join_key: &SigningKey) -> TrustBundle {
    TrustBundle {
        version: 1,
        deployment_id: deployment(1),
        deployment_epoch: 1,
        trust_domain: trust_domain(),
        command_roots: vec![SigningKey::generate(&SeededEntropy::new(90)).verifying_key().clone()],
        serving_ca_pins: vec![authority("serving CA", 2).pin()],
        join_signing_pins: vec![join_key.verifying_key().pin()],
        node_cas: vec![authority("node CA", 1).certificate_der().to_vec()],
        issued_at: at(0),
    }
}
