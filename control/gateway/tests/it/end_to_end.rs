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

use crate::client::{Stream, dial, greet, half_join, hello, join, journal, renew, try_dial, try_session};
use crate::lab::{Lab, Machine, Running};

mod calls;
mod faults;
mod secrets;
mod sessions;

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
