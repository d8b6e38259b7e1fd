//! The whole way over PostgreSQL, under the role a gateway has: two gateways, one database, real connections.

use std::sync::Arc;
use std::time::Duration;

use fleet::PgDelivery;
use gateway::conformance::World;
use kernel::ports::delivery::{InboxAnswer, StoredSpec};
use model::lifecycle::CommandState as State;
use model::{CommandKind, JournalId};
use prost::Message;
use store::{Op, StoreError, sql};
use uuid::Uuid;
use wire::inventory::{NodeInventory, SectionName};
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::join_reply::Outcome;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    CommandState, EventBatch, Heartbeat, InventoryReport, InventorySection, JoinReply, JoinRequest,
    NodeEvent, SignedJoinResponse, StatusReport,
};

use crate::client::{dial, greet, hello, join, journal, try_session};
use crate::end_to_end::{acknowledged, command, commanded, desired, reported};
use crate::lab::Lab;
use crate::postgres::Postgres;

const BOUND: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_node_joins_works_moves_and_is_revoked() {
    let (lab, world) = (Lab::new(), Postgres::under(Some("bc_gateway")).await);
    let (one, two) = (lab.gateway(world.store()).await, lab.gateway(world.store()).await);

    let mut client = dial(&lab, one.address, None).await;
    let accepted =
        JoinReply { outcome: Some(Outcome::Accepted(SignedJoinResponse { value: vec![5; 9].into() })) };
    let request = JoinRequest {
        csr_der: vec![1; 300].into(),
        sealed_token: "sealed".to_owned(),
        role: "node".to_owned(),
        ..JoinRequest::default()
    };
    let answer = InboxAnswer::Reply(accepted.encode_to_vec());
    let (reply, asked) = tokio::join!(join(&mut client, request.clone()), world.answer_next(answer));
    assert_eq!(reply.unwrap(), accepted);
    assert_eq!(asked.request, request.encode_to_vec());

    let machine = lab.machine();
    let node_id = machine.node_id;
    world.add_node(node_id, machine.serial.clone()).await;
    let spec = StoredSpec { node_id, generation: 1, body: vec![1; 64], signature: vec![2; 8] };
    world.put_spec(spec.clone()).await;
    let mut stream = greet(&lab, one.address, &machine, hello(&machine)).await;
    let first = stream.welcome().await;
    assert_eq!(desired(&mut stream).await.body, spec.body);

    let done = command(node_id, CommandKind::InventoryRefresh);
    let left = command(node_id, CommandKind::LogsCollect);
    let (done_id, left_id) = (done.command_id, left.command_id);
    world.enqueue(done).await;
    assert_eq!(commanded(&mut stream).await, (done_id, 1));
    stream.send(reported(done_id, CommandState::Succeeded));
    assert_eq!(acknowledged(&mut stream).await.1, [done_id.to_string()]);
    assert_eq!(world.command_fate(done_id).await.state, State::Succeeded);
    world.enqueue(left).await;
    assert_eq!(commanded(&mut stream).await, (left_id, 1));

    let event =
        NodeEvent { seq: 1, class: 2, report: vec![1].into(), age_ms: u64::MAX, ..NodeEvent::default() };
    stream.send(In::Events(EventBatch { journal_id: journal(1), events: vec![event] }));
    assert_eq!(acknowledged(&mut stream).await.0, 1);
    assert_eq!(world.event_seqs(node_id, JournalId::from_uuid(Uuid::from_u128(1))).await, [1]);

    let condition = wire::proto::common::Condition {
        kind: "Xid".to_owned(),
        severity: "warning".to_owned(),
        message: "a zero \u{0} in a text is more than a database takes".to_owned(),
        age_ms: u64::MAX,
        ..Default::default()
    };
    stream.send(In::Status(StatusReport {
        node_id: node_id.to_string(),
        observed_generation: u64::MAX,
        conditions: vec![condition],
        ..StatusReport::default()
    }));
    testkit::eventually(BOUND, || async {
        match world.status(node_id).await {
            Some((key, 1)) if !key.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    let inventory = NodeInventory::default();
    let hash = inventory.hash(SectionName::Gpus).to_string();
    let inventory_hashes = [("gpus".to_owned(), hash.clone())].into();
    stream.send(In::Heartbeat(Heartbeat { seq: 1, inventory_hashes, ..Heartbeat::default() }));
    stream.until(|frame| matches!(frame, Out::InventoryRequest(_)).then_some(())).await;
    let json = inventory.encode(SectionName::Gpus).into();
    let section = InventorySection { name: "gpus".to_owned(), hash: hash.clone(), json };
    stream.send(In::Inventory(InventoryReport { sections: vec![section] }));
    testkit::eventually(BOUND, || async {
        let stored = world.inventory(node_id).await;
        if stored.get("gpus") == Some(&hash) { Ok(()) } else { Err(format!("{stored:?}")) }
    })
    .await;

    // The other gateway: what was in flight comes again, and the first session ends.
    let mut moved = greet(&lab, two.address, &machine, hello(&machine)).await;
    assert!(moved.welcome().await.session_epoch > first.session_epoch);
    assert_eq!(commanded(&mut moved).await, (left_id, 2));
    stream.beat(2, 1);
    stream.end().await.expect_err("it was taken over");

    world.revoke_node(node_id).await;
    moved.until(|frame| matches!(frame, Out::Revocation(_)).then_some(())).await;
    moved.end().await.unwrap();
    for address in [one.address, two.address] {
        let again = try_session(dial(&lab, address, Some(&machine)).await).await;
        assert_eq!(again.err().expect("it stays closed").code(), tonic::Code::PermissionDenied);
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_ends_the_sessions_and_another_epoch_takes_them() {
    let (lab, world) = (Lab::new(), Postgres::under(Some("bc_gateway")).await);
    let gateway = lab.gateway(world.store()).await;
    let machine = lab.machine();
    world.add_node(machine.node_id, machine.serial.clone()).await;
    let mut stream = greet(&lab, gateway.address, &machine, hello(&machine)).await;
    let welcome = stream.welcome().await;
    world.expire(welcome.gateway_id.parse().unwrap()).await;
    assert_eq!(stream.end().await.unwrap_err().code(), tonic::Code::Unavailable);
    testkit::eventually(BOUND, || async {
        if gateway.gateway.is_serving() { Ok(()) } else { Err("it does not serve again") }
    })
    .await;
    let mut stream = greet(&lab, gateway.address, &machine, hello(&machine)).await;
    assert!(stream.welcome().await.session_epoch > welcome.session_epoch);
    gateway.stop.cancel();
    stream.until(|frame| matches!(frame, Out::Drain(_)).then_some(())).await;
    drop(stream);
    gateway.ended.finished().await;
    let open = "SELECT count(*) FROM node_sessions WHERE closed_at IS NULL";
    assert_eq!(world.db.scalar_i64(open).await, 0);
}

/// A process that is stopped between two statements of a transaction: the server ends the transaction before the lease it was begun
/// under can be anybody else's.
#[tokio::test]
async fn a_transaction_that_sleeps_through_its_lease_writes_nothing() {
    let db = testkit::db().await;
    db.batch("CREATE TABLE written (x int)").await;
    let store = db.open(PgDelivery::store_config(db.config(), Duration::from_millis(600))).await;
    let (watched, store) = (Arc::new(db), Arc::new(store));
    let db = &watched;
    let written: Result<u64, StoreError> = store
        .tx(Op::new("test_sleeper"), |tx| {
            Box::pin(async move {
                let insert = sql("test_insert", "INSERT INTO written VALUES (1)");
                tx.execute(&insert, &[]).await?;
                testkit::eventually(BOUND, || async {
                    let asleep = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
                    let asleep = db.scalar_i64(asleep).await;
                    if asleep == 0 { Ok(()) } else { Err(asleep) }
                })
                .await;
                tx.execute(&insert, &[]).await
            })
        })
        .await;
    assert!(written.is_err(), "{written:?}");
    assert_eq!(db.scalar_i64("SELECT count(*) FROM written").await, 0);
}
