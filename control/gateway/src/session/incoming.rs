//! What a node's frames do.

use kernel::ports::delivery::SessionKey;
use kit::mutant;
use model::lifecycle::CommandEvent;
use prost::Message;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    Ack, EventBatch, Heartbeat, HeartbeatAck, Hello, InventoryReport, InventoryRequest, NodeFrame,
    SpecRequest, StatusReport,
};

use super::hello::{self, MAP_ENTRIES_MAX};
use super::{Effect, Now, Phase, Request, Session, Terms, Violation, report, send, wire_ms};

impl Session {
    pub(super) fn frame(
        &mut self,
        frame: NodeFrame,
        terms: &Terms,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let Some(frame) = frame.frame else {
            // A frame of a newer daemon; but nothing comes before the Hello.
            if matches!(self.phase, Phase::Greeting) {
                self.refuse("bad_hello", "the first frame must be a Hello", effects);
            }
            return Ok(());
        };
        let key = match (&self.phase, self.key) {
            (Phase::Greeting, _) => {
                match frame {
                    In::Hello(hello) => self.hello(hello, terms, effects),
                    _ => self.refuse("bad_hello", "the first frame must be a Hello", effects),
                }
                return Ok(());
            }
            (Phase::Settling { .. } | Phase::Open, Some(key)) => key,
            _ => return Err(Violation { frame: "frame", field: "order: the Welcome has not come yet" }),
        };
        match frame {
            In::Hello(_) => return Err(Violation { frame: "second Hello", field: "order" }),
            In::Heartbeat(heartbeat) => self.heartbeat(heartbeat, now, effects)?,
            In::Status(report) => self.status(report, key, now)?,
            In::CommandUpdate(update) => {
                let update = report::update(update, key)?;
                if mutant::on("gateway.result-acked-unstored") && ended(update.event) {
                    let command_ids = vec![update.command_id.to_string()];
                    send(effects, Out::Ack(Ack { command_ids, ..Ack::default() }));
                }
                self.credits.update(update.command_id, update.event);
                self.updates += 1;
                effects.push(Effect::Store(Request::Updates(vec![update])));
            }
            In::Events(batch) => self.events(batch, now, effects)?,
            In::SpecRequest(request) => self.spec_request(&request, effects),
            In::Inventory(report) => self.inventory(report, key, now, effects)?,
            // Whoever waits for the tunnel was told on the way here.
            In::TunnelRefused(_) => {}
            In::SecretRequest(request) => self.secret_request(request, now, effects)?,
        }
        Ok(())
    }

    pub(super) fn hello(&mut self, hello: Hello, terms: &Terms, effects: &mut Vec<Effect>) {
        let claimed: String = hello.node_id.chars().filter(|c| !c.is_control()).take(64).collect();
        match hello::parse(hello, self.peer.node_id, &self.peer.cert_serial, terms.versions) {
            Ok((facts, greeting)) => {
                self.request(Request::Open(Box::new(facts)), effects);
                self.phase = Phase::Opening(Box::new(greeting));
            }
            Err(hello::Refused::WrongNode) => {
                tracing::warn!(
                    target: "security",
                    node_id = %self.peer.node_id, claimed, cert_serial = %self.peer.cert_serial,
                    "Hello names another node than its certificate"
                );
                self.refuse("wrong_node", "the Hello names another node than the certificate", effects);
            }
            Err(hello::Refused::UpgradeRequired(theirs)) => {
                let spoken = terms.versions;
                let message = format!("this gateway speaks protocol {spoken}, and the node {theirs}");
                self.refuse("upgrade_required", &message, effects);
            }
            Err(hello::Refused::Bad(field)) => {
                self.refuse("bad_hello", &format!("the Hello has an invalid {field}"), effects);
            }
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        beat: Heartbeat,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let violation = |field| Violation { frame: "heartbeat", field };
        if beat.lane_credits.len() > MAP_ENTRIES_MAX {
            return Err(violation("lane_credits"));
        }
        if beat.inventory_hashes.len() > MAP_ENTRIES_MAX {
            return Err(violation("inventory_hashes"));
        }
        self.credits.report(&beat.lane_credits);
        self.beat = true;
        send(effects, Out::HeartbeatAck(HeartbeatAck { seq: beat.seq, server_time_ms: wire_ms(now.server) }));
        let sections = self.stored.changed(&beat.inventory_hashes);
        if !sections.is_empty() {
            send(effects, Out::InventoryRequest(InventoryRequest { sections }));
        }
        Ok(())
    }

    pub(super) fn status(
        &mut self,
        report: StatusReport,
        key: SessionKey,
        now: Now,
    ) -> Result<(), Violation> {
        let mut status = report::status(report, key, now.server)?;
        if status.applied_generation > 0 {
            self.has_a_mark();
        }
        // A word on trust is said in one report only: a later one must not swallow it.
        if let Some(before) = &self.status
            && status.trust_version == 0
        {
            status.trust_version = before.trust_version;
        }
        self.status = Some(Box::new(status));
        Ok(())
    }

    pub(super) fn events(
        &mut self,
        batch: EventBatch,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let Some(journal_id) = self.journal_id.filter(|held| batch.journal_id == held.to_string()) else {
            return Ok(());
        };
        self.pace.events(batch.events.len(), batch.encoded_len(), now.monotonic);
        self.slowed = self.pace.is_ahead(now.monotonic);
        let events = report::events(batch, now.server)?;
        if mutant::on("gateway.events-acked-unstored")
            && let Some(last) = events.last()
        {
            let journal_id = journal_id.to_string();
            send(effects, Out::Ack(Ack { journal_id, event_seq: last.seq, command_ids: Vec::new() }));
        }
        if !events.is_empty() && self.takes_events() {
            self.request(Request::Events { journal_id, events }, effects);
        }
        Ok(())
    }

    pub(super) fn inventory(
        &mut self,
        report: InventoryReport,
        key: SessionKey,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        if !self.pace.inventory(report.encoded_len(), now.monotonic) {
            return Err(Violation { frame: "inventory report", field: "rate" });
        }
        let sections = report::inventory(report, key)?;
        if !sections.is_empty() {
            self.request(Request::Inventory(sections), effects);
        }
        Ok(())
    }

    pub(super) fn spec_request(&mut self, request: &SpecRequest, effects: &mut Vec<Effect>) {
        if request.have_generation > 0 {
            self.has_a_mark();
        } else {
            self.bind_attempts = 0;
        }
        // What was sent may not have been taken; the answer carries the current one whatever was sent.
        if !self.spec_requested {
            self.ask_spec(effects);
        }
    }

    /// It has taken a spec since its Hello, so that what follows needs no binding.
    pub(super) fn has_a_mark(&mut self) {
        self.nonce = None;
    }
}

/// Whether a report is a command's last.
fn ended(event: CommandEvent) -> bool {
    matches!(
        event,
        CommandEvent::Succeeded | CommandEvent::Failed | CommandEvent::Rejected | CommandEvent::Cancelled
    )
}
