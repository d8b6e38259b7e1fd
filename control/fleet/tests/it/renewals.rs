use pki::renew::{RenewProof, RenewStatement};
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use std::time::Duration;
use store::{Op, StoreError, sql};
use wire::proto::agent::{FreshBinding, FreshStatement, RenewRequest};

use crate::machine::Machine;
use crate::world::{TokenIs, World, world};

fn next() -> (SigningKey, Vec<u8>) {
    let key = SigningKey::generate(&OsEntropy);
    let csr = pki::make_csr(&key, "next");
    (key, csr)
}

async fn renew(world: &World, machine: &Machine, request: &[u8]) -> Result<Vec<u8>, String> {
    world.ask("renew", request, Some(&machine.serial())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_key_gets_a_certificate_for_a_new_one() {
    let world = world().await;
    let mut machine = world.joined("gpu-1", TokenIs::default()).await;
    let (node_id, serial) = (machine.node_id(), machine.serial());
    let (key, csr) = next();
    let request = machine.renewal(&world, &csr);
    let reply = renew(&world, &machine, &request).await.unwrap();
    assert_eq!(renew(&world, &machine, &request).await.unwrap(), reply, "a lost answer is given again");
    machine.renewed(&world, key, csr, &reply);
    assert_eq!(machine.node_id(), node_id);
    assert_ne!(machine.serial(), serial);
    assert_eq!(world.count("SELECT count(*) FROM node_certs").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_takes_the_old_keys_word_for_this_very_request() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let (_, csr) = next();

    let bare = RenewRequest { csr_der: csr.clone().into(), proof: Vec::new().into() }.encode_to_vec();
    assert!(renew(&world, &machine, &bare).await.is_err(), "no proof");

    let serial = machine.joined.as_ref().unwrap().identity.serial;
    let statement = RenewStatement::new(machine.node_id(), &csr, serial, world.now(), &OsEntropy);
    let forged = RenewProof::sign(&SigningKey::generate(&OsEntropy), statement.clone()).encode();
    let forged = RenewRequest { csr_der: csr.clone().into(), proof: forged.into() }.encode_to_vec();
    assert!(renew(&world, &machine, &forged).await.unwrap_err().contains("does not verify"));

    let (_, other) = next();
    let proof = RenewProof::sign(&machine.key, statement).encode();
    let replayed = RenewRequest { csr_der: other.into(), proof: proof.into() }.encode_to_vec();
    assert!(renew(&world, &machine, &replayed).await.unwrap_err().contains("another CSR"));

    let request = machine.renewal(&world, &csr);
    let elsewhere = world.ask("renew", &request, Some("0123456789abcdef0123456789abcdef")).await;
    assert!(elsewhere.unwrap_err().contains("another certificate"), "over another connection");
    assert_eq!(world.count("SELECT count(*) FROM node_certs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_certified_before_is_not_a_new_one() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let other = world.joined("gpu-2", TokenIs::default()).await;
    for (csr, whose) in [
        (machine.csr.clone(), "its own request again"),
        (pki::make_csr(&machine.key, "renamed"), "its own key"),
        (other.csr.clone(), "another node's request"),
        (pki::make_csr(&other.key, "renamed"), "another node's key"),
    ] {
        let refused = renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap_err();
        assert!(refused.contains("certified before"), "{whose}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_or_expired_certificate_renews_nothing() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let (_, csr) = next();
    world.run("UPDATE node_certs SET revoked_at = compute_now()", &[]).await;
    assert!(renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap_err().contains("revoked"));
    world.run("UPDATE node_certs SET revoked_at = NULL", &[]).await;
    world.run("UPDATE nodes SET state = 'revoked'", &[]).await;
    assert!(renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap_err().contains("revoked"));
    world.run("UPDATE nodes SET state = 'joined'", &[]).await;
    world.pass(25 * 3600);
    assert!(renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap_err().contains("expired"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_renews_without_end_is_stopped() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    for _ in 0..31 {
        let (_, csr) = next();
        renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap();
    }
    let (_, csr) = next();
    let refused = renew(&world, &machine, &machine.renewal(&world, &csr)).await.unwrap_err();
    assert!(refused.contains("too many certificates"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_node_gets_its_spec_bound_to_its_question() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let asked = FreshStatement {
        node_id: machine.node_id().to_string(),
        nonce: vec![9; 32].into(),
        ..FreshStatement::default()
    };
    let refused = world.ask("fresh", &asked.encode_to_vec(), None).await.unwrap_err();
    assert!(refused.contains("no spec"), "{refused}");
    world.fleet.assemble(machine.node_id()).await.unwrap();

    let reply = world.ask("fresh", &asked.encode_to_vec(), None).await.unwrap();
    let binding: FreshBinding = wire::decode("binding", &reply, 4096).unwrap();
    let signature = binding.signature.unwrap().value;
    world
        .verifier()
        .verify_bytes(Purpose::DeploymentEpoch, &binding.statement, &signature, world.now())
        .unwrap();
    let bound: FreshStatement = wire::decode("statement", &binding.statement, 4096).unwrap();
    assert_eq!((bound.nonce.as_ref(), bound.generation, bound.deployment_epoch), ([9; 32].as_slice(), 1, 1));

    world.run("UPDATE nodes SET quarantined_at = compute_now()", &[]).await;
    assert!(world.ask("fresh", &asked.encode_to_vec(), None).await.is_err(), "quarantined");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_waits_for_a_revocation_under_way() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let (_, csr) = next();
    let request = machine.renewal(&world, &csr);
    let under_way = &tokio::sync::Notify::new();
    let revoked = world.store.tx(Op::new("revoke"), |tx| {
        Box::pin(async {
            tx.execute(&sql("revoke_node", "UPDATE nodes SET state = 'revoked'"), &[]).await?;
            tx.execute(&sql("revoke_certs", "UPDATE node_certs SET revoked_at = compute_now()"), &[]).await?;
            under_way.notify_one();
            // Not committed before the renewal stands behind it.
            testkit::eventually(Duration::from_secs(10), || async {
                let waiting = "SELECT count(*) FROM pg_stat_activity
                               WHERE datname = current_database() AND wait_event_type = 'Lock'";
                if world.count(waiting).await > 0 { Ok(()) } else { Err("a renewal that does not wait") }
            })
            .await;
            Ok::<_, StoreError>(())
        })
    });
    let renewed = async {
        under_way.notified().await;
        renew(&world, &machine, &request).await
    };
    let (revoked, renewed) = tokio::join!(revoked, renewed);
    revoked.unwrap();
    assert!(renewed.unwrap_err().contains("revoked"));
    assert_eq!(world.count("SELECT count(*) FROM node_certs WHERE revoked_at IS NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_observes_renews_and_lets_nobody_new_in() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    world
        .run(
            "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()",
            &[],
        )
        .await;
    let (_, csr) = next();
    assert!(renew(&world, &machine, &machine.renewal(&world, &csr)).await.is_ok());
    let token = world.token(TokenIs::default()).await;
    let refused = world.join(&Machine::new("gpu-2"), &token).await.unwrap_err();
    assert!(refused.contains("only observes"), "{refused}");
    let asked = FreshStatement { node_id: machine.node_id().to_string(), ..FreshStatement::default() };
    let refused = world.ask("fresh", &asked.encode_to_vec(), None).await.unwrap_err();
    assert!(refused.contains("only observes"), "{refused}");
}
