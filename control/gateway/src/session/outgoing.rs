//! What the store's answers and the hub's findings send to the node.

use std::time::Duration;

use kernel::ports::delivery::{SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec};
use model::{CommandId, Lane};
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::{
    Ack, Cancel, Command, DesiredState, Drain, FreshBinding, FreshStatement, OpenTunnel, RevocationNotice,
    Welcome,
};
use wire::proto::common::{IntentSignature, SignedTrustBundle};

use super::hello::Greeting;
use super::{Answer, Effect, End, Now, Phase, Request, Session, Terms, report, send, wire_ms};

/// Times a binding is asked for again because the spec moved on in between. The backstop comes back later.
const BIND_ATTEMPTS_MAX: u8 = 3;
const STATEMENT_BYTES_MAX: usize = 1024;
/// A statement, and a worker's signature with its certificate.
const BINDING_BYTES_MAX: usize = 8 * 1024;

impl Session {
    pub(super) fn opened(&mut self, terms: &Terms, opened: SessionOpened, effects: &mut Vec<Effect>) {
        let Phase::Opening(greeting) = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let key = SessionKey { node_id: self.peer.node_id, epoch: opened.session_epoch };
        let Greeting { journal_id, applied_generation, mut results, credits, hashes, nonce, protocol } =
            *greeting;
        self.key = Some(key);
        self.journal_id = Some(journal_id);
        self.credits.report(&credits);
        self.stored = hashes;
        opened.inventory_sections.iter().for_each(|name| self.stored.forget(name));
        self.nonce = nonce;
        self.sent_generation = applied_generation;
        send(
            effects,
            Out::Welcome(Welcome {
                protocol,
                session_epoch: opened.session_epoch,
                deployment_epoch: opened.deployment_epoch,
                server_time_ms: wire_ms(opened.server_time),
                journal_id: journal_id.to_string(),
                acked_event_seq: opened.acked_event_seq,
                heartbeat_interval_ms: u32::try_from(terms.heartbeat.as_millis()).unwrap_or(u32::MAX),
                trust_bundle: opened.trust_bundle.map(|value| SignedTrustBundle { value: value.into() }),
                inventory_sections: opened.inventory_sections,
                upgrade_only: false,
                gateway_id: terms.gateway_id.to_string(),
            }),
        );
        let waits_for_results = !results.is_empty();
        if waits_for_results {
            results.iter_mut().for_each(|result| result.session = key);
            self.updates += results.len();
            effects.push(Effect::Store(Request::Updates(results)));
        }
        let waits_for_spec = opened.generation > self.sent_generation;
        self.phase =
            Phase::Settling { results: waits_for_results, spec: waits_for_spec, replay: opened.replay };
        if waits_for_spec {
            self.ask_spec(effects);
        }
        self.settle(effects);
    }

    /// Sends what was in flight once nothing has to go before it.
    pub(super) fn settle(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Settling { results: false, spec: false, replay } = &mut self.phase else { return };
        let replay = std::mem::take(replay);
        self.phase = Phase::Open;
        let cancels: Vec<(CommandId, String)> = replay
            .iter()
            .filter_map(|command| Some((command.command_id, command.cancel_requested.clone()?)))
            .collect();
        self.send_commands(replay, effects);
        for (command_id, reason) in cancels {
            self.cancel(command_id, reason, effects);
        }
    }

    pub(super) fn ask_spec(&mut self, effects: &mut Vec<Effect>) {
        let bind = self.nonce.map(|nonce| {
            let statement = FreshStatement {
                node_id: self.peer.node_id.to_string(),
                nonce: nonce.to_vec().into(),
                ..FreshStatement::default()
            };
            prost::Message::encode_to_vec(&statement)
        });
        self.spec_requested = true;
        self.request(Request::Spec { bind }, effects);
    }

    /// The hub found a newer spec.
    pub(super) fn pushed(&mut self, spec: StoredSpec, effects: &mut Vec<Effect>) {
        if self.spec_requested || spec.generation <= self.sent_generation || self.key.is_none() {
            return;
        }
        if self.nonce.is_some() {
            self.bind_attempts = 0;
            self.ask_spec(effects);
        } else {
            self.send_spec(spec, None, effects);
        }
    }

    pub(super) fn send_spec(
        &mut self,
        spec: StoredSpec,
        fresh: Option<FreshBinding>,
        effects: &mut Vec<Effect>,
    ) {
        // A late answer never takes back what a later one brought.
        if spec.generation < self.sent_generation {
            return;
        }
        self.sent_generation = spec.generation;
        send(
            effects,
            Out::DesiredState(DesiredState {
                body: spec.body.into(),
                signature: Some(IntentSignature { value: spec.signature.into() }),
                fresh,
            }),
        );
    }

    pub(super) fn send_commands(&mut self, commands: Vec<StoredCommand>, effects: &mut Vec<Effect>) {
        // Marked as sent in the store but not sent here: the next session of the node replays them.
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        for command in commands {
            let Some(lane) = Lane::parse(&command.lane) else { continue };
            self.credits.sent(command.command_id, lane);
            send(
                effects,
                Out::Command(Command {
                    body: command.body.into(),
                    signature: Some(IntentSignature { value: command.signature.into() }),
                    delivery_attempt: command.attempt,
                }),
            );
        }
    }

    pub(super) fn cancel(&mut self, command_id: CommandId, reason: String, effects: &mut Vec<Effect>) {
        if self.credits.cancel(command_id) {
            send(
                effects,
                Out::Cancel(Cancel { command_id: command_id.to_string(), reason: report::text(&reason) }),
            );
        }
    }

