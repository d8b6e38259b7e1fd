//! A delivery store in memory that keeps the rules of the real one: for tests of gateways and agents, and for the simulator. One
//! conformance suite holds both to them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kernel::ports::delivery::{
    CurrentSpec, Delivered, DeliveryError, DeliveryStore, GatewayLease, HelloFacts, InboxAnswer,
    InboxRequest, LaneCredits, Poke, Registered, ReportedEvent, ReportedSection, ReportedStatus,
    ReportedUpdate, SessionEnd, SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use kit::{Clock, mutant};
use model::lifecycle::CommandState;
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};
use tokio::sync::{Notify, oneshot};

mod inspect;
mod pokes;
mod rules;

pub use inspect::{CommandView, SessionView};

use pokes::Pokes;

/// Cheap to clone; clones share one store, as gateways share one database, and each hears every wake-up.
pub struct MemoryDelivery {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
    poked: Arc<Notify>,
    /// How many wake-ups this clone has heard; none before it listens.
    heard: Mutex<Option<u64>>,
    asked: Arc<Notify>,
}

impl Clone for MemoryDelivery {
    fn clone(&self) -> Self {
        Self {
            clock: self.clock.clone(),
            state: self.state.clone(),
            poked: self.poked.clone(),
            heard: Mutex::default(),
            asked: self.asked.clone(),
        }
    }
}

#[derive(Default)]
struct State {
    gateways: HashMap<GatewayId, Gateway>,
    epochs: u64,
    session_epochs: u64,
    deployment_epoch: u64,
    observe_only: bool,
    trust: Option<(u64, Vec<u8>)>,
    nodes: BTreeMap<NodeId, Node>,
    /// In the order they were enqueued.
    commands: Vec<Command>,
    inbox: VecDeque<Asked>,
    pokes: Pokes,
}

struct Gateway {
    epoch: u64,
    until: Timestamp,
}

#[derive(Default)]
struct Node {
    revoked: bool,
    quarantined: bool,
    /// Serial to whether it was revoked.
    certificates: HashMap<String, bool>,
    spec: Option<StoredSpec>,
    session: Option<Session>,
    events: BTreeMap<(JournalId, u64), ReportedEvent>,
    status: Option<ReportedStatus>,
    inventory: BTreeMap<String, String>,
    observed_generation: u64,
    claim: Option<u64>,
}

#[derive(Clone)]
struct Session {
    epoch: u64,
    gateway: GatewayLease,
    cert_serial: String,
    journal_id: JournalId,
    boot_id: String,
    open: bool,
    acked: u64,
    beats: u64,
}

struct Command {
    stored: StoredCommand,
    state: CommandState,
    not_after: Timestamp,
    session_epoch: u64,
    reason: String,
    result: Option<Vec<u8>>,
}

struct Asked {
    request: InboxRequest,
    answer: oneshot::Sender<InboxAnswer>,
}

/// A request left for a worker, and the way back.
pub struct InboxItem {
    pub request: InboxRequest,
    answer: oneshot::Sender<InboxAnswer>,
}

impl InboxItem {
    pub fn answer(self, answer: InboxAnswer) {
        // Who asked may have gone.
        let _ = self.answer.send(answer);
    }
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFate {
    pub state: CommandState,
    pub reason: String,
    pub result: Option<Vec<u8>>,
}

impl MemoryDelivery {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { deployment_epoch: 1, ..State::default() };
        Self {
            clock,
            state: Arc::new(Mutex::new(state)),
            poked: Arc::default(),
            heard: Mutex::default(),
            asked: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Of one node, or of any.
    fn poke(&self, node_id: Option<NodeId>) {
        self.lock().pokes.note(node_id);
        self.poked.notify_waiters();
    }

    /// Runs `work` when the lease holds.
    fn under<T>(&self, lease: GatewayLease, work: impl FnOnce(&mut State) -> T) -> Result<T, DeliveryError> {
        let now = self.clock.now();
        let mut state = self.lock();
        let held = state.gateways.get(&lease.gateway_id);
        let holds = held.is_some_and(|gateway| gateway.epoch == lease.epoch && gateway.until > now);
        if holds || mutant::on("delivery.lease-ignored") {
            Ok(work(&mut state))
        } else {
            Err(DeliveryError::LeaseLost)
        }
    }

    // What the rest of the control plane does to the same rows.

    pub fn add_node(&self, node_id: NodeId, cert_serial: &str) {
        let mut state = self.lock();
        state.nodes.entry(node_id).or_default().certificates.insert(cert_serial.to_owned(), false);
    }

    pub fn revoke_node(&self, node_id: NodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&node_id) {
            node.revoked = true;
        }
        self.poke(Some(node_id));
    }

