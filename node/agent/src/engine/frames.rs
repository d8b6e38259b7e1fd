//! What the engine does with each frame of the gateway, and what it says first.

use std::sync::Arc;

use kit::mutant;
use model::condition::Severity;
use pki::SignedMessage;
use wire::limits::{FRAME_BYTES_MAX, HELLO_COMMANDS_MAX};
use wire::proto::agent::gateway_frame::Frame;
use wire::proto::agent::node_frame::Frame as NodeFrame;
use wire::proto::agent::{
    Ack, Command, CommandState, DesiredState, GatewayFrame, Heartbeat, HeartbeatAck, Hello, InFlight,
    OpenTunnel, Refusal, SpecRequest, TunnelRefused, Welcome,
};

use super::{Engine, SPEC_REQUEST_PERIOD};
use crate::clock::Now;
use crate::converge::Fact;
use crate::desired::{self, SpecRefused};
use crate::effect::{Effect, Outgoing};
use crate::journal::{HeadStage, Spent};
use crate::session::Phase;
use crate::tunnel;

/// What a Hello holds beside the spec's body and results.
const HELLO_ROOM: usize = 128 * 1024;
/// Sections one request may name; an inventory has under ten.
const INVENTORY_SECTIONS_MAX: usize = 64;

impl Engine {
    pub(super) fn greet(&mut self, now: Now) {
        if *self.session.phase() != Phase::Dialing {
            return;
        }
        let nonce: [u8; 32] = self.rng.bytes();
        let in_flight = self
            .journal
            .entries()
            .filter_map(|(id, head)| {
                let state = match head.stage {
                    HeadStage::Accepted => CommandState::Acked,
                    HeadStage::Running { .. } => CommandState::Running,
                    HeadStage::Done { .. } => return None,
                };
                Some(InFlight { command_id: id.to_string(), state: state.into() })
            })
            .take(HELLO_COMMANDS_MAX)
            .collect();
        // Costs are rounded up, so they are more than the bytes; the largest spec leaves no room for results, and those follow
        // after the Welcome.
        let room = FRAME_BYTES_MAX.saturating_sub(HELLO_ROOM).saturating_sub(self.journal.spec_bytes());
        let results = self.hello_results(room);
        let hello = Hello {
            node_id: self.node.node_id.to_string(),
            protocol_min: self.versions.min,
            protocol_max: self.versions.max,
            agent_version: self.node.agent_version.clone(),
            journal_id: self.journal.id().to_string(),
            incarnation_id: self.journal.incarnation().to_string(),
            boot_id: self.node.boot_id.clone(),
            applied_generation: self.held.as_ref().map_or(0, |held| held.generation),
            observed_generation: self.status.observed_generation,
            applied_spec_hash: self.held.as_ref().map(|held| held.hash.clone()).unwrap_or_default(),
            deployment_epoch: self.journal.marks().deployment_epoch,
            trust_version: self.trust.version,
            in_flight,
            inventory_hashes: self.hashes.clone(),
            capabilities: self.node.capabilities.clone(),
            nonce: nonce.to_vec().into(),
            fresh: self.journal.marks().is_fresh(),
            last_event_seq: self.journal.last_seq(),
            lane_credits: self.dispatcher.credits(),
            ..Hello::default()
        };
        let listed = results.iter().copied().collect();
        self.session.greeting(nonce.to_vec(), results, now.monotonic);
        self.send(Outgoing::Hello { hello: Box::new(hello), results: listed });
    }

    pub(super) fn frame(&mut self, frame: GatewayFrame, now: Now) {
        let Some(frame) = frame.frame else { return };
        match (self.session.phase(), frame) {
            (Phase::Greeting { .. }, Frame::Welcome(welcome)) => self.welcome(welcome, now),
            (Phase::Greeting { .. } | Phase::Open, Frame::Refusal(refusal)) => self.refused(&refusal, now),
            (Phase::Greeting { .. }, _) => self.hang_up("the gateway did not begin with a Welcome", now),
            (Phase::Open, frame) => self.open_frame(frame, now),
            // From a connection that is already given up.
            (Phase::Waiting { .. } | Phase::Dialing, _) => {}
        }
    }

