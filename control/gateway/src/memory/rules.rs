//! The rules, over plain values.

use kernel::ports::delivery::{
    CurrentSpec, GatewayLease, HelloFacts, LaneCredits, ReportedEvent, ReportedStatus, ReportedUpdate,
    SessionEnd, SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use kit::mutant;
use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, CommandKind, JournalId, NodeId, Timestamp};

use super::{Command, Node, Session, State};

impl State {
    pub(super) fn command(&mut self, command_id: CommandId) -> Option<&mut Command> {
        self.commands.iter_mut().find(|command| command.stored.command_id == command_id)
    }

    /// The session, while it is open and this gateway's.
    pub(super) fn held(&mut self, lease: GatewayLease, key: SessionKey) -> Option<&mut Session> {
        let session = self.nodes.get_mut(&key.node_id)?.session.as_mut()?;
        let current = session.open && session.epoch == key.epoch && session.gateway == lease;
        (current || mutant::on("delivery.session-ignored")).then_some(session)
    }

    fn is_held(&self, lease: GatewayLease, key: SessionKey) -> bool {
        let session = self.nodes.get(&key.node_id).and_then(|node| node.session.as_ref());
        let current =
            session.is_some_and(|held| held.open && held.epoch == key.epoch && held.gateway == lease);
        current || mutant::on("delivery.session-ignored")
    }

    /// Whether anything may be sent to the node.
    fn may_send(&self, node_id: NodeId) -> bool {
        let node = self.nodes.get(&node_id);
        let observes = self.observe_only && !mutant::on("delivery.unconfirmed-restore-sends");
        !observes && node.is_some_and(|node| !node.revoked && !node.quarantined)
    }

    pub(super) fn open(
        &mut self,
        lease: GatewayLease,
        hello: &HelloFacts,
        now: Timestamp,
    ) -> Result<SessionOpened, SessionRefused> {
        let (observe_only, deployment_epoch) = (self.observe_only, self.deployment_epoch);
        let may_send = self.may_send(hello.node_id);
        let node = self.nodes.get_mut(&hello.node_id).ok_or(SessionRefused::UnknownNode)?;
        if node.revoked || node.certificates.get(&hello.cert_serial).is_none_or(|revoked| *revoked) {
            return Err(SessionRefused::Revoked);
        }
        let generation = node.spec.as_ref().map_or(0, |spec| spec.generation);
        if hello.applied_generation > generation || hello.deployment_epoch > deployment_epoch {
            return Err(match (observe_only, node.quarantined) {
                (true, _) => SessionRefused::ObserveOnly,
                (false, true) => SessionRefused::Quarantined,
                (false, false) => {
                    node.claim = Some(hello.applied_generation);
                    SessionRefused::Ahead
                }
            });
        }
        self.session_epochs += 1;
        let epoch = self.session_epochs;
        let before = node.session.clone();
        let kept = before.as_ref().filter(|held| held.gateway == lease);
        let kept = kept.filter(|_| mutant::on("delivery.reconnect-keeps-epoch"));
        let epoch = kept.map_or(epoch, |held| held.epoch);
        let acked = acked(node, before.as_ref(), hello.journal_id);
        node.session = Some(Session {
            epoch,
            gateway: lease,
            cert_serial: hello.cert_serial.clone(),
            journal_id: hello.journal_id,
            boot_id: hello.boot_id.clone(),
            open: true,
            acked,
            beats: before.as_ref().map_or(0, |session| session.beats),
        });
        let newest = if mutant::on("delivery.hello-observed-as-told") { u64::MAX } else { generation };
        node.observed_generation = node.observed_generation.max(hello.observed_generation.min(newest));
        let inventory_sections = hello
            .inventory_hashes
            .iter()
            .filter(|(section, hash)| node.inventory.get(*section) != Some(*hash))
            .map(|(section, _)| section.clone())
            .collect();
        let trust_bundle = self
            .trust
            .as_ref()
            .filter(|(version, _)| *version > hello.trust_version)
            .map(|(_, message)| message.clone());
        let replay = if may_send { self.resume(hello, before.as_ref(), epoch) } else { Vec::new() };
        Ok(SessionOpened {
            session_epoch: epoch,
            deployment_epoch,
            server_time: now,
            generation: if may_send { generation } else { 0 },
            acked_event_seq: acked,
            inventory_sections,
            trust_bundle,
            replay,
        })
    }

