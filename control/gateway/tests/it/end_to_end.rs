//! Real sockets, real TLS 1.3, real HTTP/2: what a node sees of a gateway.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use gateway::memory::MemoryDelivery;
use kernel::ports::delivery::{InboxAnswer, InboxKind, StoredCommand, StoredSpec};
use model::lifecycle::CommandState as State;
use model::{CommandId, CommandKind, JournalId, NodeId, Timestamp};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use uuid::Uuid;
use wire::inventory::{NodeInventory, SectionName};
use wire::paths::RETRY_PUSHBACK;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::join_reply::Outcome;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    CommandBody, CommandState, CommandUpdate, EventBatch, EventClass, FreshBinding, FreshStatement,
    InventoryReport, InventorySection, JoinReply, JoinRequest, NodeEvent, RenewReply, RenewRequest,
    SignedJoinResponse, SpecRequest, StatusReport,
};

use crate::client::{Stream, dial, greet, hello, join, journal, renew, try_dial, try_session};
use crate::lab::{Lab, Machine, Running};

const BOUND: Duration = Duration::from_secs(15);

struct Bench {
    lab: Lab,
    store: MemoryDelivery,
    gateway: Running,
}

impl Bench {
    async fn new() -> Self {
        let lab = Lab::new();
        let store = MemoryDelivery::new(lab.clock.clone());
        let gateway = lab.gateway(Arc::new(store.clone())).await;
        Self { lab, store, gateway }
    }

    fn machine(&self) -> Machine {
        let machine = self.lab.machine();
        self.store.add_node(machine.node_id, &machine.serial);
        machine
    }

    async fn greet(&self, machine: &Machine) -> Stream {
        greet(&self.lab, self.gateway.address, machine, hello(machine)).await
    }

    async fn open(&self, machine: &Machine) -> Stream {
        let mut stream = self.greet(machine).await;
        stream.welcome().await;
        stream
    }

    fn enqueue(&self, node_id: NodeId, kind: CommandKind) -> CommandId {
        let command = command(node_id, kind);
        let command_id = command.command_id;
        self.store.enqueue(command, Timestamp::from_millis(4_000_000_000_000));
        command_id
    }

    async fn fate_is(&self, command_id: CommandId, state: State) {
        testkit::eventually(BOUND, || async {
            let fate = self.store.command_fate(command_id).expect("it was enqueued");
            if fate.state == state { Ok(()) } else { Err(format!("{fate:?}")) }
        })
        .await;
    }
}

pub fn command(node_id: NodeId, kind: CommandKind) -> StoredCommand {
    let command_id = CommandId::from_uuid(Uuid::new_v4());
    let body = CommandBody {
        command_id: command_id.to_string(),
        node_id: node_id.to_string(),
        deployment_epoch: 1,
        kind: kind.name().to_owned(),
        not_after_ms: 4_000_000_000_000,
        payload: Some(wire::command::empty_payload(kind)),
        ..CommandBody::default()
    };
    StoredCommand {
        command_id,
        node_id,
        kind: kind.name().to_owned(),
        lane: kind.policy().lane.name().to_owned(),
        body: body.encode_to_vec(),
        signature: vec![1, 2, 3],
        attempt: 0,
        cancel_requested: None,
    }
}

pub fn reported(command_id: CommandId, state: CommandState) -> In {
    In::CommandUpdate(CommandUpdate {
        command_id: command_id.to_string(),
        state: state.into(),
        result: vec![4, 2].into(),
        boot_id: "boot-1".to_owned(),
        ..CommandUpdate::default()
    })
}

pub async fn commanded(stream: &mut Stream) -> (CommandId, u32) {
    stream
        .until(|frame| match frame {
            Out::Command(command) => {
                let body = wire::command::decode_body(&command.body).expect("it is what was stored");
                Some((body.command_id.parse().expect("it is an id"), command.delivery_attempt))
            }
            _ => None,
        })
        .await
}

pub async fn acknowledged(stream: &mut Stream) -> (u64, Vec<String>) {
    stream
        .until(|frame| match frame {
            Out::Ack(ack) => Some((ack.event_seq, ack.command_ids)),
            _ => None,
        })
        .await
}

pub async fn desired(stream: &mut Stream) -> wire::proto::agent::DesiredState {
    stream
        .until(|frame| match frame {
            Out::DesiredState(desired) => Some(desired),
            _ => None,
        })
        .await
}