    fn open_frame(&mut self, frame: Frame, now: Now) {
        match frame {
            Frame::Welcome(_) => self.hang_up("the gateway sent a second Welcome", now),
            Frame::HeartbeatAck(ack) => self.heartbeat_ack(&ack, now),
            Frame::DesiredState(desired) => self.desired(&desired, now),
            Frame::Command(command) => self.command(command, now),
            Frame::Cancel(cancel) => match cancel.command_id.parse() {
                Ok(id) => self.with_dispatcher(now, |dispatcher, _, cx| dispatcher.cancel(id, cx)),
                Err(_) => tracing::warn!("cancel without a readable command id, ignored"),
            },
            Frame::Ack(ack) => self.ack(&ack, now),
            Frame::Drain(drain) => {
                let delay = std::time::Duration::from_millis(drain.reconnect_after_ms.into());
                tracing::info!(reason = %crate::conditions::cut(&drain.reason), ?delay, "gateway drains");
                self.session.drain(delay, now.monotonic);
            }
            Frame::Revocation(notice) => {
                tracing::error!(reason = %crate::conditions::cut(&notice.reason), "this node is revoked; holds stay");
                self.revoked = true;
                self.effects.push(Effect::CloseTunnels);
                let fact = agent_fact("Revoked", Severity::Blocking, "revoked", &notice.reason);
                self.own_fact("Revoked", Some(fact), now);
            }
            Frame::InventoryRequest(request) => self.send_inventory(request.sections),
            Frame::Refusal(refusal) => self.refused(&refusal, now),
            Frame::OpenTunnel(open) => self.open_tunnel(&open, now),
            Frame::SecretAnswer(answer) => self.secret_answer(&answer, now),
        }
    }

    /// Lets somebody in whose ticket is good, once: that it was used is durable before anything is opened.
    fn open_tunnel(&mut self, open: &OpenTunnel, now: Now) {
        if self.revoked {
            return;
        }
        let estimate = self.clock.estimate(now, self.journal.marks().server_time_ms);
        let at = self.clock.now(now).unwrap_or(estimate);
        let facts = tunnel::Facts {
            node_id: self.node.node_id,
            deployment_epoch: self.journal.marks().deployment_epoch,
            now: at,
            verifier: &self.verifier,
        };
        let ticket = match tunnel::judge(&facts, &open.ticket) {
            Ok(ticket) => ticket,
            Err(refused) => {
                tracing::warn!(target: "security", tunnel_id = refused.tunnel_id, reason = refused.reason, "ticket refused");
                return self.refuse_tunnel(refused.tunnel_id, refused.reason, &refused.message);
            }
        };
        let id = ticket.tunnel_id.to_string();
        match self.journal.spend_ticket(&id, ticket.open_until, at) {
            Spent::Now => {}
            Spent::Before => {
                tracing::warn!(target: "security", tunnel_id = id, "a ticket came that was used before");
                return self.refuse_tunnel(id, "spent", "the ticket was used before");
            }
            Spent::TooMany => return self.refuse_tunnel(id, "busy", "too many tickets within a minute"),
        }
        let address = (!open.address.is_empty()).then(|| open.address.clone());
        let lasts = ticket.ends_at.since(at);
        self.effects.push(Effect::OpenTunnel { ticket, address, lasts });
    }

    pub(super) fn refuse_tunnel(&mut self, tunnel_id: String, reason: &str, message: &str) {
        let refused = TunnelRefused { tunnel_id, reason: reason.to_owned(), message: message.to_owned() };
        self.send(Outgoing::frame(NodeFrame::TunnelRefused(refused)));
    }

