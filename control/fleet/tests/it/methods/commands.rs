use model::CommandId;
use serde_json::{Value, json};
use wire::proto::agent::command_result::Result as Outcome;
use wire::proto::agent::{CommandResult, DiagNvmlResult, LogsCollectResult};

use super::{Api, audited};
use crate::machine::Machine;
use crate::world::{World, world};

async fn node(world: &World) -> Machine {
    let machine = world.ready("gpu-1").await;
    world.run("DELETE FROM commands", &[]).await;
    machine
}

fn command_id(command: &Value) -> CommandId {
    command["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_makes_one_command_whatever_became_of_the_node() {
    let world = world().await;
    let api = Api::new(&world);
    node(&world).await;
    let request = json!({ "node": "gpu-1", "kind": "inventory.refresh", "idempotencyKey": "k1" });
    let made = api.ok("commands.create", request.clone()).await;
    assert_eq!((&made["state"], &made["createdBy"]), (&json!("pending"), &json!("tester")));
    let (one, two) = tokio::join!(
        api.call("commands.create", json!({ "node": "gpu-1", "kind": "diag.nvml", "idempotencyKey": "k2" })),
        api.call("commands.create", json!({ "node": "gpu-1", "kind": "diag.nvml", "idempotencyKey": "k2" })),
    );
    assert_eq!(one.ok()["id"], two.ok()["id"]);
    world.run("UPDATE nodes SET state = 'revoked'", &[]).await;
    assert_eq!(api.ok("commands.create", request).await["id"], made["id"]);
    let fresh = api.call("commands.create", json!({ "node": "gpu-1", "kind": "diag.nvml" })).await;
    assert_eq!(fresh.code(), "INVALID_STATE");
    assert_eq!(world.count("SELECT count(*) FROM commands").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_take_work_away_asks_for_the_nodes_name() {
    let world = world().await;
    let api = Api::new(&world);
    node(&world).await;
    let told = api.call("commands.create", json!({ "node": "gpu-1", "kind": "node.reboot" })).await;
    assert_eq!(told.code(), "CONFIRMATION_REQUIRED");
    let told = api
        .call("commands.create", json!({ "node": "gpu-1", "kind": "node.reboot", "confirm": "gpu-2" }))
        .await;
    assert_eq!(told.code(), "CONFIRMATION_REQUIRED");
    assert!(audited(&world).await.is_empty());
    let request = json!({
        "node": "gpu-1", "kind": "node.reboot", "confirm": "gpu-1", "payload": { "reason": "kernel" },
    });
    let made = api.ok("commands.create", request).await;
    assert_eq!((&made["destructive"], &made["payload"]["reason"]), (&json!(true), &json!("kernel")));
    assert_eq!(audited(&world).await.len(), 1);

    world.run("UPDATE nodes SET role = 'site'", &[]).await;
    let told = api
        .call("commands.create", json!({ "node": "gpu-1", "kind": "node.reboot", "confirm": "gpu-1" }))
        .await;
    assert_eq!(told.code(), "UNSUPPORTED");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_gives_commands_and_sees_them() {
    let world = world().await;
    node(&world).await;
    let request = json!({ "node": "gpu-1", "kind": "diag.nvml" });
    assert_eq!(Api::may(&world, &[]).call("commands.create", request.clone()).await.code(), "NOT_FOUND");
    let seeing = Api::may(&world, &["compute:nodes:get"]);
    assert_eq!(seeing.call("commands.create", request.clone()).await.code(), "ACCESS_DENIED");
    let made = Api::new(&world).ok("commands.create", request).await;
    let unknown: CommandId = crate::world::id();
    for id in [made["id"].clone(), json!(unknown.to_string())] {
        assert_eq!(seeing.call("commands.get", json!({ "id": id })).await.code(), "NOT_FOUND");
        assert_eq!(seeing.call("commands.cancel", json!({ "id": id })).await.code(), "NOT_FOUND");
    }
    let listed = seeing.ok("commands.list", json!({ "node": "gpu-1" })).await;
    assert!(listed["items"].as_array().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_what_was_not_sent_and_asks_what_was() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = node(&world).await;
    let request = json!({ "node": "gpu-1", "kind": "diag.nvml" });
    let waiting = api.ok("commands.create", request.clone()).await["id"].clone();
    for _ in 0..2 {
        let told = api.ok("commands.cancel", json!({ "id": waiting, "reason": "mistake" })).await;
        assert_eq!((&told["state"], &told["cancelReason"]), (&json!("cancelled"), &json!("mistake")));
    }
    let sent = api.ok("commands.create", request).await;
    world.run("UPDATE commands SET state = 'running' WHERE settled_at IS NULL", &[]).await;
    let told = api.ok("commands.cancel", json!({ "id": sent["id"] })).await;
    assert_eq!(told["state"], "running", "the node has the last word");
    machine.result(&world, command_id(&sent), &CommandResult::default(), false).await;
    assert_eq!(api.call("commands.cancel", json!({ "id": sent["id"] })).await.code(), "INVALID_STATE");
    assert_eq!(world.woken("node-observe").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_shown_with_whether_its_node_signed_it() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = node(&world).await;
    let diag = DiagNvmlResult { passed: true, gpus: 8, ..DiagNvmlResult::default() };
    let result = CommandResult { result: Some(Outcome::DiagNvml(diag)) };
    for signed in [true, false] {
        let made = api.ok("commands.create", json!({ "node": "gpu-1", "kind": "diag.nvml" })).await;
        machine.result(&world, command_id(&made), &result, signed).await;
        let told = api.ok("commands.get", json!({ "id": made["id"] })).await;
        assert_eq!((&told["attested"], &told["result"]["gpus"]), (&json!(signed), &json!(8)));
    }
    let listed = api.ok("commands.list", json!({ "kind": "diag.nvml" })).await;
    let attested: Vec<&Value> =
        listed["items"].as_array().unwrap().iter().map(|one| &one["attested"]).collect();
    assert_eq!(attested.len(), 2);
    assert!(attested.contains(&&json!(true)) && attested.contains(&&json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_leaves_large_results_to_get() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = node(&world).await;
    let made = api.ok("commands.create", json!({ "node": "gpu-1", "kind": "logs.collect" })).await;
    let logs = LogsCollectResult { bundle: vec![b'x'; 200_000].into(), ..LogsCollectResult::default() };
    machine
        .result(&world, command_id(&made), &CommandResult { result: Some(Outcome::LogsCollect(logs)) }, false)
        .await;
    let listed = api.ok("commands.list", json!({})).await;
    assert_eq!(listed["items"][0].get("result"), None);
    let told = api.ok("commands.get", json!({ "id": made["id"] })).await;
    assert_eq!(told["result"]["bundle"].as_str().unwrap().len(), 200_000);
}
