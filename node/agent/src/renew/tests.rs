use super::*;
use crate::link::memory::MemoryLink;
use crate::testing::{CERTIFICATE_LIFETIME, Deployment, at};
use model::Role;
use pki::SeededEntropy;
use std::sync::Arc;
use wire::proto::agent::RenewReply;

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

#[test]
fn a_day_is_renewed_after_fourteen_hours() {
    let due = due(at(0), at(0).saturating_add(CERTIFICATE_LIFETIME));
    assert_eq!(due, at(24 * 3600 * 6 / 10));
}

#[test]
fn the_gateway_sees_a_proof_by_the_old_key_over_the_new_one() {
    let deployment = Arc::new(Deployment::new(1));
    let identity = deployment.identity(5);
    let trust = deployment.trust().node_trust().unwrap();
    let peer = pki::PeerIdentity::from_certificate_der(&identity.chain[0], &trust, at(0)).unwrap();
    let (link, _sessions) = MemoryLink::new();
    let link = link.on_renew({
        let deployment = deployment.clone();
        move |request| {
            let proof = RenewProof::decode(&request.proof).unwrap();
            let renewal = proof.verify(&peer, &request.csr_der, at(100)).unwrap();
            assert_ne!(renewal.key, peer.key, "the key is new");
            let renewed = deployment.admit(5, Role::Node, &request.csr_der, at(100));
            Ok(RenewReply { renewed: Some(renewed) })
        }
    });
    let renewed = run(renew(&link, &identity, &SeededEntropy::new(3), at(100))).unwrap();
    assert_eq!(renewed.node_id, identity.node_id);
    assert_ne!(renewed.key.verifying_key(), identity.key.verifying_key());
    assert!(renewed.not_after > identity.not_after);
}

#[test]
fn an_answer_for_another_node_or_key_is_refused() {
    let deployment = Arc::new(Deployment::new(1));
    let identity = deployment.identity(5);
    type Answer = Box<dyn Fn(&Deployment, &[u8]) -> wire::proto::agent::SignedJoinResponse + Send + Sync>;
    let answers: Vec<(&str, Answer)> = vec![
        ("another node", Box::new(|deployment, csr| deployment.admit(6, Role::Node, csr, at(100)))),
        ("another role", Box::new(|deployment, csr| deployment.admit(5, Role::Site, csr, at(100)))),
        ("another deployment", Box::new(|_, csr| Deployment::new(2).admit(5, Role::Node, csr, at(100)))),
        (
            "another request",
            Box::new(|deployment, _| {
                let key = SigningKey::generate(&SeededEntropy::new(8));
                deployment.admit(5, Role::Node, &pki::make_csr(&key, "x"), at(100))
            }),
        ),
    ];
    for (name, answer) in answers {
        let (link, _sessions) = MemoryLink::new();
        let deployment = deployment.clone();
        let link = link
            .on_renew(move |request| Ok(RenewReply { renewed: Some(answer(&deployment, &request.csr_der)) }));
        let result = run(renew(&link, &identity, &SeededEntropy::new(3), at(100)));
        assert!(matches!(result, Err(RenewError::Refused(_))), "{name}");
    }
    let (link, _sessions) = MemoryLink::new();
    let link = link.on_renew(|_| Ok(RenewReply { renewed: None }));
    assert!(matches!(run(renew(&link, &identity, &SeededEntropy::new(3), at(100))), Err(RenewError::Empty)));
}

#[test]
fn a_bundle_taken_meanwhile_is_not_undone_by_the_answer() {
    let mut deployment = Deployment::new(1);
    let older = deployment.identity(5);
    deployment.trust_version = 2;
    let newer = deployment.identity(5);
    assert_eq!(take(&newer, older.clone()).trust.version, 2);
    assert_eq!(take(&older, newer).trust.version, 2);
}
