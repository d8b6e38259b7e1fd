//! Keys and certificates that every process of a run makes for itself and that are the same in each.

use std::time::Duration;

use model::{NodeId, Role, SiteId, Timestamp};
use pki::ca::{CertificateAuthority, IssuedCertificate, Validity};
use pki::tls::TlsIdentity;
use pki::{NodeName, SeededEntropy, SigningKey};
use uuid::Uuid;

pub const TRUST_DOMAIN: &str = "bench.test";
const A_DAY: Duration = Duration::from_secs(86_400);

pub struct Node {
    pub node_id: NodeId,
    pub serial: String,
    pub certificate: IssuedCertificate,
    pub identity: TlsIdentity,
}

pub fn serving_ca(at: Timestamp) -> anyhow::Result<CertificateAuthority> {
    authority(1, at)
}

pub fn node_ca(at: Timestamp) -> anyhow::Result<CertificateAuthority> {
    authority(2, at)
}

fn authority(seed: u64, at: Timestamp) -> anyhow::Result<CertificateAuthority> {
    Ok(CertificateAuthority::create("bench CA", Validity::starting(at, A_DAY), &SeededEntropy::new(seed))?)
}

pub fn node(number: u64, ca: &CertificateAuthority, at: Timestamp) -> anyhow::Result<Node> {
    let entropy = SeededEntropy::new(1_000 + number);
    let node_id = NodeId::from_uuid(Uuid::from_u128(u128::from(number) + 1));
    let key = SigningKey::generate(&entropy);
    let site_id = SiteId::from_uuid(Uuid::from_u128(1));
    let name = NodeName { trust_domain: TRUST_DOMAIN.parse()?, site_id, role: Role::Node, node_id };
    let leaf = ca.issue_node(&name, key.verifying_key(), at, &entropy)?;
    let identity = TlsIdentity { chain: vec![leaf.der.clone()], key };
    Ok(Node { node_id, serial: leaf.serial.to_string(), certificate: leaf, identity })
}

pub fn server(at: Timestamp) -> anyhow::Result<TlsIdentity> {
    let (ca, entropy) = (serving_ca(at)?, SeededEntropy::new(3));
    let key = SigningKey::generate(&entropy);
    let leaf =
        ca.issue_serving(&["127.0.0.1"], key.verifying_key(), Validity::starting(at, A_DAY), &entropy)?;
    Ok(TlsIdentity { chain: vec![leaf.der, ca.certificate_der().to_vec()], key })
}
