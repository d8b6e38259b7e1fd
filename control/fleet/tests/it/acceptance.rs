use model::CommandId;
use serde_json::json;
use store::RowExt;
use wire::proto::agent::command_result::Result as Outcome;
use wire::proto::agent::{CommandResult, DiagCheck, DiagNvmlResult, InventoryRefreshResult};

use crate::machine::Machine;
use crate::methods::Api;
use crate::world::{TokenIs, World, world};

async fn accepting(world: &World) -> (Machine, CommandId) {
    let machine = world.joined("gpu-1", TokenIs { pool: true, ..TokenIs::default() }).await;
    let command = diagnosis(world).await;
    (machine, command)
}

async fn diagnosis(world: &World) -> CommandId {
    world.row("SELECT acceptance_command_id FROM nodes", &[]).await.id("acceptance_command_id")
}

fn diag(passed: bool) -> CommandResult {
    let check = DiagCheck {
        name: "ecc.uncorrectable".to_owned(),
        device: "GPU-1".to_owned(),
        passed,
        reason: "3 errors".to_owned(),
    };
    let diag = DiagNvmlResult { passed, checks: vec![check], ..DiagNvmlResult::default() };
    CommandResult { result: Some(Outcome::DiagNvml(diag)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_diagnosis_that_passed_lets_the_node_in() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    machine.result(&world, command, &diag(true), true).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.state(&machine).await, "ready");
    assert_eq!(world.events("node.ready").await.len(), 1);
    assert_eq!(world.events("command.settled").await[0]["state"], "succeeded");
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.events("command.settled").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diagnosis_that_failed_keeps_the_node_out_and_says_why() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    machine.result(&world, command, &diag(false), true).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.state(&machine).await, "accepting");
    let failed = world.events("node.acceptance-failed").await;
    assert_eq!(failed[0]["reason"], "ecc.uncorrectable GPU-1: 3 errors");

    let api = Api::new(&world);
    let shown = api.ok("nodes.get", json!({ "node": "gpu-1" })).await;
    let condition = &shown["conditions"][0];
    assert_eq!(
        [&condition["kind"], &condition["severity"], &condition["message"]],
        [&json!("DiagnosisFailed"), &json!("blocking"), &failed[0]["reason"]]
    );
    api.ok("nodes.adopt", json!({ "node": "gpu-1", "pool": "gpus" })).await;
    let again = api.ok("nodes.get", json!({ "node": "gpu-1" })).await;
    assert_eq!(again["conditions"], json!([]), "a new diagnosis is on its way");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_diagnosis_in_words_without_end_is_told_in_short() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    let endless = format!("no\0{}", "x".repeat(10_000));
    let check = DiagCheck { name: endless.clone(), device: endless.clone(), passed: false, reason: endless };
    let diag = DiagNvmlResult { passed: false, checks: vec![check; 12], ..DiagNvmlResult::default() };
    let result = CommandResult { result: Some(Outcome::DiagNvml(diag)) };
    machine.result(&world, command, &result, true).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let failed = world.events("node.acceptance-failed").await;
    let reason = failed[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("no x") && reason.len() < 3_000, "{} bytes", reason.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diagnosis_that_the_node_did_not_sign_lets_nobody_in() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    machine.result(&world, command, &diag(true), false).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.state(&machine).await, "accepting");
    assert_eq!(world.events("security.invalid-report").await.len(), 1);
    assert_eq!(world.events("node.acceptance-failed").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_result_of_another_kind_lets_nobody_in() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    let other = CommandResult { result: Some(Outcome::InventoryRefresh(InventoryRefreshResult::default())) };
    machine.result(&world, command, &other, true).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.state(&machine).await, "accepting");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diagnosis_that_never_ran_is_said_to_have_expired() {
    let world = world().await;
    let (machine, _) = accepting(&world).await;
    world.pass(24 * 3600 + 1);
    world.fleet.sweep().await.unwrap();
    world.fleet.observe(machine.node_id()).await.unwrap();
    let failed = world.events("node.acceptance-failed").await;
    assert!(failed[0]["reason"].as_str().unwrap().starts_with("its diagnosis expired"), "{failed:?}");
    assert!(world.events("security.invalid-report").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_command_decides_nothing() {
    let world = world().await;
    let (machine, command) = accepting(&world).await;
    world.run("UPDATE nodes SET acceptance_command_id = NULL", &[]).await;
    machine.result(&world, command, &diag(true), true).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.state(&machine).await, "accepting");
}
