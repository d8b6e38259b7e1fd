use model::JoinRequestId;
use pki::OsEntropy;
use pki::join::seal_join;
use store::RowExt;
use wire::proto::agent::join_reply::Outcome;

use crate::machine::Machine;
use crate::world::{TokenIs, World, world};

const UNKNOWN: &str = "the join token is unknown, expired or revoked";
const USED_UP: &str = "the join token has been used as often as it may be";

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_joins_and_believes_the_answer() {
    let world = world().await;
    let machine = world.joined("gpu-1.example.com", TokenIs::default()).await;
    let row = world.row("SELECT name, hostname, state, pool_id, hardware_key FROM nodes", &[]).await;
    assert_eq!((row.get("name"), row.get("hostname")), ("gpu-1", "gpu-1.example.com"));
    assert_eq!(row.get::<_, &str>("state"), "joined");
    assert_eq!(row.get::<_, Option<&[u8]>>("hardware_key"), Some([7; 32].as_slice()));
    let joined = machine.joined.unwrap();
    assert_eq!(joined.response.site_id, world.site);
    assert_eq!(joined.bundle.deployment_id, world.bundle.deployment_id);
    let events = world.events("node.joined").await;
    assert_eq!(events[0]["name"], "gpu-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_a_pool_adopts_at_once() {
    let world = world().await;
    let machine = world.joined("gpu-1", TokenIs { pool: true, ..TokenIs::default() }).await;
    assert_eq!(world.state(&machine).await, "accepting");
    let kind: String = world.row("SELECT kind FROM commands", &[]).await.get(0);
    assert_eq!(kind, "diag.nvml");
    assert_eq!(world.woken("node-spec").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_gets_the_same_answer_and_costs_one_use() {
    let world = world().await;
    let token = world.token(TokenIs::default()).await;
    let machine = Machine::new("gpu-1");
    let first = world.join(&machine, &token).await.unwrap();
    world.pass(60);
    let second = world.join(&machine, &token).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(world.uses(&token).await, 1);
    assert_eq!(world.count("SELECT count(*) FROM nodes").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relayed_token_is_no_good_for_another_request() {
    let world = world().await;
    let token = world.token(TokenIs::default()).await;
    let (machine, thief) = (Machine::new("gpu-1"), Machine::new("thief"));
    let sealed =
        seal_join(&world.payload(&token, "gpu-1"), &machine.csr, world.join_key.encryption_key(), &OsEntropy);
    let refused = world.ask("join", &thief.request_with(sealed), None).await.unwrap_err();
    assert!(refused.contains("another CSR"), "{refused}");
    assert_eq!(world.uses(&token).await, 0);
    assert_eq!(world.count("SELECT count(*) FROM nodes").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_over_lets_nobody_in() {
    let world = world().await;
    let token = world.token(TokenIs::default()).await;
    world.pass(24 * 3600 + 1);
    assert_eq!(world.join(&Machine::new("late"), &token).await, Err(UNKNOWN.to_owned()));

    let token = world.token(TokenIs::default()).await;
    world.run("UPDATE join_tokens SET revoked_at = compute_now()", &[]).await;
    assert_eq!(world.join(&Machine::new("revoked"), &token).await, Err(UNKNOWN.to_owned()));

    let token = world.token(TokenIs::default()).await;
    assert!(world.join(&Machine::new("first"), &token).await.is_ok());
    assert_eq!(world.join(&Machine::new("second"), &token).await, Err(USED_UP.to_owned()));
    assert_eq!(world.uses(&token).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_secret_or_role_lets_nobody_in() {
    let world = world().await;
    let token = world.token(TokenIs::default()).await;
    let guessed = pki::JoinToken::generate(token.id(), &OsEntropy);
    assert_eq!(world.join(&Machine::new("guess"), &guessed).await, Err(UNKNOWN.to_owned()));
    let site = world.token(TokenIs { role: "site", ..TokenIs::default() }).await;
    assert_eq!(
        world.join(&Machine::new("node"), &site).await,
        Err("the join token is for role site".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_at_the_same_time_use_a_token_no_more_than_it_allows() {
    let world = world().await;
    let token = world.token(TokenIs { uses_max: 3, ..TokenIs::default() }).await;
    let machines: Vec<Machine> = (0..8).map(|n| Machine::new(&format!("gpu-{n}"))).collect();
    let asked = machines.iter().map(|machine| world.join(machine, &token));
    let answers = futures::future::join_all(asked).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    assert_eq!(world.uses(&token).await, 3);
    assert_eq!(world.count("SELECT count(*) FROM nodes").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_one_hostname_get_names_of_their_own() {
    let world = world().await;
    let token = world.token(TokenIs { uses_max: 3, ..TokenIs::default() }).await;
    let machines: Vec<Machine> = (0..3).map(|_| Machine::new("localhost")).collect();
    futures::future::join_all(machines.iter().map(|machine| world.join(machine, &token))).await;
    let names: Vec<String> =
        world.rows("SELECT name FROM nodes ORDER BY name", &[]).await.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["localhost", "localhost-2", "localhost-3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stays_with_one_request() {
    let world = world().await;
    let token = world.token(TokenIs { uses_max: 5, ..TokenIs::default() }).await;
    let mut machine = Machine::new("gpu-1");
    world.join(&machine, &token).await.unwrap();
    machine.csr = pki::make_csr(&machine.key, "another name");
    let refused = world.join(&machine, &token).await.unwrap_err();
    assert!(refused.contains("certified before"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_or_expired_certificate_is_not_answered_again() {
    let world = world().await;
    let token = world.token(TokenIs { uses_max: 5, ..TokenIs::default() }).await;
    let machine = Machine::new("gpu-1");
    world.join(&machine, &token).await.unwrap();
    world.run("UPDATE node_certs SET revoked_at = compute_now()", &[]).await;
    assert!(world.join(&machine, &token).await.unwrap_err().contains("revoked or expired"));
}

fn request_id(outcome: Outcome) -> JoinRequestId {
    let Outcome::Deferred(deferred) = outcome else { panic!("not deferred") };
    deferred.join_request_id.parse().unwrap()
}

async fn decide(world: &World, id: JoinRequestId, state: &'static str) {
    let changed = world
        .run("UPDATE join_requests SET state = $2 WHERE join_request_id = $1", &[&id.uuid(), &state])
        .await;
    assert_eq!(changed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_machine_waits_for_a_person_and_costs_one_use() {
    let world = world().await;
    let token = world.token(TokenIs { deferred: true, ..TokenIs::default() }).await;
    let mut machine = Machine::new("gpu-1");
    let id = request_id(world.join(&machine, &token).await.unwrap());
    assert_eq!(request_id(world.join(&machine, &token).await.unwrap()), id, "asking again is one request");
    assert_eq!(world.count("SELECT count(*) FROM join_requests").await, 1);
    assert_eq!(world.uses(&token).await, 0);
    assert_eq!(world.events("node.pending").await.len(), 1);

    decide(&world, id, "approved").await;
    // The token's own time is over by then; the person's word counts.
    world.pass(24 * 3600 + 60);
    let outcome = world.join(&machine, &token).await.unwrap();
    machine.accept(&world, outcome);
    let row = world.row("SELECT state, node_id FROM join_requests", &[]).await;
    assert_eq!((row.get("state"), row.id("node_id")), ("issued", machine.node_id()));
    assert_eq!(world.uses(&token).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_machine_stays_out() {
    let world = world().await;
    let token = world.token(TokenIs { deferred: true, ..TokenIs::default() }).await;
    let machine = Machine::new("gpu-1");
    let id = request_id(world.join(&machine, &token).await.unwrap());
    decide(&world, id, "rejected").await;
    assert_eq!(world.join(&machine, &token).await, Err("an operator rejected this join".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_not_redeemed_with_another_token() {
    let world = world().await;
    let token = world.token(TokenIs { deferred: true, ..TokenIs::default() }).await;
    let other = world.token(TokenIs { deferred: true, pool: true, ..TokenIs::default() }).await;
    let machine = Machine::new("gpu-1");
    let id = request_id(world.join(&machine, &token).await.unwrap());
    decide(&world, id, "approved").await;
    let refused = world.join(&machine, &other).await.unwrap_err();
    assert!(refused.contains("another join token"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_what_waits_under_it() {
    let world = world().await;
    let token = world.token(TokenIs { deferred: true, ..TokenIs::default() }).await;
    let machine = Machine::new("gpu-1");
    let id = request_id(world.join(&machine, &token).await.unwrap());
    decide(&world, id, "approved").await;
    world.run("UPDATE join_tokens SET revoked_at = compute_now()", &[]).await;
    assert_eq!(world.join(&machine, &token).await, Err(UNKNOWN.to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_sealed_long_ago_is_refused() {
    let world = world().await;
    let token = world.token(TokenIs::default()).await;
    let request = Machine::new("gpu-1").join_request(&world, &token);
    world.pass(601);
    let refused = world.ask("join", &request, None).await.unwrap_err();
    assert!(refused.contains("sealed more than"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_confirmed_restore_answers_carry_a_bundle_of_the_new_epoch() {
    let world = world().await;
    world.run("UPDATE deployment SET epoch = 2, restored_at = compute_now()", &[]).await;
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let joined = machine.joined.unwrap();
    assert_eq!(joined.response.deployment_epoch, 2);
    assert_eq!((joined.bundle.deployment_epoch, joined.bundle.version), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_refused_and_answered() {
    let world = world().await;
    for kind in ["join", "renew", "fresh"] {
        assert!(world.ask(kind, b"\xff\xff\xff", Some("00")).await.is_err(), "{kind}");
    }
}
