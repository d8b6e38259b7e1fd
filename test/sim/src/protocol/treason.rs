//! What is put on a connection by those who hold a valid certificate and mean harm.

use std::collections::VecDeque;

use agent::testing::command_id;
use model::CommandId;
use pki::Purpose;
use prost::Message;
use wire::proto::agent::gateway_frame::Frame as Down;
use wire::proto::agent::node_frame::Frame as Up;
use wire::proto::agent::{
    Ack, Cancel, Command, CommandBody, CommandState, CommandUpdate, DesiredState, EventBatch, GatewayFrame,
    HeartbeatAck, Hello, NodeEvent, NodeFrame, RevocationNotice, StatusReport,
};
use wire::proto::common::IntentSignature;

use super::action::{Lie, Treason, Version};
use super::clock::moment;
use super::draw::{For, pick};
use super::hostile::{HOUR_MS, Twist};
use super::network::Packet;
use super::nodes::Wire;
use super::plane::{SignedSpec, keys, node_id};
use super::world::World;

impl World {
    fn drawn(&mut self, n: usize, what: For) -> u64 {
        self.nodes[n].drawn += 1;
        self.draw.number(what, n as u64, self.nodes[n].drawn)
    }

    /// The connection node `n` uses now.
    pub fn connection_of(&self, n: usize) -> Option<u64> {
        match self.nodes[n].process.as_ref()?.wire {
            Wire::Up(id) => Some(id),
            Wire::Down | Wire::Dialing { .. } => None,
        }
    }

    /// Puts a frame of a hostile gateway on node `n`'s connection.
    fn inject_down(&mut self, n: usize, fault: &'static str, frame: Option<GatewayFrame>) {
        let (Some(id), Some(frame)) = (self.connection_of(n), frame) else { return };
        self.hit(fault);
        // An old one may come before the true one.
        self.nodes[n].lied_to |= matches!(frame.frame, Some(Down::Welcome(_)));
        self.transcript.frame(self.now, "hostile", id, &frame);
        self.turned(id);
        self.net.send_down(id, Packet::Frame(Box::new(frame)), self.now, self.draw);
    }

    fn inject_up(&mut self, n: usize, fault: &'static str, frame: Option<Up>) {
        let (Some(id), Some(frame)) = (self.connection_of(n), frame) else { return };
        self.hit(fault);
        let frame = NodeFrame { frame: Some(frame) };
        self.transcript.frame(self.now, "lie", id, &frame);
        self.net.send_up(id, Packet::Frame(Box::new(frame)), self.now, self.draw);
    }

    /// This connection's gateway is not ours.
    pub fn turned(&mut self, id: u64) {
        if let Some(connection) = self.net.connections.get_mut(&id) {
            connection.hostile = true;
        }
    }

    pub fn hostile_gateway(&mut self, n: usize, does: Treason) {
        let drawn = self.drawn(n, For::Hostile);
        let down = |frame: Down| Some(GatewayFrame { frame: Some(frame) });
        let frame = match does {
            Treason::Replay => {
                self.watch.replayed_to[n] = true;
                pick(&self.hostile.captured[n], drawn).cloned()
            }
            Treason::Double => {
                self.watch.replayed_to[n] = true;
                self.hostile.captured[n].back().cloned()
            }
            Treason::Divert => {
                let other = (n + 1 + usize::try_from(drawn % 3).unwrap_or(0)) % self.nodes.len();
                let theirs: VecDeque<GatewayFrame> = self.hostile.captured[other]
                    .iter()
                    .filter(|frame| {
                        other != n && matches!(frame.frame, Some(Down::Command(_) | Down::DesiredState(_)))
                    })
                    .cloned()
                    .collect();
                pick(&theirs, drawn).cloned()
            }
            Treason::Withhold => {
                self.hostile.withhold[n] += 1 + u32::try_from(drawn % 3).unwrap_or(0);
                return;
            }
            Treason::Swap => {
                self.hostile.swaps[n] = true;
                return;
            }
            Treason::ForgeCommand => down(Down::Command(self.forged_command(n, drawn))),
            Treason::AlterCommand => self.altered_command(n, drawn).map(Down::Command).and_then(down),
            Treason::ForgeSpec => self.forged_spec(n, drawn).map(Down::DesiredState).and_then(down),
            Treason::OldSpec => self.old_spec(n, drawn).map(Down::DesiredState).and_then(down),
            Treason::StaleSpec => {
                self.hostile.stale[n] = self.old_spec(n, drawn);
                return;
            }
            Treason::ForgeAck => {
                let ids = self.own_commands(n).iter().map(ToString::to_string).collect();
                down(Down::Ack(Ack { command_ids: ids, ..Ack::default() }))
            }
            Treason::OldAck => {
                let acks: VecDeque<GatewayFrame> = self.hostile.captured[n]
                    .iter()
                    .filter(|frame| matches!(&frame.frame, Some(Down::Ack(ack)) if ack.event_seq > 0))
                    .cloned()
                    .collect();
                pick(&acks, drawn).cloned()
            }
            Treason::ForgeCancel => {
                let own = self.own_commands(n);
                let id = pick(&own, drawn);
                id.and_then(|id| {
                    down(Down::Cancel(Cancel { command_id: id.to_string(), reason: "forged".to_owned() }))
                })
            }
            Treason::HighAck => {
                self.hostile.high_ack[n] = true;
                return;
            }
            Treason::PastWelcome => {
                self.hostile.welcome[n] = Some(Twist::Past);
                return;
            }
            Treason::FutureWelcome => {
                self.hostile.welcome[n] = Some(Twist::Future);
                return;
            }
            Treason::FutureBeat => {
                let now = u64::try_from(moment(self.now).millis()).unwrap_or(0);
                let server_time_ms = now + if drawn.is_multiple_of(2) { 24 * HOUR_MS } else { 4 * 60_000 };
                down(Down::HeartbeatAck(HeartbeatAck { seq: 1, server_time_ms }))
            }
            Treason::Revoke => down(Down::Revocation(RevocationNotice { reason: "forged".to_owned() })),
            Treason::Garbage => Some(GatewayFrame { frame: None }),
        };
        self.inject_down(n, does.name(), frame);
    }