async fn refused(stream: &mut Stream) -> String {
    let reason = match stream.frame().await {
        Out::Refusal(refusal) => refusal.reason,
        other => panic!("not a refusal: {other:?}"),
    };
    stream.end().await.expect("a refusal ends the stream cleanly");
    reason
}

fn spec(node_id: NodeId, generation: u64) -> StoredSpec {
    StoredSpec { node_id, generation, body: generation.to_be_bytes().to_vec(), signature: vec![2; 8] }
}

fn join_request() -> JoinRequest {
    JoinRequest {
        csr_der: vec![1; 300].into(),
        sealed_token: "sealed".to_owned(),
        role: "node".to_owned(),
        hostname: "gpu-1".to_owned(),
        agent_version: "1.0.0".to_owned(),
        protocol: 1,
        hardware_key: vec![0; 32].into(),
    }
}

#[tokio::test]
async fn a_machine_joins_through_a_worker() {
    let bench = Bench::new().await;
    let mut client = dial(&bench.lab, bench.gateway.address, None).await;
    let accepted =
        JoinReply { outcome: Some(Outcome::Accepted(SignedJoinResponse { value: vec![5; 100].into() })) };
    let worker = async {
        let item = bench.store.next_request().await;
        assert_eq!(item.request.kind, InboxKind::Join);
        assert_eq!(JoinRequest::decode(item.request.request.as_slice()).unwrap(), join_request());
        assert_eq!((item.request.source_ip.as_str(), &item.request.peer_serial), ("127.0.0.1", &None));
        item.answer(InboxAnswer::Reply(accepted.encode_to_vec()));
    };
    let (reply, ()) = tokio::join!(join(&mut client, join_request()), worker);
    assert_eq!(reply.unwrap(), accepted);

    let worker = async {
        bench.store.next_request().await.answer(InboxAnswer::Refused("the join token is spent".to_owned()));
    };
    let (reply, ()) = tokio::join!(join(&mut client, join_request()), worker);
    let status = reply.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "the join token is spent"));

    let mut large = join_request();
    large.csr_der = vec![0; 5000].into();
    assert_eq!(join(&mut client, large).await.unwrap_err().code(), Code::InvalidArgument);
    let mut larger = join_request();
    larger.sealed_token = "x".repeat(64 * 1024);
    assert_eq!(join(&mut client, larger).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn too_many_joins_of_one_address_are_told_to_wait() {
    let bench = Bench::new().await;
    let mut client = dial(&bench.lab, bench.gateway.address, None).await;
    let mut waits = 0;
    for _ in 0..80 {
        // Refused before anything is asked, so that no worker is needed.
        let mut request = join_request();
        request.csr_der = Vec::new().into();
        let status = join(&mut client, request).await.unwrap_err();
        if status.code() == Code::Unavailable {
            let wait = status.metadata().get(RETRY_PUSHBACK).expect("it says how long");
            assert!(wait.to_str().unwrap().parse::<u64>().unwrap() > 0);
            waits += 1;
        }
    }
    assert!((10..=16).contains(&waits), "{waits}");
}

#[tokio::test]
async fn a_certificate_is_renewed_by_its_holder_and_nobody_else() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let request = RenewRequest { csr_der: vec![1; 300].into(), proof: vec![2; 200].into() };
    let mut stranger = dial(&bench.lab, bench.gateway.address, None).await;
    assert_eq!(renew(&mut stranger, request.clone()).await.unwrap_err().code(), Code::Unauthenticated);

    let mut client = dial(&bench.lab, bench.gateway.address, Some(&machine)).await;
    let renewed = RenewReply { renewed: Some(SignedJoinResponse { value: vec![6; 10].into() }) };
    let worker = async {
        let item = bench.store.next_request().await;
        assert_eq!(item.request.kind, InboxKind::Renew);
        assert_eq!(item.request.peer_serial.as_deref(), Some(machine.serial.as_str()));
        item.answer(InboxAnswer::Reply(renewed.encode_to_vec()));
    };
    let (reply, ()) = tokio::join!(renew(&mut client, request.clone()), worker);
    assert_eq!(reply.unwrap(), renewed);

    bench.store.revoke_certificate(&machine.serial);
    assert_eq!(renew(&mut client, request).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_session_welcomes_beats_and_is_counted_alive() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_trust_bundle(3, vec![8; 40]);
    let mut stream = bench.greet(&machine).await;
    let welcome = stream.welcome().await;
    assert_eq!((welcome.protocol, welcome.deployment_epoch), (1, 1));
    assert_eq!(welcome.journal_id, journal(1));
    assert_eq!(welcome.heartbeat_interval_ms, 10_000);
    assert_eq!(welcome.trust_bundle.unwrap().value, vec![8; 40]);
    let before = bench.lab.clock.now().millis();
    stream.beat(1, 4);
    let (seq, time) = stream
        .until(|frame| match frame {
            Out::HeartbeatAck(ack) => Some((ack.seq, ack.server_time_ms)),
            _ => None,
        })
        .await;
    assert_eq!(seq, 1);
    assert!(i64::try_from(time).unwrap().abs_diff(before) < 5_000);
    testkit::eventually(BOUND, || async {
        let beats = bench.store.beats(machine.node_id);
        if beats >= 1 { Ok(()) } else { Err(beats) }
    })
    .await;
}

#[tokio::test]
async fn a_spec_goes_out_before_the_commands_and_again_on_change() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_spec(spec(machine.node_id, 3));
    let mut stream = bench.open(&machine).await;
    let first = desired(&mut stream).await;
    assert_eq!(first.body, spec(machine.node_id, 3).body);
    assert!(first.fresh.is_none());
    bench.store.put_spec(spec(machine.node_id, 4));
    assert_eq!(desired(&mut stream).await.body, spec(machine.node_id, 4).body);
    stream.send(In::SpecRequest(SpecRequest { have_generation: 3, reason: "full-spec".to_owned() }));
    assert_eq!(desired(&mut stream).await.body, spec(machine.node_id, 4).body);
}

