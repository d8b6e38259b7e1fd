//! The store over PostgreSQL keeps the rules, under the role a gateway has and no other.

use std::collections::BTreeMap;
use std::time::Duration;

use gateway::conformance::World;
use kernel::ports::delivery::{HelloFacts, ReportedEvent, SessionKey};
use model::{GatewayId, IncarnationId, JournalId, NodeId, Timestamp};
use store::{Sql, sql};
use uuid::Uuid;

use crate::postgres::Postgres;

gateway::conformance_tests!(Postgres::under(Some("bc_gateway")));

#[tokio::test]
async fn every_statement_is_one_that_the_schema_takes() {
    testkit::db().await.prepare_all(fleet::delivery::sql::STATEMENTS).await;
}

fn hello() -> HelloFacts {
    HelloFacts {
        node_id: NodeId::from_uuid(Uuid::from_u128(7)),
        cert_serial: "ab".to_owned(),
        journal_id: JournalId::from_uuid(Uuid::from_u128(8)),
        incarnation_id: IncarnationId::from_uuid(Uuid::from_u128(9)),
        boot_id: "boot-1".to_owned(),
        agent_version: "1.0.0".to_owned(),
        protocol: 1,
        capabilities: vec![],
        trust_version: 0,
        applied_generation: 0,
        observed_generation: 0,
        applied_spec_hash: String::new(),
        deployment_epoch: 1,
        applied_spec: None,
        inventory_hashes: BTreeMap::new(),
        in_flight: vec![],
    }
}

fn event(seq: u64) -> ReportedEvent {
    let observed_at = Timestamp::from_millis(1_772_323_200_000);
    ReportedEvent { seq, class: 2, report: vec![1], signature: None, key_sha256: None, observed_at }
}

#[tokio::test]
async fn a_node_whose_events_nobody_handles_stores_no_more_of_them() {
    const WAITING: Sql = sql(
        "test_waiting",
        "INSERT INTO node_events (node_id, journal_id, seq, class, report, observed_at)
         SELECT $1, $2, seq, 1, 'x', compute_now() FROM generate_series(1, $3::bigint) AS seq",
    );
    const HANDLE: Sql = sql(
        "test_handle",
        "UPDATE node_events SET handled_at = compute_now() WHERE node_id = $1 AND seq = 1",
    );
    let world = Postgres::under(Some("bc_gateway")).await;
    let store = world.store();
    let lease = store.register(GatewayId::from_uuid(Uuid::new_v4()), "a:1", Duration::from_secs(600));
    let lease = lease.await.unwrap().lease;
    let hello = hello();
    world.add_node(hello.node_id, hello.cert_serial.clone()).await;
    let opened = store.open_session(lease, hello.clone()).await.unwrap().unwrap();
    let session = SessionKey { node_id: hello.node_id, epoch: opened.session_epoch };
    let put = |seq| store.put_events(lease, session, hello.journal_id, vec![event(seq)]);
    let backlog = JournalId::from_uuid(Uuid::new_v4());
    let node_id = hello.node_id;
    world.db.store.execute(&WAITING, &[&node_id.uuid(), &backlog.uuid(), &19_999_i64]).await.unwrap();
    assert_eq!(put(1).await.unwrap(), Some(1));
    assert_eq!(put(2).await.unwrap(), Some(1));
    assert_eq!(world.event_seqs(node_id, hello.journal_id).await, [1]);
    world.db.store.execute(&HANDLE, &[&node_id.uuid()]).await.unwrap();
    assert_eq!(put(2).await.unwrap(), Some(2));
}