    pub(super) fn answer(&mut self, terms: &Terms, answer: Answer, now: Now, effects: &mut Vec<Effect>) {
        // An answer to what was not asked is no answer.
        match (&self.phase, &answer) {
            (Phase::Opening(_), Answer::Open(_)) => {}
            (Phase::Settling { .. } | Phase::Open, Answer::Open(_)) => return,
            (Phase::Settling { .. } | Phase::Open, _) => {}
            _ => return,
        }
        match answer {
            Answer::Open(opened) => {
                self.answered();
                self.heard = now.monotonic;
                match opened {
                    Ok(opened) => self.opened(terms, *opened, effects),
                    Err(refused) => {
                        let (reason, message) = refusal(&refused);
                        self.refuse(reason, message, effects);
                    }
                }
            }
            Answer::Updates { count, acknowledged } => self.updates_stored(count, acknowledged, effects),
            Answer::Events(stored) => {
                self.answered();
                match (stored, self.journal_id) {
                    (Some(event_seq), Some(journal_id)) => {
                        let journal_id = journal_id.to_string();
                        send(effects, Out::Ack(Ack { journal_id, event_seq, command_ids: Vec::new() }));
                    }
                    _ => self.end(End::TakenOver, effects),
                }
            }
            Answer::EventsRefused => {
                self.answered();
                self.events_refused.get_or_insert(now.monotonic);
            }
            Answer::Inventory(sections) => {
                self.answered();
                sections.iter().for_each(|(name, hash)| self.stored.set(*name, hash));
            }
            Answer::Spec { spec, binding } => {
                self.answered();
                self.spec_answered(spec, binding, effects);
            }
            Answer::Secret { request_id, answer } => self.secret_answered(request_id, answer, effects),
        }
    }

    pub(super) fn updates_stored(
        &mut self,
        count: usize,
        acknowledged: Vec<CommandId>,
        effects: &mut Vec<Effect>,
    ) {
        self.updates = self.updates.saturating_sub(count);
        if let Phase::Settling { results, replay, .. } = &mut self.phase {
            *results = false;
            replay.retain(|command| !acknowledged.contains(&command.command_id));
        }
        if !acknowledged.is_empty() {
            let command_ids = acknowledged.iter().map(ToString::to_string).collect();
            send(effects, Out::Ack(Ack { command_ids, ..Ack::default() }));
        }
        self.settle(effects);
    }

    pub(super) fn spec_answered(
        &mut self,
        spec: Option<StoredSpec>,
        binding: Option<Vec<u8>>,
        effects: &mut Vec<Effect>,
    ) {
        if !std::mem::take(&mut self.spec_requested) {
            return;
        }
        match (spec, self.nonce) {
            (Some(spec), None) => self.send_spec(spec, None, effects),
            (Some(spec), Some(_)) => match bound_to(binding.as_deref(), spec.generation) {
                Bound::Yes(binding) => self.send_spec(spec, Some(binding), effects),
                // The spec moved on between the two.
                Bound::Other if self.bind_attempts < BIND_ATTEMPTS_MAX => {
                    self.bind_attempts += 1;
                    return self.ask_spec(effects);
                }
                // No worker answered: the backstop finds the node behind and asks again.
                Bound::Other | Bound::No => {}
            },
            (None, _) => {}
        }
        if let Phase::Settling { spec, .. } = &mut self.phase {
            *spec = false;
        }
        self.settle(effects);
    }

    /// A node that is not there any more does not answer, and whoever waits is told so.
    pub(super) fn open_tunnel(&mut self, open: OpenTunnel, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Open) {
            send(effects, Out::OpenTunnel(open));
        }
    }

    pub(super) fn revoked(&mut self, effects: &mut Vec<Effect>) {
        let reason = "the node or its certificate was revoked".to_owned();
        send(effects, Out::Revocation(RevocationNotice { reason }));
        self.end(End::Said("revoked"), effects);
    }

    pub(super) fn drain(
        &mut self,
        reason: &'static str,
        reconnect_after: Duration,
        effects: &mut Vec<Effect>,
    ) {
        if self.key.is_none() {
            return self.end(End::Stopping, effects);
        }
        self.draining = true;
        send(
            effects,
            Out::Drain(Drain {
                reason: reason.to_owned(),
                reconnect_after_ms: u32::try_from(reconnect_after.as_millis()).unwrap_or(u32::MAX),
            }),
        );
    }
}

enum Bound {
    Yes(FreshBinding),
    /// It speaks of another generation.
    Other,
    No,
}

fn bound_to(binding: Option<&[u8]>, generation: u64) -> Bound {
    let Some(binding) = binding else { return Bound::No };
    let Ok(binding) = wire::decode::<FreshBinding>("binding", binding, BINDING_BYTES_MAX) else {
        return Bound::No;
    };
    match wire::decode::<FreshStatement>("statement", &binding.statement, STATEMENT_BYTES_MAX) {
        Ok(statement) if statement.generation == generation => Bound::Yes(binding),
        Ok(_) => Bound::Other,
        Err(_) => Bound::No,
    }
}

const fn refusal(refused: &SessionRefused) -> (&'static str, &'static str) {
    match refused {
        SessionRefused::UnknownNode => ("unknown_node", "the control plane does not know this node"),
        SessionRefused::Revoked => ("revoked", "the node or its certificate was revoked"),
        SessionRefused::Ahead | SessionRefused::ObserveOnly => (
            "observe_only",
            "the node holds newer intent than the control plane, which sends nothing until that is settled",
        ),
        SessionRefused::Quarantined => {
            ("quarantined", "the node claims newer intent than the control plane and could not prove it")
        }
    }
}
