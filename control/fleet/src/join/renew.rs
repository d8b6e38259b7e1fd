//! Renewal: the holder of a certificate that still counts proves itself with the old key and gets one for a new key.

use kernel::Fault;
use model::lifecycle::NodeState;
use model::{NodeId, Role, Timestamp};
use pki::identity::PeerIdentity;
use pki::renew::RenewProof;
use prost::Message;
use store::{Row, RowExt, Tx};
use uuid::Uuid;
use wire::limits::CSR_BYTES_MAX;
use wire::proto::agent::{RenewReply, RenewRequest, SignedJoinResponse};

use super::{Answer, Holder, refused};
use crate::core::Fleet;
use crate::sql;

const REQUEST_BYTES_MAX: usize = CSR_BYTES_MAX + 4096;
/// Certificates of a node at one time. An agent renews once or twice a day; this many is one that runs wild.
const CURRENT_MAX: i64 = 32;

impl Fleet {
    pub(super) async fn renew(&self, tx: &mut Tx<'_>, row: &Row) -> Result<Answer, Fault> {
        let request: RenewRequest =
            match wire::decode("renewal request", row.get("request"), REQUEST_BYTES_MAX) {
                Ok(request) => request,
                Err(err) => return refused(err.to_string()),
            };
        let proof = match RenewProof::decode(&request.proof) {
            Ok(proof) => proof,
            Err(err) => return refused(kit::chain(&err)),
        };
        // What the gateway says of the connection and what the old key signed must name one certificate.
        let serial = proof.statement().old_serial.to_string();
        if row.get::<_, Option<&str>>("peer_serial") != Some(serial.as_str()) {
            return refused("the proof names another certificate than the connection's");
        }
        // Under the node's lock, so that a revocation comes wholly before or wholly after: none misses a new certificate.
        let Some(held) = tx.query_opt(&sql::CERT_NODE, &[&serial]).await? else {
            return refused("the certificate is unknown");
        };
        tx.query_opt(&sql::NODE_LOCK, &[&held.get::<_, Uuid>("node_id")]).await?;
        let now = tx.now().await?;
        let Some(cert) = tx.query_opt(&sql::CERT_BY_SERIAL, &[&serial]).await? else {
            return refused("the certificate is unknown");
        };
        let Some(peer) = current_holder(&cert, now) else {
            return refused("the certificate is revoked or expired, or its node is");
        };
        let renewal = match proof.verify(&peer, &request.csr_der, now) {
            Ok(renewal) => renewal,
            Err(err) => return refused(kit::chain(&err)),
        };
        let csr_sha256 = pki::csr::csr_sha256(&request.csr_der);
        let reply: Vec<u8> = match tx.query_opt(&sql::CERT_OF_CSR, &[&csr_sha256.as_slice()]).await? {
            // The answer was lost on its way: the same one again. The key of this connection's own certificate is no new one.
            Some(stored) if renewal.key != peer.key && is_usable(&stored, &peer) => stored.get("reply"),
            Some(_) => return refused("this key was certified before; renew with a new key"),
            None => {
                if self.is_known_key(tx, &renewal.key).await? {
                    return refused("this key was certified before; renew with a new key");
                }
                let node = peer.node_id.uuid();
                let current = tx.query_one(&sql::CERTS_CURRENT, &[&node, &CURRENT_MAX]).await?;
                if current.get::<_, i64>("current") >= CURRENT_MAX {
                    return refused("this node has too many certificates that are still valid");
                }
                let holder = Holder { node_id: peer.node_id, site_id: peer.site_id, role: peer.role };
                self.issue(tx, &holder, &renewal.key, csr_sha256, now).await?
            }
        };
        let renewed = Some(SignedJoinResponse { value: reply.into() });
        Ok(Answer::Reply(RenewReply { renewed }.encode_to_vec()))
    }
}

/// Whether a certificate found by its request may be handed out again: it is this node's, and still counts.
fn is_usable(stored: &Row, peer: &PeerIdentity) -> bool {
    stored.id::<NodeId>("node_id") == peer.node_id
        && stored.opt_ts("revoked_at").is_none()
        && !stored.get::<_, bool>("expired")
}

/// The stored certificate as its holder's identity, when it still counts.
pub(super) fn current_holder(cert: &Row, now: Timestamp) -> Option<PeerIdentity> {
    let state = NodeState::parse(cert.get("state"))?;
    let (not_before, not_after) = (cert.ts("not_before"), cert.ts("not_after"));
    let counts = cert.opt_ts("revoked_at").is_none()
        && !matches!(state, NodeState::Revoked | NodeState::Removed)
        && (not_before..=not_after).contains(&now);
    if !counts {
        return None;
    }
    Some(PeerIdentity {
        node_id: cert.id("node_id"),
        site_id: cert.id("site_id"),
        role: Role::parse(cert.get("role"))?,
        serial: cert.get::<_, &str>("serial").parse().ok()?,
        not_before,
        not_after,
        key: pki::VerifyingKey::from_spki_der(cert.get("spki_der")).ok()?,
    })
}
