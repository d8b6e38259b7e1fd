use fleet::spec::{Assembled, FORGOTTEN_MAX};
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use store::RowExt;
use wire::proto::agent::DesiredStateBody;

use crate::machine::Machine;
use crate::world::{self, World, world};

/// The database as after a gateway refused a Hello that was ahead.
async fn claim(world: &World, machine: &Machine, generation: i64, epoch: i64, body: &[u8], signature: &[u8]) {
    let params: [&(dyn store::Param + Sync); 5] =
        [&machine.node_id().uuid(), &generation, &epoch, &body, &signature];
    world.store.execute(&fleet::delivery::sql::RESTORE_CLAIM, &params).await.unwrap();
    world.fleet.observe(machine.node_id()).await.unwrap();
}

fn spec(machine: &Machine, generation: u64, epoch: u64) -> Vec<u8> {
    DesiredStateBody {
        node_id: machine.node_id().to_string(),
        generation,
        deployment_epoch: epoch,
        ..DesiredStateBody::default()
    }
    .encode_to_vec()
}

/// What a worker of this deployment once signed.
fn ours(world: &World, body: &[u8]) -> Vec<u8> {
    let signer = world::signer(&world.command_root, world.bundle.deployment_id, world.now(), world::YEAR);
    signer.sign(Purpose::DesiredState, body).encode()
}

async fn observe_only(world: &World) -> bool {
    world.row("SELECT observe_only FROM deployment", &[]).await.get(0)
}

async fn quarantined(world: &World) -> Option<String> {
    world.row("SELECT quarantine_reason FROM nodes", &[]).await.get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_signature_over_newer_intent_stops_the_deployment() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let body = spec(&machine, 9, 3);
    let signature = ours(&world, &body);
    claim(&world, &machine, 9, 3, &body, &signature).await;
    assert!(observe_only(&world).await);
    assert_eq!(quarantined(&world).await, None);
    let told = world.events("security.restore-suspected").await;
    assert_eq!((told[0]["generation"].as_u64(), told[0]["epoch"].as_u64()), (Some(9), Some(3)));
    let floor: i64 = world.row("SELECT epoch_floor FROM deployment", &[]).await.get(0);
    assert_eq!(floor, 3, "a confirmation goes above it");

    claim(&world, &machine, 9, 3, &body, &signature).await;
    assert_eq!(world.events("security.restore-suspected").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_restore_is_confirmed_the_node_is_led_on_and_not_suspected_again() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let late = world.ready("gpu-2").await;
    world.fleet.assemble(late.node_id()).await.unwrap();
    world.pass(1);
    let body = spec(&machine, 9, 1);
    let signature = ours(&world, &body);
    claim(&world, &machine, 9, 1, &body, &signature).await;
    world.drop_work().await;
    let confirmed: Option<i64> = world
        .store
        .tx(store::Op::new("confirm"), |tx| Box::pin(store::restore::confirm_restore(tx)))
        .await
        .unwrap();
    assert_eq!(confirmed, Some(2));

    // It says Hello again before its spec was made anew.
    claim(&world, &machine, 9, 1, &body, &signature).await;
    assert_eq!(world.woken("node-spec").await.len(), 1);
    // One that was away until now says so for the first time, when its spec is under the new epoch already: only what it
    // proved makes that anew.
    world.pass(1);
    let found = world.fleet.assemble(late.node_id()).await.unwrap();
    assert_eq!(found, Assembled::Stored { generation: 1 + FORGOTTEN_MAX });
    let held = 7 + FORGOTTEN_MAX;
    let body = spec(&late, held, 1);
    let signature = ours(&world, &body);
    claim(&world, &late, i64::try_from(held).unwrap(), 1, &body, &signature).await;
    assert_eq!(world.woken("node-spec").await.len(), 2);
    assert!(!observe_only(&world).await, "the restore is known");
    assert_eq!(world.events("node.quarantined").await.len(), 0);
    for (machine, generation) in [(&machine, 9 + FORGOTTEN_MAX), (&late, held + 1)] {
        let found = world.fleet.assemble(machine.node_id()).await.unwrap();
        assert_eq!(found, Assembled::Stored { generation });
        let found = world.fleet.assemble(machine.node_id()).await.unwrap();
        assert_eq!(found, Assembled::Unchanged { generation });
    }
    assert_eq!(world.count("SELECT count(*) FROM restore_claims").await, 0);

    let bundles = "SELECT count(*) FROM trust_bundles";
    assert_eq!(world.count(bundles).await, 1);
    for _ in 0..2 {
        kernel::Pass::run(&fleet::spec::SpecEpochs(world.fleet.clone())).await.unwrap();
        assert_eq!(world.count(bundles).await, 2, "what nodes trust is of the new epoch, once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_proof_silences_only_its_node() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let other = world.ready("gpu-2").await;
    let body = spec(&machine, 9, 1);
    let foreign_root = SigningKey::generate(&OsEntropy);
    let foreign = world::signer(&foreign_root, world.bundle.deployment_id, world.now(), world::YEAR)
        .sign(Purpose::DesiredState, &body)
        .encode();
    let of_other = spec(&other, 9, 1);
    let old = spec(&machine, 0, 1);
    for (what, shown, signature) in [
        ("nothing", Vec::new(), Vec::new()),
        ("no signature", body.clone(), Vec::new()),
        ("another root's", body.clone(), foreign),
        ("another node's", of_other.clone(), ours(&world, &of_other)),
        ("an older one", old.clone(), ours(&world, &old)),
        ("garbage", b"\xff".to_vec(), ours(&world, b"\xff")),
    ] {
        world.run("UPDATE nodes SET quarantined_at = NULL, quarantine_reason = NULL", &[]).await;
        claim(&world, &machine, 9, 1, &shown, &signature).await;
        assert!(!observe_only(&world).await, "{what}");
        let row =
            world.row("SELECT quarantine_reason FROM nodes WHERE quarantined_at IS NOT NULL", &[]).await;
        assert!(row.get::<_, &str>(0).contains("claims newer intent"), "{what}");
    }
    assert_eq!(world.events("node.quarantined").await.len(), 6);
    let heard = world.heard("listener").await;
    assert!(heard.iter().filter(|what| *what == "schedulable").count() >= 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_ahead_ends_the_quarantine() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    claim(&world, &machine, 9, 1, b"", b"").await;
    assert!(quarantined(&world).await.is_some());
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert!(quarantined(&world).await.is_some(), "nothing new was heard");
    world.pass(5);
    world
        .run(
            "INSERT INTO node_sessions (node_id, gateway_id, gateway_epoch, session_epoch, cert_serial, journal_id,
               incarnation_id, boot_id) VALUES ($1, $1, 1, 1, 'serial', $1, $1, 'boot')",
            &[&machine.node_id().uuid()],
        )
        .await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(quarantined(&world).await, None);
    let told = world.events("node.quarantined").await;
    assert_eq!(
        told.iter().map(|one| one["quarantined"].as_bool().unwrap()).collect::<Vec<_>>(),
        [true, false]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_we_caught_up_with_is_forgotten() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.fleet.assemble(machine.node_id()).await.unwrap();
    claim(&world, &machine, 1, 1, b"", b"").await;
    assert_eq!(quarantined(&world).await, None);
    assert!(world.row("SELECT quarantined_at FROM nodes", &[]).await.opt_ts("quarantined_at").is_none());
    assert_eq!(world.count("SELECT count(*) FROM restore_claims").await, 0);
}
