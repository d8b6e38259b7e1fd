//! How values are kept.

use kernel::ports::secrets::{SecretKeeper, SecretOutcome};
use pki::OsEntropy;
use pki::envelope::KekRing;
use pki::seal::DecryptionKey;
use secrets::Broker;
use serde_json::json;

use crate::world::{OP, World, ring, secrets, with_ring, word, world};

async fn pass(secrets: &secrets::Secrets) {
    let module = secrets::module(secrets);
    module.passes[0].run().await.expect("it runs");
}

async fn told(world: &World, secret_id: model::SecretId) -> SecretOutcome {
    world.answer(&world.ask(secret_id, &DecryptionKey::generate(&OsEntropy))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_every_secret_is_wrapped_by_the_newest_key() {
    let first = ring("first");
    let mut world = with_ring(Some(first.clone())).await;
    let id = world.put("database", "hunter2").await;
    world.uses(id);
    let both = first.with_new("second".parse().unwrap(), &OsEntropy).unwrap();
    let rotated = secrets(&world.db, Some(both.clone()));
    assert_eq!(world.count("secrets WHERE kek_id = 'first'").await, 1);
    pass(&rotated).await;
    assert_eq!(world.count("secrets WHERE kek_id = 'second'").await, 1);
    let newest = KekRing::parse(both.render().lines().last().unwrap()).unwrap();
    world.secrets = secrets(&world.db, Some(newest));
    world.broker = Broker::new(world.secrets.clone(), world.uses.clone());
    assert_eq!(word(&told(&world, id).await), "sealed");
    // By a process that has not got the new key yet, nothing is told and nothing is lost.
    world.broker = Broker::new(secrets(&world.db, Some(first)), world.uses.clone());
    assert_eq!(word(&told(&world, id).await), "cannot-be-opened");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_moved_to_another_row_or_tenant_does_not_open_there() {
    let world = world().await;
    let (one, other) = (world.put("one", "hunter2").await, world.put("other", "public").await);
    world.uses(other);
    assert_eq!(word(&told(&world, other).await), "sealed");
    world
        .db
        .batch(&format!(
            "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE secret_id = '{}') WHERE secret_id = '{}'",
            one.uuid(),
            other.uuid()
        ))
        .await;
    assert_eq!(word(&told(&world, other).await), "cannot-be-opened");
    let mut used = world.uses(one);
    used.tenant_id = world.other;
    *world.uses.0.lock().unwrap() = Some(used);
    let moved =
        format!("UPDATE secrets SET tenant_id = '{}' WHERE secret_id = '{}'", world.other.uuid(), one.uuid());
    world.db.batch(&moved).await;
    assert_eq!(word(&told(&world, one).await), "cannot-be-opened");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_instance_has_of_its_own_is_nobodys_to_see_and_goes_with_it() {
    let world = world().await;
    let (keeper, tenant, instance) = (&world.secrets, world.tenant, world.instance);
    let kept = world
        .db
        .store
        .tx(OP, |tx| Box::pin(async move { keeper.keep(tx, tenant, instance, b"#cloud-config").await }));
    let id = kept.await.unwrap();
    assert_eq!(world.call("secrets.list", json!({})).await.ok()["items"], json!([]));
    for method in ["secrets.get", "secrets.delete"] {
        assert_eq!(world.call(method, json!({ "secret": id.to_string() })).await.code(), "NOT_FOUND");
    }
    world.uses(id);
    assert_eq!(word(&told(&world, id).await), "sealed");
    let forgotten = world.db.store.tx(OP, |tx| Box::pin(async move { keeper.forget(tx, instance).await }));
    forgotten.await.unwrap();
    assert_eq!(world.count("secrets").await, 0);
    assert_eq!(word(&told(&world, id).await), "no-secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_another_tenant_is_held_for_nobody() {
    let world = world().await;
    let id = world.put("database", "hunter2").await;
    let keeper = &world.secrets;
    for (tenant, held) in [(world.tenant, true), (world.other, false)] {
        let hold = world.db.store.tx(OP, |tx| Box::pin(async move { keeper.hold(tx, tenant, id).await }));
        assert_eq!(hold.await.unwrap(), held);
    }
    assert_eq!(keeper.named(world.other, "database").await.unwrap(), None);
    assert_eq!(keeper.named(world.tenant, "database").await.unwrap(), Some(id));
}