#[tokio::test]
async fn a_fresh_node_gets_its_spec_with_a_binding_to_its_nonce() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_spec(spec(machine.node_id, 2));
    let mut fresh = hello(&machine);
    fresh.fresh = true;
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, fresh).await;
    stream.welcome().await;
    let bound = |generation| {
        let statement = FreshStatement {
            node_id: machine.node_id.to_string(),
            nonce: vec![3; 32].into(),
            generation,
            ..FreshStatement::default()
        };
        FreshBinding { statement: statement.encode_to_vec().into(), signature: None }
    };
    let worker = async {
        // The first binding is of a spec that is not the current one any more.
        for generation in [1, 2] {
            let item = bench.store.next_request().await;
            assert_eq!(item.request.kind, InboxKind::Fresh);
            let asked = FreshStatement::decode(item.request.request.as_slice()).unwrap();
            assert_eq!(
                (asked.node_id.as_str(), asked.nonce.len()),
                (machine.node_id.to_string().as_str(), 32)
            );
            item.answer(InboxAnswer::Reply(bound(generation).encode_to_vec()));
        }
    };
    let (got, ()) = tokio::join!(desired(&mut stream), worker);
    assert_eq!(got.body, spec(machine.node_id, 2).body);
    assert_eq!(got.fresh, Some(bound(2)));
}

#[tokio::test]
async fn a_command_is_sent_run_and_its_result_acknowledged() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut stream).await, (command_id, 1));
    stream.send(reported(command_id, CommandState::Acked));
    stream.send(reported(command_id, CommandState::Running));
    bench.fate_is(command_id, State::Running).await;
    stream.send(reported(command_id, CommandState::Succeeded));
    assert_eq!(acknowledged(&mut stream).await, (0, vec![command_id.to_string()]));
    let fate = bench.store.command_fate(command_id).unwrap();
    assert_eq!((fate.state, fate.result), (State::Succeeded, Some(vec![4, 2])));
}

#[tokio::test]
async fn commands_wait_for_credits_and_a_busy_one_goes_again() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut greeting = hello(&machine);
    greeting.lane_credits = [("control".to_owned(), 1)].into();
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, greeting).await;
    stream.welcome().await;
    let first = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    let second = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut stream).await, (first, 1));
    stream.send(reported(first, CommandState::Busy));
    bench.fate_is(first, State::Pending).await;
    assert_eq!(bench.store.command_fate(second).unwrap().state, State::Pending);
    stream.beat(1, 2);
    assert_eq!(commanded(&mut stream).await, (first, 2));
    assert_eq!(commanded(&mut stream).await, (second, 1));
}