    fn journal_of(&self, n: usize) -> model::JournalId {
        agent::journal::JournalStore::id(self.nodes[n].disk.as_ref())
    }

    fn own_commands(&self, n: usize) -> Vec<CommandId> {
        self.plane.commands.iter().filter(|(_, issued)| issued.node == n).map(|(id, _)| *id).collect()
    }

    fn forged_command(&self, n: usize, drawn: u64) -> Command {
        let body = CommandBody {
            command_id: command_id(u128::from(1000 + drawn % 50)).to_string(),
            node_id: node_id(n).to_string(),
            deployment_epoch: self.plane.epoch,
            kind: "gpu.reset".to_owned(),
            not_before_ms: 1,
            not_after_ms: u64::try_from(moment(self.now).millis()).unwrap_or(0) + HOUR_MS,
            payload: Some(wire::command::empty_payload(model::CommandKind::GpuReset)),
            ..CommandBody::default()
        };
        let body = bytes::Bytes::from(body.encode_to_vec());
        let value = keys().forge(Purpose::Command, &body);
        Command { signature: Some(IntentSignature { value }), body, delivery_attempt: 1 }
    }

    /// A command that was signed, and says something else now.
    fn altered_command(&mut self, n: usize, drawn: u64) -> Option<Command> {
        let own = self.own_commands(n);
        let id = *pick(&own, drawn)?;
        // A node refuses it under the name it bears, also when the true one has not been sent yet.
        self.watch.lied_about.insert(id);
        let issued = &self.plane.commands[&id];
        let value = keys().sign(Purpose::Command, &issued.bytes);
        let mut body = issued.body.clone();
        match drawn % 3 {
            0 => body.not_after_ms += 24 * HOUR_MS,
            1 => body.command_id = command_id(u128::from(2000 + drawn % 50)).to_string(),
            _ => {
                body.kind = "gpu.reset".to_owned();
                body.payload = Some(wire::command::empty_payload(model::CommandKind::GpuReset));
                body.command_id = command_id(u128::from(3000 + drawn % 50)).to_string();
            }
        }
        let body = bytes::Bytes::from(body.encode_to_vec());
        Some(Command { signature: Some(IntentSignature { value }), body, delivery_attempt: 1 })
    }

    fn forged_spec(&self, n: usize, drawn: u64) -> Option<DesiredState> {
        let newest = self.plane.newest[n];
        let real = self.plane.specs.iter().rev().find(|((node, _, _), _)| *node == n)?.1;
        let mut body = real.body.clone();
        body.generation = newest + 1 + drawn % 4;
        body.deployment_epoch = self.plane.epoch;
        let bytes = bytes::Bytes::from(body.encode_to_vec());
        let value = if drawn.is_multiple_of(2) {
            keys().forge(Purpose::DesiredState, &bytes)
        } else {
            keys().sign(Purpose::DesiredState, &real.bytes)
        };
        Some(DesiredState { body: bytes, signature: Some(IntentSignature { value }), fresh: None })
    }

