use std::time::Duration;

use fleet::Fleet;
use fleet::spec::{Assembled, FORGOTTEN_MAX, SpecEpochs, SpecRenewal};
use kernel::Pass;
use kit::OsRng;
use pki::Purpose;
use std::sync::Arc;
use wire::proto::agent::DesiredStateBody;

use crate::machine::Machine;
use crate::world::{self, TokenIs, World, world};

struct Stored {
    body: DesiredStateBody,
    bytes: Vec<u8>,
    signature: Vec<u8>,
    generation: i64,
}

async fn stored(world: &World, machine: &Machine) -> Stored {
    let row = world
        .row(
            "SELECT generation, spec_body, spec_signature FROM nodes WHERE node_id = $1",
            &[&machine.node_id().uuid()],
        )
        .await;
    let bytes: Vec<u8> = row.get("spec_body");
    let body = wire::decode("spec", &bytes, 1 << 20).unwrap();
    Stored { body, bytes, signature: row.get("spec_signature"), generation: row.get("generation") }
}

fn verify(world: &World, stored: &Stored) {
    world
        .verifier()
        .verify_bytes(Purpose::DesiredState, &stored.bytes, &stored.signature, world.now())
        .unwrap();
}

fn hold(world: &World, allocation: &str) {
    world.holds.0.lock().unwrap().push(allocation.to_owned());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_rises_only_when_the_spec_says_something_else() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let node_id = machine.node_id();
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Stored { generation: 1 });
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Unchanged { generation: 1 });
    hold(&world, "alloc_2");
    hold(&world, "alloc_1");
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Stored { generation: 2 });
    // The same in another order is the same.
    world.holds.0.lock().unwrap().reverse();
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Unchanged { generation: 2 });

    let stored = stored(&world, &machine).await;
    verify(&world, &stored);
    assert_eq!((stored.generation, stored.body.generation, stored.body.deployment_epoch), (2, 2, 1));
    assert_eq!(stored.body.node_id, node_id.to_string());
    let spec = stored.body.spec.unwrap();
    assert_eq!(wire::spec::hash(&spec), stored.body.spec_hash);
    let held: Vec<String> =
        spec.devices.unwrap().assignments.into_iter().map(|held| held.allocation_id).collect();
    assert_eq!(held, ["alloc_1", "alloc_2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn passes_at_the_same_time_store_one_generation() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let passes = (0..4).map(|_| world.fleet.assemble(machine.node_id()));
    let found = futures::future::join_all(passes).await;
    let stored = found.iter().filter(|one| matches!(one, Ok(Assembled::Stored { generation: 1 }))).count();
    assert_eq!(stored, 1, "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_adopted_node_has_desired_state() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    for state in ["joined", "revoked", "removed"] {
        world.run("UPDATE nodes SET state = $1", &[&state]).await;
        assert_eq!(world.fleet.assemble(machine.node_id()).await.unwrap(), Assembled::NotServed, "{state}");
    }
    assert_eq!(world.fleet.assemble(world::id()).await.unwrap(), Assembled::NotServed, "unknown");
}

/// Another worker's fleet over the same database: the same deployment under another worker certificate.
fn with_signer(world: &World, lifetime: Duration) -> Fleet {
    let mut keys = world::keys(&world.command_root, world.now(), lifetime);
    keys.deployment_id = world.bundle.deployment_id;
    keys.intent = world::signer(&world.command_root, keys.deployment_id, world.now(), lifetime);
    let contributors: Vec<Arc<dyn kernel::ports::node::SpecContributor>> = vec![world.holds.clone()];
    Fleet::new(
        world.store.clone(),
        Some(keys),
        contributors,
        Vec::new(),
        world.clock.clone(),
        Arc::new(OsRng),
    )
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_is_signed_again_before_its_certificate_ends() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let node_id = machine.node_id();
    let ending = with_signer(&world, 20 * DAY);
    assert_eq!(ending.assemble(node_id).await.unwrap(), Assembled::Stored { generation: 1 });
    // It has nothing better, so it does not go round in circles.
    assert_eq!(ending.assemble(node_id).await.unwrap(), Assembled::Unchanged { generation: 1 });
    world.drop_work().await;
    SpecRenewal(ending).run().await.unwrap();
    assert!(world.woken("node-spec").await.is_empty());

    SpecRenewal(world.fleet.clone()).run().await.unwrap();
    assert_eq!(world.woken("node-spec").await.len(), 1);
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Stored { generation: 2 });
    assert_eq!(world.fleet.assemble(node_id).await.unwrap(), Assembled::Unchanged { generation: 2 });
    verify(&world, &stored(&world, &machine).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_signed_past_the_worker_certificate() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let over = with_signer(&world, DAY);
    assert_eq!(over.signing_problem(world.now()), None);
    world.clock.advance(2 * DAY);
    let problem = over.signing_problem(world.now()).unwrap();
    assert!(problem.contains("certify the worker key again"), "{problem}");
    let fault = over.assemble(machine.node_id()).await.unwrap_err();
    let kernel::Fault::Refused(refused) = fault else { panic!("{fault}") };
    assert_eq!((refused.code, refused.message), (model::ErrorCode::Unavailable, problem));
    assert_eq!(world.count("SELECT count(*) FROM nodes WHERE spec_body IS NOT NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmed_restore_brings_every_spec_under_its_epoch() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.fleet.assemble(machine.node_id()).await.unwrap();
    world.drop_work().await;
    SpecEpochs(world.fleet.clone()).run().await.unwrap();
    assert!(world.woken("node-spec").await.is_empty(), "there was no restore");

    world.pass(10);
    world.run("UPDATE deployment SET epoch = 2, restored_at = compute_now()", &[]).await;
    SpecEpochs(world.fleet.clone()).run().await.unwrap();
    assert_eq!(world.woken("node-spec").await.len(), 1);
    world.pass(1);
    let found = world.fleet.assemble(machine.node_id()).await.unwrap();
    // Above all that the machine may have been told since the backup, also if it cannot say what that was.
    let generation = 1 + FORGOTTEN_MAX;
    assert_eq!(found, Assembled::Stored { generation });
    assert_eq!(stored(&world, &machine).await.body.deployment_epoch, 2);
    let again = world.fleet.assemble(machine.node_id()).await.unwrap();
    assert_eq!(again, Assembled::Unchanged { generation });
    hold(&world, "a");
    let found = world.fleet.assemble(machine.node_id()).await.unwrap();
    assert_eq!(found, Assembled::Stored { generation: generation + 1 });
    // Of one that joined since, nothing was forgotten.
    let late = world.ready("gpu-2").await;
    let found = world.fleet.assemble(late.node_id()).await.unwrap();
    assert_eq!(found, Assembled::Stored { generation: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_no_session_could_carry_is_not_stored() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    hold(&world, &"a".repeat(wire::limits::SPEC_BODY_BYTES_MAX));
    let fault = world.fleet.assemble(machine.node_id()).await.unwrap_err();
    assert!(kit::chain(&fault).contains("may be sent"), "{}", kit::chain(&fault));
    assert_eq!(world.count("SELECT generation FROM nodes").await, 0);
}