    fn resume(&mut self, hello: &HelloFacts, before: Option<&Session>, epoch: u64) -> Vec<StoredCommand> {
        let same_journal = before.is_some_and(|session| session.journal_id == hello.journal_id);
        let same_journal = same_journal || mutant::on("delivery.journal-loss-ignored");
        let rebooted = before.is_some_and(|session| session.boot_id != hello.boot_id);
        let mut replay = Vec::new();
        for command in &mut self.commands {
            let in_flight = CommandState::IN_FLIGHT.contains(&command.state);
            if command.stored.node_id != hello.node_id || !in_flight {
                continue;
            }
            let policy = CommandKind::parse(&command.stored.kind).map(CommandKind::policy);
            let running = command.state == CommandState::Running;
            if same_journal || policy.is_some_and(|policy| policy.retry_safe) {
                command.session_epoch = epoch;
                command.stored.attempt += 1;
                replay.push(command.stored.clone());
            } else if policy.is_some_and(|policy| policy.self_terminating) && running && rebooted {
                command.settle(CommandState::Succeeded, "rebooted");
            } else {
                command.settle(CommandState::Failed, "journal-lost");
            }
        }
        replay
    }

    pub(super) fn revoked_sessions(&self, lease: GatewayLease) -> Vec<(SessionKey, SessionEnd)> {
        self.nodes
            .iter()
            .filter_map(|(node_id, node)| {
                let session = node.session.as_ref().filter(|held| held.open && held.gateway == lease)?;
                let cut = node.certificates.get(&session.cert_serial).is_none_or(|revoked| *revoked);
                let key = SessionKey { node_id: *node_id, epoch: session.epoch };
                (node.revoked || cut).then_some((key, SessionEnd::Revoked))
            })
            .collect()
    }

    pub(super) fn claim(
        &mut self,
        lease: GatewayLease,
        lanes: &[LaneCredits],
        now: Timestamp,
    ) -> Vec<StoredCommand> {
        let mut claimed = Vec::new();
        for LaneCredits { session, credits } in lanes {
            if !self.is_held(lease, *session) || !self.may_send(session.node_id) {
                continue;
            }
            let mut left = credits.clone();
            for command in &mut self.commands {
                let due = command.state == CommandState::Pending && command.not_after > now;
                if command.stored.node_id != session.node_id || !due {
                    continue;
                }
                let Some(credit) = left.get_mut(&command.stored.lane).filter(|credit| **credit > 0) else {
                    continue;
                };
                *credit -= 1;
                if let Some(reason) = unsendable(&command.stored) {
                    command.settle(CommandState::Cancelled, reason);
                    continue;
                }
                if !mutant::on("delivery.claimed-again") {
                    command.state = CommandState::Dispatched;
                }
                command.session_epoch = session.epoch;
                command.stored.attempt += 1;
                claimed.push(command.stored.clone());
            }
        }
        claimed
    }

    pub(super) fn cancels(
        &self,
        lease: GatewayLease,
        sessions: &[SessionKey],
    ) -> Vec<(NodeId, CommandId, String)> {
        let ours = |command: &Command| {
            let key = SessionKey { node_id: command.stored.node_id, epoch: command.session_epoch };
            sessions.contains(&key) && self.is_held(lease, key)
        };
        self.commands
            .iter()
            .filter(|command| CommandState::IN_FLIGHT.contains(&command.state) && !self.observe_only)
            .filter(|command| ours(command))
            .filter_map(|command| {
                let reason = command.stored.cancel_requested.clone()?;
                Some((command.stored.node_id, command.stored.command_id, reason))
            })
            .collect()
    }

    pub(super) fn apply(
        &mut self,
        lease: GatewayLease,
        updates: Vec<ReportedUpdate>,
    ) -> Vec<(NodeId, CommandId)> {
        let mut acknowledged = Vec::new();
        for update in updates {
            if !self.is_held(lease, update.session) {
                continue;
            }
            let node_id = update.session.node_id;
            if let Some(command) = self.command(update.command_id).filter(|command| {
                command.stored.node_id == node_id || mutant::on("delivery.result-of-any-node")
            }) && !(update.event == CommandEvent::Busy && mutant::on("delivery.busy-stays-sent"))
                && let Ok(next) = moved(command.state, &update)
            {
                command.state = next;
                if next.terminal() {
                    command.reason = update.reason;
                    command.result = update.result;
                }
            }
            let reported = wire::proto::agent::CommandState::try_from(update.wire_state);
            if reported.is_ok_and(terminal) {
                acknowledged.push((node_id, update.command_id));
            }
        }
        acknowledged
    }