    /// A spec that was signed for this node, of before. History of an epoch that is over only where the node knows of the next:
    /// before that, nobody could tell.
    fn old_spec(&self, n: usize, drawn: u64) -> Option<DesiredState> {
        let node = &self.nodes[n];
        let marks = node.disk.durable_marks().max(node.kept.marks);
        let (newest, epoch) = (self.plane.newest[n], self.plane.epoch);
        let old: Vec<&SignedSpec> = self
            .plane
            .specs
            .iter()
            .filter(|((of, _, generation), _)| *of == n && *generation <= newest + 3)
            .filter(
                |((_, of, generation), _)| {
                    if *of == epoch { *generation < newest } else { marks.deployment_epoch == epoch }
                },
            )
            .map(|(_, spec)| spec)
            .collect();
        let spec = pick(&old, drawn)?;
        let value = keys().sign(Purpose::DesiredState, &spec.bytes);
        Some(DesiredState {
            body: spec.bytes.clone(),
            signature: Some(IntentSignature { value }),
            fresh: None,
        })
    }

    pub fn hostile_node(&mut self, n: usize, says: Lie) {
        let drawn = self.drawn(n, For::Hostile);
        let frame = match says {
            Lie::OtherNode => return self.hostile.hello[n] = Some(Twist::OtherNode),
            Lie::HighGeneration => return self.hostile.hello[n] = Some(Twist::HighGeneration),
            Lie::HighObserved => return self.hostile.hello[n] = Some(Twist::HighObserved),
            Lie::HighEpoch => return self.hostile.hello[n] = Some(Twist::HighEpoch),
            Lie::Double => return self.hostile.twice[n] += 3,
            Lie::ForeignResult => {
                let others: Vec<CommandId> = self
                    .plane
                    .commands
                    .iter()
                    .filter(|(_, issued)| issued.node != n)
                    .map(|(id, _)| *id)
                    .collect();
                pick(&others, drawn).map(|id| update(*id, CommandState::Succeeded))
            }
            Lie::Regress => {
                let own = self.own_commands(n);
                pick(&own, drawn).map(|id| {
                    self.watch.lied_about.insert(*id);
                    let settled = self.delivery.command_fate(*id).is_some_and(|fate| fate.state.terminal());
                    let state = match drawn % 4 {
                        0 if settled => CommandState::Failed,
                        1 if settled => CommandState::Succeeded,
                        2 => CommandState::Busy,
                        _ => CommandState::Acked,
                    };
                    update(*id, state)
                })
            }
            Lie::OldEvents => self.watch.first_event(self.journal_of(n)).map(|report| {
                let event = NodeEvent { seq: 1, class: 2, report: report.into(), ..NodeEvent::default() };
                Up::Events(EventBatch { journal_id: self.journal_of(n).to_string(), events: vec![event] })
            }),
            Lie::ForeignEvents => Some(Up::Events(EventBatch {
                journal_id: super::nodes::journal_id(n, 999).to_string(),
                events: vec![NodeEvent { seq: 1 + drawn % 100, class: 2, ..NodeEvent::default() }],
            })),
            Lie::ForeignStatus => Some(Up::Status(StatusReport {
                node_id: node_id(n + 1).to_string(),
                applied_generation: 1 << 40,
                observed_generation: 1 << 40,
                ..StatusReport::default()
            })),
            Lie::SecondHello => {
                Some(Up::Hello(Hello { node_id: node_id(n).to_string(), ..Hello::default() }))
            }
        };
        self.inject_up(n, says.name(), frame);
    }

    pub fn speaks(&mut self, n: usize, version: Version) {
        match version {
            Version::OldAgent => self.hostile.hello[n] = Some(Twist::OldVersion),
            Version::NewAgent => self.hostile.hello[n] = Some(Twist::NewVersion),
            Version::OldGateway => self.hostile.welcome[n] = Some(Twist::OldVersion),
            Version::NewGateway => self.inject_down(n, "new-gateway", Some(GatewayFrame { frame: None })),
        }
    }
}

fn update(id: CommandId, state: CommandState) -> Up {
    Up::CommandUpdate(CommandUpdate {
        command_id: id.to_string(),
        state: state.into(),
        boot_id: "boot-1".to_owned(),
        ..CommandUpdate::default()
    })
}
