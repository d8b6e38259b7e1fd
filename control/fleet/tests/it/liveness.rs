use model::GatewayId;
use serde_json::json;

use crate::machine::Machine;
use crate::methods::Api;
use crate::world::{World, id, world};

/// A gateway with a lease that holds, and the machine's session on it.
async fn session(world: &World, machine: &Machine) -> GatewayId {
    let gateway: GatewayId = id();
    world
        .run(
            "INSERT INTO gateways (gateway_id, epoch, address, expires_at)
             VALUES ($1, 1, 'gw', compute_now() + interval '1 year')",
            &[&gateway.uuid()],
        )
        .await;
    world
        .run(
            "INSERT INTO node_sessions (node_id, gateway_id, gateway_epoch, session_epoch, cert_serial, journal_id,
               incarnation_id, boot_id) VALUES ($1, $2, 1, 1, $3, $4, $4, 'boot')
             ON CONFLICT (node_id) DO UPDATE SET gateway_id = excluded.gateway_id, closed_at = NULL,
               last_heartbeat_at = compute_now(), connected_at = compute_now()",
            &[&machine.node_id().uuid(), &gateway.uuid(), &machine.serial(), &machine.journal.uuid()],
        )
        .await;
    gateway
}

async fn heartbeat(world: &World) {
    world
        .run(
            "UPDATE node_sessions SET last_heartbeat_at = compute_now(), heartbeats_good = heartbeats_good + 1
             WHERE closed_at IS NULL",
            &[],
        )
        .await;
}

async fn close(world: &World) {
    world.run("UPDATE node_sessions SET closed_at = compute_now()", &[]).await;
}