    pub(super) fn put_events(
        &mut self,
        lease: GatewayLease,
        key: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Option<u64> {
        let session = self.held(lease, key).filter(|session| session.journal_id == journal_id)?;
        let acked = session.acked;
        let last = events.last().map_or(acked, |event| event.seq.max(acked));
        let last = if mutant::on("delivery.event-ack-falls") {
            events.last().map_or(acked, |e| e.seq)
        } else {
            last
        };
        session.acked = last;
        let node = self.nodes.get_mut(&key.node_id)?;
        if mutant::on("delivery.events-dropped") {
            return Some(last);
        }
        for event in events.into_iter().filter(|event| event.seq > acked) {
            node.events.entry((journal_id, event.seq)).or_insert(event);
        }
        Some(last)
    }

    pub(super) fn put_statuses(&mut self, lease: GatewayLease, statuses: Vec<ReportedStatus>) {
        for mut status in statuses {
            if !self.is_held(lease, status.session) {
                continue;
            }
            let Some(node) = self.nodes.get_mut(&status.session.node_id) else { continue };
            let newest = node.spec.as_ref().map_or(0, |spec| spec.generation);
            let observed = status.observed_generation;
            node.observed_generation = if mutant::on("delivery.observed-as-told") {
                observed
            } else {
                node.observed_generation.max(observed.min(newest))
            };
            status.applied_generation = status.applied_generation.min(newest);
            node.status = Some(status);
        }
    }

    pub(super) fn specs_behind(&self, lease: GatewayLease, sent: &[(SessionKey, u64)]) -> Vec<StoredSpec> {
        sent.iter()
            .filter(|(key, _)| self.is_held(lease, *key) && self.may_send(key.node_id))
            .filter_map(|(key, generation)| {
                let spec = self.nodes.get(&key.node_id)?.spec.as_ref()?;
                (spec.generation > *generation).then(|| spec.clone())
            })
            .collect()
    }

    pub(super) fn current_spec(&self, node_id: NodeId, known: u64) -> CurrentSpec {
        let node = self.nodes.get(&node_id).filter(|node| !node.revoked && !node.quarantined);
        match node.and_then(|node| node.spec.as_ref()) {
            None => CurrentSpec::None,
            Some(spec) if spec.generation == known => CurrentSpec::Known,
            Some(spec) => CurrentSpec::Newer(spec.clone()),
        }
    }
}

impl Command {
    pub(super) fn settle(&mut self, state: CommandState, reason: &str) {
        self.state = state;
        self.reason = reason.to_owned();
    }
}

/// Where a report moves a command.
fn moved(state: CommandState, update: &ReportedUpdate) -> Result<CommandState, model::lifecycle::Refused> {
    if mutant::on("delivery.settled-moves") && state.terminal() {
        return CommandState::Running.next(update.event);
    }
    state.next(update.event)
}

fn acked(node: &Node, before: Option<&Session>, journal_id: JournalId) -> u64 {
    let stored = node.events.keys().filter(|(journal, _)| *journal == journal_id).map(|(_, seq)| *seq).max();
    let remembered = before
        .filter(|session| session.journal_id == journal_id || mutant::on("delivery.ack-of-other-journal"))
        .map(|session| session.acked);
    stored.max(remembered).unwrap_or(0)
}

fn unsendable(command: &StoredCommand) -> Option<&'static str> {
    if command.cancel_requested.is_some() && !mutant::on("delivery.cancelled-goes-out") {
        return Some("cancelled");
    }
    let right = wire::command::decode_body(&command.body).is_ok_and(|body| {
        body.not_after_ms > 0
            && body.command_id == command.command_id.to_string()
            && body.node_id == command.node_id.to_string()
    });
    (!right).then_some("invalid-body")
}

fn terminal(state: wire::proto::agent::CommandState) -> bool {
    use wire::proto::agent::CommandState as S;
    matches!(state, S::Succeeded | S::Failed | S::Rejected | S::Cancelled)
}