    fn welcome(&mut self, welcome: Welcome, now: Now) {
        if !self.versions.contain(welcome.protocol) && !mutant::on("agent.any-version") {
            return self.hang_up("the gateway speaks no protocol version of ours", now);
        }
        let mark = self.journal.marks().server_time_ms;
        if let Err(refused) = self.clock.welcome(welcome.server_time_ms, mark, self.certificate.ends, now) {
            tracing::warn!(err = %refused, "Welcome refused");
            let fact = agent_fact("ServerTimeRefused", Severity::Warning, "clock", &refused.to_string());
            self.own_fact("ServerTimeRefused", Some(fact), now);
            return self.hang_up("the gateway's time is refused", now);
        }
        self.own_fact("ServerTimeRefused", None, now);
        self.raise_time_mark(welcome.server_time_ms, now);
        let (interval, upgrade_only) = (welcome.heartbeat_interval_ms, welcome.upgrade_only);
        let greeted = self.session.opened(welcome.session_epoch, interval, upgrade_only, now.monotonic);
        tracing::info!(node_id = %self.node.node_id, epoch = welcome.session_epoch, "session open");
        // A session is only given to a node that is not revoked.
        self.revoked = false;
        self.own_fact("Revoked", None, now);
        if welcome.journal_id == self.journal.id().to_string() {
            self.journal.events_acked(welcome.acked_event_seq);
            self.session.events_acked(welcome.acked_event_seq);
        }
        let late: Vec<_> = self.journal.unacked_results().filter(|id| !greeted.contains(id)).collect();
        for id in late {
            self.send(Outgoing::Result(id));
        }
        self.send_inventory(welcome.inventory_sections);
        if let Some(bundle) = welcome.trust_bundle {
            self.trust_bundle(&bundle.value);
        }
        self.status.changed();
    }

    fn trust_bundle(&mut self, signed: &bytes::Bytes) {
        let taken = SignedMessage::decode(signed)
            .map_err(pki::trust::TrustRefused::from)
            .and_then(|message| self.trust.replaced_by(&message));
        match taken {
            Ok(Some(bundle)) => {
                self.effects.push(Effect::StoreTrust { version: bundle.version, signed: signed.clone() });
                self.trust_pending = Some(Box::new(bundle));
            }
            // The one held: say so, since the gateway did not know.
            Ok(None) => self.status.trust_taken(self.trust.version),
            Err(err) => tracing::warn!(err = kit::chain(&err), "trust bundle refused"),
        }
    }

    fn refused(&mut self, refusal: &Refusal, now: Now) {
        let reason = crate::conditions::cut(&refusal.reason);
        tracing::warn!(reason, message = %crate::conditions::cut(&refusal.message), "gateway refused the session");
        self.hang_up(&format!("refused: {reason}"), now);
    }

    pub(super) fn beat(&mut self, seq: u64, with_hashes: bool) {
        let heartbeat = Heartbeat {
            seq,
            lane_credits: self.dispatcher.credits(),
            inventory_hashes: if with_hashes { self.hashes.clone() } else { Default::default() },
            last_event_seq: self.journal.last_seq(),
        };
        self.send(Outgoing::frame(NodeFrame::Heartbeat(heartbeat)));
    }

    fn heartbeat_ack(&mut self, ack: &HeartbeatAck, now: Now) {
        self.session.heartbeat_acked(ack.seq, now.monotonic);
        if self.clock.heartbeat(ack.server_time_ms, now) {
            self.raise_time_mark(ack.server_time_ms, now);
        } else {
            tracing::warn!(
                stated_ms = ack.server_time_ms,
                "the gateway's time is implausibly ahead, ignored"
            );
        }
    }

