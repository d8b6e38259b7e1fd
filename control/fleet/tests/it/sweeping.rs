use std::time::Duration;

use fleet::commands::NewCommand;
use model::{CommandId, NodeId};
use pki::Purpose;
use store::{Op, RowExt};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::{CommandBody, CommandResult, LogsCollect};

use crate::world::{World, id, world};

async fn enqueue(world: &World, node_id: NodeId) -> Result<CommandId, kernel::Fault> {
    let (fleet, command_id): (_, CommandId) = (&world.fleet, id());
    world
        .store
        .tx(Op::new("enqueue"), |tx| {
            Box::pin(async move {
                let command = NewCommand {
                    node_id,
                    payload: Payload::LogsCollect(LogsCollect::default()),
                    valid_for: Duration::from_secs(300),
                    min_generation: 7,
                    resource_keys: vec!["GPU-1".to_owned()],
                    created_by: "ada".to_owned(),
                };
                fleet.enqueue(tx, command_id, command).await?;
                Ok(command_id)
            })
        })
        .await
}

async fn end_of(world: &World, command_id: CommandId) -> (String, String) {
    let row =
        world.row("SELECT state, reason FROM commands WHERE command_id = $1", &[&command_id.uuid()]).await;
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_stored_with_our_signature_over_its_body() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.run("DELETE FROM commands", &[]).await;
    let command_id = enqueue(&world, machine.node_id()).await.unwrap();
    let row = world.row("SELECT body, signature, lane, timeout_at, not_after FROM commands", &[]).await;
    let (body, signature): (&[u8], &[u8]) = (row.get("body"), row.get("signature"));
    world.verifier().verify_bytes(Purpose::Command, body, signature, world.now()).unwrap();
    let body: CommandBody = wire::command::decode_body(body).unwrap();
    assert_eq!(body.command_id, command_id.to_string());
    assert_eq!(body.node_id, machine.node_id().to_string());
    assert_eq!((body.min_generation, body.deployment_epoch), (7, 1));
    assert_eq!(u64::try_from(world.now().millis()).unwrap() + 300_000, body.not_after_ms);
    assert_eq!(row.get::<_, &str>("lane"), "bulk");
    assert_eq!(row.ts("timeout_at").since(row.ts("not_after")), Duration::from_secs(15 * 60));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_only_so_many_commands_waiting() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.run("DELETE FROM commands", &[]).await;
    for _ in 0..256 {
        enqueue(&world, machine.node_id()).await.unwrap();
    }
    let kernel::Fault::Refused(refused) = enqueue(&world, machine.node_id()).await.unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!(refused.code, model::ErrorCode::InvalidState);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_sent_expires_and_what_was_sent_times_out() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let node_id = machine.node_id();
    let waiting = enqueue(&world, node_id).await.unwrap();
    let sent = enqueue(&world, node_id).await.unwrap();
    world.run("UPDATE commands SET state = 'running' WHERE command_id = $1", &[&sent.uuid()]).await;
    world.drop_work().await;

    world.pass(299);
    world.fleet.sweep().await.unwrap();
    assert_eq!(end_of(&world, waiting).await.0, "pending");
    world.pass(2);
    world.fleet.sweep().await.unwrap();
    assert_eq!(end_of(&world, waiting).await, ("expired".to_owned(), "expired".to_owned()));
    assert_eq!(end_of(&world, sent).await.0, "running", "a result may still come");
    assert_eq!(world.woken("node-observe").await.len(), 1);
    world.pass(15 * 60);
    world.fleet.sweep().await.unwrap();
    assert_eq!(end_of(&world, sent).await, ("failed".to_owned(), "timeout".to_owned()));

    // The result that comes after all changes nothing: the end was told.
    machine.result(&world, sent, &CommandResult::default(), false).await;
    assert_eq!(end_of(&world, sent).await.0, "failed");
    world.fleet.observe(node_id).await.unwrap();
    assert_eq!(world.events("command.settled").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_asks_for_any_longer_is_forgotten() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let kept = enqueue(&world, machine.node_id()).await.unwrap();
    machine.report(&world, 1, crate::machine::bound("a")).await;
    world.pass(600);
    world.fleet.sweep().await.unwrap();
    world.fleet.observe(machine.node_id()).await.unwrap();
    let open = enqueue(&world, machine.node_id()).await.unwrap();

    world.pass(6 * 24 * 3600);
    world.fleet.forget().await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM node_events").await, 1);
    assert_eq!(world.count("SELECT count(*) FROM join_inbox").await, 0, "an hour");
    world.pass(2 * 24 * 3600);
    world.fleet.forget().await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM node_events").await, 0, "a week");
    assert_eq!(end_of(&world, kept).await.0, "expired");
    world.pass(83 * 24 * 3600);
    world.fleet.forget().await.unwrap();
    let left = world.rows("SELECT command_id FROM commands WHERE kind = 'logs.collect'", &[]).await;
    assert_eq!(left.len(), 1, "ninety days after its end, and an open one never");
    assert_eq!(left[0].id::<CommandId>("command_id"), open);
    assert_eq!(world.count("SELECT count(*) FROM node_certs").await, 0, "a month after its end");
}
