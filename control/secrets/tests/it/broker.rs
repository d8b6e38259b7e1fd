//! What nodes are told, and what not.

use kernel::ports::secrets::{SecretAsk, SecretOutcome, SecretUse};
use model::NodeId;
use pki::OsEntropy;
use pki::seal::{self, DecryptionKey, OpenError};

use crate::world::{World, id, word, world};

const REFUSED: &str = "outbox_events WHERE kind = 'security.secret-refused'";

fn key() -> DecryptionKey {
    DecryptionKey::generate(&OsEntropy)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_runs_what_names_a_secret_is_told_it_and_nobody_else_can_read_the_answer() {
    let world = world().await;
    let secret = world.put("database", "hunter2").await;
    world.uses(secret);
    let (own, other) = (key(), key());
    let ask = world.ask(secret, &own);
    let SecretOutcome::Sealed(sealed) = world.answer(&ask).await else { panic!("it was refused") };
    assert_eq!(seal::open(&sealed, &own, &ask.kid).unwrap().as_slice(), b"hunter2");
    assert_eq!(seal::open(&sealed, &other, &ask.kid), Err(OpenError::Refused));
    assert_eq!(seal::open(&sealed, &own, "another-request"), Err(OpenError::OtherRecipient));
    assert_eq!(world.count("audit WHERE action = 'compute:secrets:release'").await, 1);
    assert_eq!(world.count("secret_requests WHERE outcome = 'released'").await, 1);
    assert_eq!(world.count(REFUSED).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_once() {
    let world = world().await;
    let secret = world.put("database", "hunter2").await;
    world.uses(secret);
    let ask = world.ask(secret, &key());
    assert_eq!(word(&world.answer(&ask).await), "sealed");
    // Whoever sends it again gets no value, and no refusal that would fail the instance.
    assert_eq!(world.answer(&ask).await, SecretOutcome::Later { reason: "replayed" });
    assert_eq!(world.count(REFUSED).await, 1);
}

async fn refused(
    world: &World,
    change: fn(&World, &mut SecretUse),
    change_ask: fn(&mut SecretAsk),
) -> String {
    let secret = world.put("database", "hunter2").await;
    let mut used = world.uses(secret);
    change(world, &mut used);
    *world.uses.0.lock().unwrap() = Some(used);
    let mut ask = world.ask(secret, &key());
    change_ask(&mut ask);
    match world.answer(&ask).await {
        SecretOutcome::Refused { reason, message } => {
            assert!(!message.contains("hunter2"));
            reason.to_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_nodes_to_know_is_refused_and_told() {
    let world = world().await;
    let as_it_is: fn(&mut SecretAsk) = |_| {};
    let node: fn(&World, &mut SecretUse) =
        |world, used| used.place = Some((id::<NodeId>(), world.allocation));
    assert_eq!(refused(&world, node, as_it_is).await, "not-placed");
    assert_eq!(refused(&world, |_, used| used.place = None, as_it_is).await, "not-placed");
    let dead: fn(&World, &mut SecretUse) = |world, used| used.place = Some((world.node, id()));
    assert_eq!(refused(&world, dead, as_it_is).await, "not-placed");
    assert_eq!(refused(&world, |_, used| used.secret_id = None, as_it_is).await, "not-named");
    assert_eq!(refused(&world, |_, _| {}, |ask| ask.secret_id = id()).await, "not-named");
    assert_eq!(refused(&world, |world, used| used.tenant_id = world.other, as_it_is).await, "other-tenant");
    assert_eq!(refused(&world, |_, _| {}, |ask| ask.one_time_key = vec![4; 91]).await, "no-key");
    *world.uses.0.lock().unwrap() = None;
    let nobody = world.ask(id(), &key());
    assert_eq!(word(&world.answer(&nobody).await), "not-placed");
    assert_eq!(world.count("audit WHERE action = 'compute:secrets:release'").await, 0);
    // Once for each reason, however often: placed, named, tenant and key.
    assert_eq!(world.count(REFUSED).await, 4);
    assert_eq!(world.count("audit WHERE action = 'compute:secrets:refuse'").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_gone_is_refused_and_one_that_is_not_needed_any_more_waits() {
    let world = world().await;
    let gone = id();
    world.uses(gone);
    assert_eq!(word(&world.answer(&world.ask(gone, &key())).await), "no-secret");
    let secret = world.put("database", "hunter2").await;
    let going = SecretUse { going: true, ..world.uses(secret) };
    *world.uses.0.lock().unwrap() = Some(going);
    assert_eq!(world.answer(&world.ask(secret, &key())).await, SecretOutcome::Later { reason: "going" });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_asks_without_end_is_told_nothing_for_a_while() {
    let world = world().await;
    let secret = world.put("database", "hunter2").await;
    world.uses(secret);
    let many = format!(
        "INSERT INTO secret_requests (request_id, node_id, secret_id, outcome)
         SELECT gen_random_uuid(), '{}', '{}', 'released' FROM generate_series(1, 240)",
        world.node.uuid(),
        secret.uuid()
    );
    world.db.batch(&many).await;
    assert_eq!(world.answer(&world.ask(secret, &key())).await, SecretOutcome::Later { reason: "rate" });
    world.db.batch("UPDATE secret_requests SET at = at - interval '2 minutes'").await;
    assert_eq!(word(&world.answer(&world.ask(secret, &key())).await), "sealed");
}