#[tokio::test]
async fn a_cancel_goes_out_once_a_session() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    commanded(&mut stream).await;
    stream.send(reported(command_id, CommandState::Running));
    bench.fate_is(command_id, State::Running).await;
    bench.store.request_cancel(command_id, "enough");
    let cancelled = |frame| match frame {
        Out::Cancel(cancel) => Some((cancel.command_id, cancel.reason)),
        _ => None,
    };
    let named = (command_id.to_string(), "enough".to_owned());
    assert_eq!(stream.until(cancelled).await, named);
    // Looked for again several times before this comes back.
    for seq in 1..=4 {
        stream.beat(seq, 4);
        let frame = stream.frame().await;
        assert!(matches!(frame, Out::HeartbeatAck(_)), "{frame:?}");
        bench.store.put_spec(spec(machine.node_id, seq));
        desired(&mut stream).await;
    }
    drop(stream);
    let mut stream = bench.open(&machine).await;
    assert_eq!(commanded(&mut stream).await, (command_id, 2));
    assert_eq!(stream.until(cancelled).await, named);
}

#[tokio::test]
async fn results_of_the_hello_are_stored_before_anything_is_sent_again() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let done = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    let open = bench.enqueue(machine.node_id, CommandKind::LogsCollect);
    commanded(&mut stream).await;
    commanded(&mut stream).await;
    drop(stream);
    bench.store.put_spec(spec(machine.node_id, 1));
    let mut again = hello(&machine);
    again.unacked_results = vec![CommandUpdate {
        command_id: done.to_string(),
        state: CommandState::Succeeded.into(),
        ..CommandUpdate::default()
    }];
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, again).await;
    stream.welcome().await;
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(match stream.frame().await {
            Out::Ack(ack) => format!("ack {}", ack.command_ids.concat()),
            Out::DesiredState(_) => "spec".to_owned(),
            Out::Command(command) => {
                format!("command {}", wire::command::decode_body(&command.body).unwrap().command_id)
            }
            other => format!("{other:?}"),
        });
    }
    assert_eq!(frames.pop(), Some(format!("command {open}")));
    frames.sort();
    assert_eq!(frames, [format!("ack {done}"), "spec".to_owned()]);
    assert_eq!(bench.store.command_fate(done).unwrap().state, State::Succeeded);
}