async fn looked(world: &World, machine: &Machine) -> String {
    world.fleet.liveness().await.unwrap();
    world.state(machine).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_is_silent_after_three_heartbeats() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    session(&world, &machine).await;
    close(&world).await;
    world.pass(29);
    assert_eq!(looked(&world, &machine).await, "ready");
    world.pass(1);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    assert_eq!(world.events("node.unreachable").await.len(), 1);
    let told = world.heard("listener").await;
    assert_eq!(told.last().map(String::as_str), Some("schedulable"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_session_is_silent_after_five() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    session(&world, &machine).await;
    world.pass(49);
    assert_eq!(looked(&world, &machine).await, "ready");
    world.pass(1);
    assert_eq!(looked(&world, &machine).await, "unreachable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_back_after_two_good_heartbeats() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    session(&world, &machine).await;
    for _ in 0..9 {
        heartbeat(&world).await;
    }
    close(&world).await;
    world.pass(40);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    session(&world, &machine).await;
    assert_eq!(looked(&world, &machine).await, "unreachable", "a session alone says little");
    heartbeat(&world).await;
    assert_eq!(looked(&world, &machine).await, "unreachable", "those before the silence do not count");
    world.pass(10);
    heartbeat(&world).await;
    assert_eq!(looked(&world, &machine).await, "ready");
    assert_eq!(world.events("node.reachable").await.len(), 1);
}

async fn lost_after(world: &World, minutes: &'static str) {
    world
        .run("UPDATE pools SET policy = jsonb_build_object('lostAfterMinutes', $1::text::jsonb)", &[&minutes])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_given_up_only_where_its_pool_says_so() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    session(&world, &machine).await;
    close(&world).await;
    world.pass(60);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    world.pass(365 * 24 * 3600);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    lost_after(&world, "null").await;
    assert_eq!(looked(&world, &machine).await, "unreachable");
    lost_after(&world, "10").await;
    assert_eq!(looked(&world, &machine).await, "lost");
    assert_eq!(world.events("node.lost").await.len(), 1);
    session(&world, &machine).await;
    heartbeat(&world).await;
    heartbeat(&world).await;
    assert_eq!(looked(&world, &machine).await, "ready", "lost is no end");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_in_which_nobody_listened_gives_no_node_up() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    session(&world, &machine).await;
    lost_after(&world, "10").await;
    // The whole control plane was away for hours.
    world.pass(6 * 3600);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    assert_eq!(looked(&world, &machine).await, "unreachable");
    world.pass(599);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    world.pass(1);
    assert_eq!(looked(&world, &machine).await, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_changes_nothing_before_a_node_is_ready() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.run("UPDATE nodes SET state = 'accepting'", &[]).await;
    world.pass(3600);
    assert_eq!(looked(&world, &machine).await, "accepting");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_gone_takes_its_sessions_with_it() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let other = world.ready("gpu-2").await;
    let gone = session(&world, &machine).await;
    session(&world, &other).await;
    world.run("UPDATE gateways SET expires_at = compute_now() WHERE gateway_id = $1", &[&gone.uuid()]).await;
    world.fleet.liveness().await.unwrap();
    let closed = "SELECT count(*) FROM node_sessions WHERE closed_at IS NOT NULL";
    assert_eq!(world.count(closed).await, 1);
    assert_eq!(world.state(&machine).await, "ready", "its silence is measured first");
    // The other one comes back under a new epoch, without the session.
    world.run("UPDATE gateways SET epoch = 2", &[]).await;
    world.fleet.liveness().await.unwrap();
    assert_eq!(world.count(closed).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_deployment_observes_silence_is_recorded_and_nobody_is_given_up() {
    use kernel::Pass;
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.run("UPDATE pools SET policy = '{\"lostAfterMinutes\": 5}'", &[]).await;
    session(&world, &machine).await;
    close(&world).await;
    let observe =
        "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()";
    world.run(observe, &[]).await;
    assert!(!fleet::liveness::Liveness(world.fleet.clone()).acts(), "it runs all the same");
    world.pass(30);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    world.pass(301);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    world
        .run("UPDATE deployment SET observe_only = false, observe_reason = NULL, observe_since = NULL", &[])
        .await;
    assert_eq!(looked(&world, &machine).await, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_is_dead_by_a_persons_word_until_it_is_heard_of() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = world.ready("gpu-1").await;
    let request = json!({ "node": "gpu-1", "confirm": "gpu-1" });
    session(&world, &machine).await;
    close(&world).await;
    world.pass(60);
    assert_eq!(looked(&world, &machine).await, "unreachable");
    assert_eq!(api.call("nodes.abandon", json!({ "node": "gpu-1" })).await.code(), "CONFIRMATION_REQUIRED");
    assert_eq!(world.count("SELECT count(*) FROM nodes WHERE dead_at IS NOT NULL").await, 0);
    for _ in 0..2 {
        let dead = api.ok("nodes.abandon", request.clone()).await;
        assert_eq!(dead["node"]["state"], "lost");
        assert!(dead["node"]["declaredDeadSince"].is_string(), "{dead}");
    }
    assert_eq!(world.events("node.declared-dead").await, [json!({ "state": "unreachable", "by": "tester" })]);
    assert_eq!(world.events("node.lost").await[0]["reason"], "it was declared dead");
    assert_eq!(world.count("SELECT count(*) FROM nodes WHERE dead_by = 'tester'").await, 1);
    assert_eq!(looked(&world, &machine).await, "lost", "no pool's policy is needed, and none takes it back");

    // It speaks, and nobody may call it dead although it is not counted as back yet.
    session(&world, &machine).await;
    heartbeat(&world).await;
    assert_eq!(api.call("nodes.abandon", request.clone()).await.code(), "INVALID_STATE");
    heartbeat(&world).await;
    assert_eq!(looked(&world, &machine).await, "ready");
    let back = api.ok("nodes.get", json!({ "node": "gpu-1" })).await;
    assert!(back.get("declaredDeadSince").is_none(), "{back}");
    assert_eq!(api.call("nodes.abandon", request).await.code(), "INVALID_STATE");
}