    pub fn revoke_certificate(&self, cert_serial: &str) {
        for node in self.lock().nodes.values_mut() {
            if let Some(revoked) = node.certificates.get_mut(cert_serial) {
                *revoked = true;
            }
        }
        self.poke(None);
    }

    pub fn quarantine(&self, node_id: NodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&node_id) {
            node.quarantined = true;
        }
    }

    pub fn set_observe_only(&self, observe_only: bool) {
        self.lock().observe_only = observe_only;
    }

    pub fn put_trust_bundle(&self, version: u64, message: Vec<u8>) {
        self.lock().trust = Some((version, message));
    }

    pub fn put_spec(&self, spec: StoredSpec) {
        let node_id = spec.node_id;
        if let Some(node) = self.lock().nodes.get_mut(&node_id) {
            node.spec = Some(spec);
        }
        self.poke(Some(node_id));
    }

    pub fn enqueue(&self, stored: StoredCommand, not_after: Timestamp) {
        let node_id = stored.node_id;
        self.lock().commands.push(Command {
            stored,
            state: CommandState::Pending,
            not_after,
            session_epoch: 0,
            reason: String::new(),
            result: None,
        });
        self.poke(Some(node_id));
    }

    pub fn request_cancel(&self, command_id: CommandId, reason: &str) {
        let mut node_id = None;
        if let Some(command) = self.lock().command(command_id) {
            command.stored.cancel_requested = Some(reason.to_owned());
            node_id = Some(command.stored.node_id);
        }
        self.poke(node_id);
    }

    pub fn expire(&self, gateway_id: GatewayId) {
        if let Some(gateway) = self.lock().gateways.get_mut(&gateway_id) {
            gateway.until = Timestamp::from_micros(0);
        }
    }

    /// The next request for a worker.
    pub async fn next_request(&self) -> InboxItem {
        loop {
            let asked = self.asked.notified();
            if let Some(Asked { request, answer }) = self.lock().inbox.pop_front() {
                return InboxItem { request, answer };
            }
            asked.await;
        }
    }

    pub fn command_fate(&self, command_id: CommandId) -> Option<CommandFate> {
        let mut state = self.lock();
        let command = state.command(command_id)?;
        let (reason, result) = (command.reason.clone(), command.result.clone());
        Some(CommandFate { state: command.state, reason, result })
    }

    /// Sequence numbers of a journal's stored events.
    pub fn event_seqs(&self, node_id: NodeId, journal_id: JournalId) -> Vec<u64> {
        let state = self.lock();
        let node = state.nodes.get(&node_id);
        node.into_iter()
            .flat_map(|node| node.events.keys())
            .filter(|(journal, _)| *journal == journal_id)
            .map(|(_, seq)| *seq)
            .collect()
    }

    /// The stored status key and `observed_generation`.
    pub fn status(&self, node_id: NodeId) -> Option<(String, u64)> {
        let state = self.lock();
        let node = state.nodes.get(&node_id)?;
        Some((node.status.as_ref()?.status_key.clone(), node.observed_generation))
    }

    pub fn inventory(&self, node_id: NodeId) -> BTreeMap<String, String> {
        self.lock().nodes.get(&node_id).map(|node| node.inventory.clone()).unwrap_or_default()
    }

    pub fn beats(&self, node_id: NodeId) -> u64 {
        let state = self.lock();
        state.nodes.get(&node_id).and_then(|node| node.session.as_ref()).map_or(0, |session| session.beats)
    }

    /// The epoch of the node's session, while it is open.
    pub fn open_session_epoch(&self, node_id: NodeId) -> Option<u64> {
        let state = self.lock();
        let session = state.nodes.get(&node_id)?.session.as_ref()?;
        session.open.then_some(session.epoch)
    }
}

fn done<'a, T: Send + 'a>(result: Result<T, DeliveryError>) -> Delivered<'a, T> {
    Box::pin(async move { result })
}