#[tokio::test]
async fn events_statuses_and_inventory_are_stored() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let batch = |journal_id: String, seqs: &[u64]| {
        let events = seqs
            .iter()
            .map(|seq| NodeEvent {
                seq: *seq,
                class: EventClass::Transition.into(),
                report: vec![1].into(),
                ..NodeEvent::default()
            })
            .collect();
        In::Events(EventBatch { journal_id, events })
    };
    stream.send(batch(journal(99), &[1]));
    stream.send(batch(journal(1), &[1, 2, 3]));
    assert_eq!(acknowledged(&mut stream).await, (3, vec![]));
    let journal_id = JournalId::from_uuid(Uuid::from_u128(1));
    assert_eq!(bench.store.event_seqs(machine.node_id, journal_id), [1, 2, 3]);

    stream.send(In::Status(StatusReport { node_id: machine.node_id.to_string(), ..StatusReport::default() }));
    testkit::eventually(BOUND, || async {
        bench.store.status(machine.node_id).filter(|(key, _)| !key.is_empty()).ok_or("no status")
    })
    .await;

    let inventory = NodeInventory::default();
    let (json, hash) = (inventory.encode(SectionName::Cpu), inventory.hash(SectionName::Cpu).to_string());
    let mut beat = wire::proto::agent::Heartbeat { seq: 1, ..Default::default() };
    beat.inventory_hashes = [("cpu".to_owned(), hash.clone())].into();
    stream.send(In::Heartbeat(beat));
    let asked = stream
        .until(|frame| match frame {
            Out::InventoryRequest(request) => Some(request.sections),
            _ => None,
        })
        .await;
    assert_eq!(asked, ["cpu"]);
    let section = |name: &str, json: &[u8], hash: &str| InventorySection {
        name: name.to_owned(),
        hash: hash.to_owned(),
        json: json.to_vec().into(),
    };
    let sections = vec![section("memory", b"{\"x\": 1.5}", "aa"), section("cpu", &json, &hash)];
    stream.send(In::Inventory(InventoryReport { sections }));
    testkit::eventually(BOUND, || async {
        let stored = bench.store.inventory(machine.node_id);
        if stored.get("cpu") == Some(&hash) && stored.len() == 1 {
            Ok(())
        } else {
            Err(format!("{stored:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_revocation_is_said_and_stays() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    bench.store.revoke_node(machine.node_id);
    assert!(matches!(stream.frame().await, Out::Revocation(_)));
    stream.end().await.unwrap();
    for _ in 0..2 {
        let client = dial(&bench.lab, bench.gateway.address, Some(&machine)).await;
        let status = try_session(client).await.err().expect("it stays closed");
        assert_eq!(status.code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn another_gateway_takes_a_session_over() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let other = bench.lab.gateway(Arc::new(bench.store.clone())).await;
    let mut first = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    commanded(&mut first).await;
    let mut second = greet(&bench.lab, other.address, &machine, hello(&machine)).await;
    second.welcome().await;
    assert_eq!(commanded(&mut second).await, (command_id, 2));
    // The first gateway finds out with the next heartbeat it stores.
    first.beat(1, 4);
    assert_eq!(first.end().await.unwrap_err().code(), Code::Aborted);
    second.send(reported(command_id, CommandState::Succeeded));
    assert_eq!(acknowledged(&mut second).await.1, [command_id.to_string()]);
}

#[tokio::test]
async fn a_node_that_connects_again_to_the_same_gateway_has_one_session() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut first = bench.open(&machine).await;
    let mut second = bench.open(&machine).await;
    assert_eq!(first.end().await.unwrap_err().code(), Code::Aborted);
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut second).await.0, command_id);
}

#[tokio::test]
async fn a_hello_for_another_node_is_refused() {
    let bench = Bench::new().await;
    let (machine, other) = (bench.machine(), bench.machine());
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, hello(&other)).await;
    assert_eq!(refused(&mut stream).await, "wrong_node");
    assert_eq!(bench.store.open_session_epoch(other.node_id), None);
}

#[tokio::test]
async fn what_the_store_refuses_is_said() {
    let bench = Bench::new().await;
    let unknown = bench.lab.machine();
    // Its certificate is not known either.
    let client = dial(&bench.lab, bench.gateway.address, Some(&unknown)).await;
    assert_eq!(try_session(client).await.err().unwrap().code(), Code::PermissionDenied);

    let machine = bench.machine();
    let mut ahead = hello(&machine);
    ahead.applied_generation = 7;
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, ahead.clone()).await;
    assert_eq!(refused(&mut stream).await, "observe_only");
    bench.store.quarantine(machine.node_id);
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, ahead).await;
    assert_eq!(refused(&mut stream).await, "quarantined");

    let mut old = hello(&bench.machine());
    (old.protocol_min, old.protocol_max) = (0, 0);
    let machine = bench.machine();
    old.node_id = machine.node_id.to_string();
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, old).await;
    assert_eq!(refused(&mut stream).await, "upgrade_required");
}