    fn ack(&mut self, ack: &Ack, now: Now) {
        let ours = ack.journal_id == self.journal.id().to_string() || mutant::on("agent.ack-of-any-journal");
        if ack.event_seq > 0 && ours {
            // Beyond what there is says nothing about this journal within a session.
            let seq = ack.event_seq.min(self.journal.last_seq());
            self.journal.events_acked(seq);
            self.session.events_acked(seq);
        }
        for id in ack.command_ids.iter().take(HELLO_COMMANDS_MAX).filter_map(|id| id.parse().ok()) {
            self.journal.result_acked(id);
        }
        if self.own_facts.contains_key("JournalFull") {
            // The next command finds out whether it was enough.
            self.own_fact("JournalFull", None, now);
        }
    }

    fn command(&mut self, command: Command, now: Now) {
        if self.revoked {
            return;
        }
        let delivered =
            self.with_dispatcher(now, |dispatcher, facts, cx| dispatcher.deliver(command, facts, cx));
        if delivered.wants_spec {
            self.request_spec("min-generation", now);
        }
        let full = delivered.journal_full.then(|| {
            agent_fact(
                "JournalFull",
                Severity::Warning,
                "full",
                "no new command is taken until results are acknowledged",
            )
        });
        if full.is_some() {
            self.own_fact("JournalFull", full, now);
        }
        self.mirror_marks();
    }

    fn desired(&mut self, delivered: &DesiredState, now: Now) {
        if self.revoked {
            return;
        }
        let estimate = self.clock.estimate(now, self.journal.marks().server_time_ms);
        let facts = desired::Facts {
            node_id: self.node.node_id,
            held: self.held.as_deref(),
            marks: self.journal.marks(),
            nonce: self.session.nonce(),
            now: self.clock.now(now).unwrap_or(estimate),
            verifier: &self.verifier,
            validators: &self.validators,
        };
        match desired::judge(&facts, delivered) {
            Ok((stored, held)) => {
                tracing::info!(node_id = %self.node.node_id, generation = held.generation, "took a spec");
                if !mutant::on("agent.spec-not-journaled") {
                    self.journal.take_spec(stored);
                }
                self.mirror_marks();
                self.status.took_spec(&held);
                self.held = Some(Arc::new(held));
                self.own_fact("SpecRefused", None, now);
                self.effects.push(Effect::Converge);
            }
            // The gateway's backstop sends again what is already here.
            Err(SpecRefused::NotNewer { .. }) => {}
            Err(refused) => self.spec_refused(&refused, now),
        }
    }

    fn spec_refused(&mut self, refused: &SpecRefused, now: Now) {
        let text = kit::chain(refused);
        tracing::warn!(node_id = %self.node.node_id, err = text, "spec refused");
        let fact = agent_fact("SpecRefused", Severity::Warning, "refused", &text);
        self.own_fact("SpecRefused", Some(fact), now);
        if refused.wants_full_spec() {
            self.request_spec("full-spec", now);
        }
    }

    fn request_spec(&mut self, reason: &str, now: Now) {
        if self.spec_requested.is_some_and(|at| now.monotonic < at + SPEC_REQUEST_PERIOD) {
            return;
        }
        self.spec_requested = Some(now.monotonic);
        let have_generation = self.held.as_ref().map_or(0, |held| held.generation);
        let request = SpecRequest { have_generation, reason: reason.to_owned() };
        self.send(Outgoing::frame(NodeFrame::SpecRequest(request)));
    }

    fn send_inventory(&mut self, mut sections: Vec<String>) {
        sections.retain(|name| self.hashes.contains_key(name));
        sections.truncate(INVENTORY_SECTIONS_MAX);
        sections.sort();
        sections.dedup();
        if !sections.is_empty() {
            self.send(Outgoing::Inventory(sections));
        }
    }
}

pub(super) fn agent_fact(kind: &str, severity: Severity, reason: &str, message: &str) -> Fact {
    Fact {
        kind: kind.to_owned(),
        severity,
        device: String::new(),
        reason: reason.to_owned(),
        message: crate::conditions::cut(message),
        age: None,
    }
}