impl DeliveryStore for MemoryDelivery {
    fn register<'a>(
        &'a self,
        gateway_id: GatewayId,
        _address: &'a str,
        ttl: Duration,
    ) -> Delivered<'a, Registered> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.epochs += 1;
        let epoch = state.epochs;
        state.gateways.insert(gateway_id, Gateway { epoch, until: now.saturating_add(ttl) });
        done(Ok(Registered { lease: GatewayLease { gateway_id, epoch }, server_time: now }))
    }

    fn renew<'a>(&'a self, lease: GatewayLease, ttl: Duration) -> Delivered<'a, Timestamp> {
        let now = self.clock.now();
        if mutant::on("delivery.lapsed-lease-renews") {
            let mut state = self.lock();
            let held = state.gateways.get_mut(&lease.gateway_id).filter(|held| held.epoch == lease.epoch);
            held.into_iter().for_each(|held| held.until = now.saturating_add(ttl));
        }
        done(self.under(lease, |state| {
            if let Some(gateway) = state.gateways.get_mut(&lease.gateway_id) {
                gateway.until = now.saturating_add(ttl);
            }
            now
        }))
    }

    fn deregister<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, ()> {
        let mut state = self.lock();
        if state.gateways.get(&lease.gateway_id).is_some_and(|gateway| gateway.epoch == lease.epoch) {
            state.gateways.remove(&lease.gateway_id);
        }
        for session in state.nodes.values_mut().filter_map(|node| node.session.as_mut()) {
            session.open &= session.gateway != lease;
        }
        done(Ok(()))
    }

    fn open_session<'a>(
        &'a self,
        lease: GatewayLease,
        hello: HelloFacts,
    ) -> Delivered<'a, Result<SessionOpened, SessionRefused>> {
        let now = self.clock.now();
        done(self.under(lease, |state| state.open(lease, &hello, now)))
    }

    fn close_session<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, ()> {
        if let Some(held) = self.lock().held(lease, session) {
            held.open = false;
        }
        done(Ok(()))
    }

    fn heartbeats<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<SessionKey>> {
        done(self.under(lease, |state| {
            let mut lost = sessions;
            lost.retain(|key| match state.held(lease, *key) {
                Some(session) => {
                    session.beats += 1;
                    false
                }
                None => true,
            });
            lost
        }))
    }

    fn ended<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>> {
        done(Ok(self.lock().revoked_sessions(lease)))
    }

    fn claim_commands<'a>(
        &'a self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Delivered<'a, Vec<StoredCommand>> {
        let now = self.clock.now();
        done(self.under(lease, |state| state.claim(lease, &lanes, now)))
    }

    fn cancels<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId, String)>> {
        done(Ok(self.lock().cancels(lease, &sessions)))
    }

    fn apply_updates<'a>(
        &'a self,
        lease: GatewayLease,
        updates: Vec<ReportedUpdate>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId)>> {
        done(self.under(lease, |state| state.apply(lease, updates)))
    }

    fn put_events<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Delivered<'a, Option<u64>> {
        done(self.under(lease, |state| state.put_events(lease, session, journal_id, events)))
    }

    fn put_statuses<'a>(&'a self, lease: GatewayLease, statuses: Vec<ReportedStatus>) -> Delivered<'a, ()> {
        done(self.under(lease, |state| state.put_statuses(lease, statuses)))
    }

    fn put_inventory<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        sections: Vec<ReportedSection>,
    ) -> Delivered<'a, ()> {
        done(self.under(lease, |state| {
            if state.held(lease, session).is_some()
                && let Some(node) = state.nodes.get_mut(&session.node_id)
            {
                node.inventory.extend(sections.into_iter().map(|section| (section.section, section.hash)));
            }
        }))
    }

    fn specs_behind<'a>(
        &'a self,
        lease: GatewayLease,
        sent: Vec<(SessionKey, u64)>,
    ) -> Delivered<'a, Vec<StoredSpec>> {
        done(Ok(self.lock().specs_behind(lease, &sent)))
    }

    fn spec<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, Option<StoredSpec>> {
        done(Ok(self.lock().specs_behind(lease, &[(session, 0)]).pop()))
    }

    fn current_spec<'a>(&'a self, node_id: NodeId, known: u64) -> Delivered<'a, CurrentSpec> {
        done(Ok(self.lock().current_spec(node_id, known)))
    }

    fn ask<'a>(
        &'a self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Delivered<'a, InboxAnswer> {
        let (sender, receiver) = oneshot::channel();
        let asked = self.under(lease, |state| state.inbox.push_back(Asked { request, answer: sender }));
        self.asked.notify_one();
        let over = self.clock.sleep(patience);
        Box::pin(async move {
            asked?;
            // Both arms own what they wait for.
            tokio::select! {
                answer = receiver => Ok(answer.unwrap_or(InboxAnswer::TimedOut)),
                () = over => Ok(InboxAnswer::TimedOut),
            }
        })
    }

    fn certificate_counts<'a>(&'a self, serial: &'a str) -> Delivered<'a, bool> {
        let state = self.lock();
        let counts = state
            .nodes
            .values()
            .any(|node| !node.revoked && node.certificates.get(serial).is_some_and(|revoked| !revoked));
        done(Ok(counts))
    }

    fn next_poke<'a>(&'a self) -> Delivered<'a, Poke> {
        Box::pin(async move {
            loop {
                // Before the look: what comes after it wakes us.
                let mut poked = std::pin::pin!(self.poked.notified());
                poked.as_mut().enable();
                let news = {
                    let state = self.lock();
                    let mut heard = self.heard.lock().expect("no holder of this lock panics");
                    let news = state.pokes.since(*heard);
                    *heard = Some(state.pokes.count);
                    news
                };
                match news {
                    Some(poke) => return Ok(poke),
                    None => poked.await,
                }
            }
        })
    }
}