#[tokio::test]
async fn the_first_frame_must_be_a_hello_and_come_soon() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream =
        try_session(dial(&bench.lab, bench.gateway.address, Some(&machine)).await).await.unwrap();
    stream.beat(1, 1);
    assert_eq!(refused(&mut stream).await, "bad_hello");
    let mut silent =
        try_session(dial(&bench.lab, bench.gateway.address, Some(&machine)).await).await.unwrap();
    assert_eq!(silent.end().await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn frames_out_of_bounds_end_the_session_and_only_that() {
    let bench = Bench::new().await;
    let (machine, neighbour) = (bench.machine(), bench.machine());
    let mut other = bench.open(&neighbour).await;

    let mut stream = bench.open(&machine).await;
    let report = vec![0; wire::limits::FRAME_BYTES_MAX + 1];
    let event = NodeEvent { seq: 1, class: 1, report: report.into(), ..NodeEvent::default() };
    stream.send(In::Events(EventBatch { journal_id: journal(1), events: vec![event] }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::OutOfRange);

    let mut stream = bench.open(&machine).await;
    let events = (1..=257).map(|seq| NodeEvent { seq, class: 1, ..NodeEvent::default() }).collect();
    stream.send(In::Events(EventBatch { journal_id: journal(1), events }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::InvalidArgument);

    let mut stream = bench.open(&machine).await;
    stream
        .send(In::Status(StatusReport { node_id: neighbour.node_id.to_string(), ..StatusReport::default() }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::InvalidArgument);

    other.beat(1, 1);
    assert!(matches!(other.frame().await, Out::HeartbeatAck(_)));
}

#[tokio::test]
async fn garbage_and_strangers_get_nothing() {
    let bench = Bench::new().await;
    let mut tcp = TcpStream::connect(bench.gateway.address).await.unwrap();
    tcp.write_all(&[0xa5; 4096]).await.unwrap();
    let mut rest = Vec::new();
    let _ = tcp.read_to_end(&mut rest).await;
    // At most an alert.
    assert!(rest.len() < 64, "{rest:?}");

    let client = dial(&bench.lab, bench.gateway.address, None).await;
    assert_eq!(try_session(client).await.err().unwrap().code(), Code::Unauthenticated);

    let elsewhere = Lab::new();
    let stranger = elsewhere.machine_of(bench.machine().node_id, &elsewhere.node_ca);
    let refused = match try_dial(&bench.lab, bench.gateway.address, Some(&stranger)).await {
        // In TLS 1.3 a client hears of it only with what it reads next.
        Ok(client) => try_session(client).await.map(drop).map_err(|status| status.to_string()),
        Err(err) => Err(err),
    };
    refused.expect_err("a certificate of another authority is refused");
}

#[tokio::test]
async fn a_lost_lease_closes_every_session_and_another_epoch_serves() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.greet(&machine).await;
    let welcome = stream.welcome().await;
    let gateway_id = welcome.gateway_id.parse().unwrap();
    bench.store.expire(gateway_id);
    assert_eq!(stream.end().await.unwrap_err().code(), Code::Unavailable);
    testkit::eventually(BOUND, || async {
        if bench.gateway.gateway.is_serving() { Ok(()) } else { Err("it does not serve again") }
    })
    .await;
    let mut stream = bench.greet(&machine).await;
    assert!(stream.welcome().await.session_epoch > welcome.session_epoch);
}

#[tokio::test]
async fn a_stop_drains_first() {
    let bench = Bench::new().await;
    let machines: Vec<Machine> = (0..3).map(|_| bench.machine()).collect();
    let mut streams = Vec::new();
    for machine in &machines {
        streams.push(bench.open(machine).await);
    }
    bench.gateway.stop.cancel();
    let mut waits = Vec::new();
    for stream in &mut streams {
        waits.push(
            stream
                .until(|frame| match frame {
                    Out::Drain(drain) => Some(drain.reconnect_after_ms),
                    _ => None,
                })
                .await,
        );
    }
    waits.sort_unstable();
    assert_eq!(waits, [0, 100, 200]);
    drop(streams);
    bench.gateway.ended.finished().await;
    for machine in &machines {
        assert_eq!(bench.store.open_session_epoch(machine.node_id), None);
    }
}

#[tokio::test]
async fn a_crowd_is_let_in_at_a_pace() {
    let lab = Lab::new();
    let store = MemoryDelivery::new(lab.clock.clone());
    let gateway = lab
        .gateway_with(Arc::new(store.clone()), |config| {
            config.sessions_per_second = 1;
            config.sessions_burst = 2;
        })
        .await;
    let machine = lab.machine();
    store.add_node(machine.node_id, &machine.serial);
    let mut waits = Vec::new();
    for _ in 0..4 {
        match try_session(dial(&lab, gateway.address, Some(&machine)).await).await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable);
                let wait = status.metadata().get(RETRY_PUSHBACK).expect("it says how long");
                waits.push(wait.to_str().unwrap().parse::<u64>().unwrap());
            }
        }
    }
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert!(waits[1] > waits[0], "{waits:?}");
}

#[tokio::test]
async fn many_nodes_are_served_at_once() {
    let bench = Bench::new().await;
    let machines: Vec<Machine> = (0..50).map(|_| bench.machine()).collect();
    let opened = machines.iter().map(|machine| async {
        let mut stream = bench.open(machine).await;
        let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
        assert_eq!(commanded(&mut stream).await.0, command_id);
        stream.send(reported(command_id, CommandState::Succeeded));
        assert_eq!(acknowledged(&mut stream).await.1, [command_id.to_string()]);
        Ok::<_, std::convert::Infallible>(stream)
    });
    try_join_all(opened).await.unwrap();
}
