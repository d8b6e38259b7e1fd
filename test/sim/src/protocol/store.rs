//! The delivery store as gateways see it: the rules in memory, behind a database that fails now and then, and beside an account of
//! its own of who may write.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use gateway::memory::MemoryDelivery;
use kernel::ports::delivery::{
    Delivered, DeliveryError, DeliveryStore, GatewayLease, HelloFacts, InboxAnswer, InboxRequest,
    LaneCredits, Poke, Registered, ReportedEvent, ReportedEvents, ReportedSection, ReportedStatus,
    ReportedUpdate, SessionEnd, SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use kit::Clock;
use model::lifecycle::{CommandEvent, CommandState};
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};

use super::action::Call;
use super::clock::{Micros, SimClock, Time};
use super::invariants::{Invariant, Violation};

pub struct Store {
    pub delivery: MemoryDelivery,
    time: Arc<Time>,
    account: Mutex<Account>,
}

#[derive(Default)]
struct Account {
    /// By gateway: its newest lease, and until when it holds.
    leases: BTreeMap<GatewayId, (u64, Micros)>,
    /// By node: its newest session and whose it is.
    sessions: BTreeMap<NodeId, (u64, GatewayLease)>,
    /// Answers to come: true for a call that is carried out and whose answer is lost.
    failures: VecDeque<bool>,
    /// How late the answers of renewals to come are.
    late: VecDeque<Micros>,
    /// The database was restored and nobody has stood by it: what it tells gateways to send must be nothing.
    observes: bool,
    /// The gateway that dies in a call to come, in which, after how many more, and whether that one is carried out.
    crash: Option<(GatewayId, Call, u32, bool)>,
    /// The gateway that died, and in which call. It is not known to be dead yet, and does nothing more.
    crashed: Option<(GatewayId, Call)>,
    failed: u64,
    delayed: u64,
    fenced: u64,
    calls: u64,
    asks: u64,
    violation: Option<Violation>,
}

fn unavailable<T>() -> Result<T, DeliveryError> {
    Err(DeliveryError::Unavailable("the simulated database does not answer".into()))
}

impl Store {
    pub fn new(delivery: MemoryDelivery, time: Arc<Time>) -> Self {
        Self { delivery, time, account: Mutex::default() }
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().expect("no holder of this lock panics")
    }

    /// The next calls fail.
    pub fn fail(&self, calls: u32, done: bool) {
        self.account().failures.extend((0..calls).map(|_| done));
    }

    /// The answers of the next renewals are late.
    pub fn delay(&self, calls: u32, by: Micros) {
        self.account().late.extend((0..calls).map(|_| by));
    }

    pub fn observe(&self, observes: bool) {
        self.account().observes = observes;
    }

    /// What a store says is to be sent.
    fn sends(&self, what: &'static str, sends: bool) {
        let at = self.time.now();
        let mut account = self.account();
        if sends && account.observes {
            let detail =
                format!("{what} of a restored database that nobody has confirmed gives something to send");
            account.violation.get_or_insert(Violation { invariant: Invariant::ConfirmedFirst, at, detail });
        }
    }

    fn state_of(&self, id: CommandId) -> Option<CommandState> {
        self.delivery.command_fate(id).map(|fate| fate.state)
    }

    fn is_of(&self, id: CommandId, node_id: NodeId) -> bool {
        let mut found = false;
        self.delivery.each_command(|command| found |= command.command_id == id && command.node_id == node_id);
        found
    }

    /// Commands that were sent, and of which these updates say one thing: that their own node had no room.
    fn busy(&self, lease: GatewayLease, updates: &[ReportedUpdate]) -> Vec<CommandId> {
        let once = |id: CommandId| updates.iter().filter(|other| other.command_id == id).count() == 1;
        updates
            .iter()
            .filter(|update| update.event == CommandEvent::Busy && once(update.command_id))
            .filter(|update| self.holds(lease) && self.is_current(lease, update.session))
            .filter(|update| self.is_of(update.command_id, update.session.node_id))
            .map(|update| update.command_id)
            .filter(|id| self.state_of(*id) == Some(CommandState::Dispatched))
            .collect()
    }

    /// A gateway dies in one of its next calls.
    pub fn crash(&self, gateway_id: GatewayId, call: Call, skip: u32, done: bool) {
        self.account().crash = Some((gateway_id, call, skip, done));
    }

    /// The call in which a gateway died, once.
    pub fn take_crash(&self) -> Option<Call> {
        self.account().crashed.take().map(|(_, call)| call)
    }

    pub fn stop_failing(&self) {
        let mut account = self.account();
        account.failures.clear();
        account.late.clear();
        account.crash = None;
    }

    fn is_dead(&self, gateway_id: GatewayId) -> bool {
        self.account().crashed.is_some_and(|(dead, _)| dead == gateway_id)
    }

    /// Whether this call is a gateway's last: carried out or not.
    fn dies_in(&self, what: &str, gateway_id: GatewayId) -> Option<bool> {
        let mut account = self.account();
        let (_, call, skip, done) =
            account.crash.as_mut().filter(|(dying, call, ..)| *dying == gateway_id && call.name() == what)?;
        if *skip > 0 {
            *skip -= 1;
            return None;
        }
        let (call, done) = (*call, *done);
        account.crash = None;
        account.crashed = Some((gateway_id, call));
        Some(done)
    }

    /// Calls that failed, renewals that were late, and writes that were fenced off, since this was last asked.
    pub fn take_hits(&self) -> [(&'static str, u64); 3] {
        let mut account = self.account();
        [
            ("database", std::mem::take(&mut account.failed)),
            ("late-renewal", std::mem::take(&mut account.delayed)),
            ("zombie-write", std::mem::take(&mut account.fenced)),
        ]
    }

    pub fn calls(&self) -> u64 {
        self.account().calls
    }

    /// Requests left for a worker, so far.
    pub fn asks(&self) -> u64 {
        self.account().asks
    }

    pub fn take_violation(&self) -> Option<Violation> {
        self.account().violation.take()
    }

    pub fn holds(&self, lease: GatewayLease) -> bool {
        let now = self.time.now();
        let account = self.account();
        account
            .leases
            .get(&lease.gateway_id)
            .is_some_and(|(epoch, until)| *epoch == lease.epoch && now < *until)
    }

    fn is_current(&self, lease: GatewayLease, key: SessionKey) -> bool {
        self.account().sessions.get(&key.node_id) == Some(&(key.epoch, lease))
    }

    /// One call, with the failure that was due. Under a lease that is over, or for sessions that are over, it must change nothing.
    fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        lease: Option<GatewayLease>,
        sessions: &[SessionKey],
        work: impl FnOnce() -> Result<T, DeliveryError>,
    ) -> Delivered<'static, T> {
        if lease.is_some_and(|lease| self.is_dead(lease.gateway_id)) {
            return Box::pin(futures::future::ready(unavailable()));
        }
        let death = lease.and_then(|lease| self.dies_in(what, lease.gateway_id));
        let failure = if death.is_some() {
            self.account().calls += 1;
            death
        } else {
            let mut account = self.account();
            account.calls += 1;
            let failure = account.failures.pop_front();
            account.failed += u64::from(failure.is_some());
            failure
        };
        if failure == Some(false) {
            return Box::pin(futures::future::ready(unavailable()));
        }
        let over = lease.is_some_and(|lease| !self.holds(lease));
        let stale: Vec<NodeId> = match lease {
            Some(lease) if !over => sessions
                .iter()
                .filter(|key| !self.is_current(lease, **key))
                .map(|key| key.node_id)
                // The node's own session may be named beside one that is over.
                .filter(|node| {
                    !sessions.iter().any(|key| key.node_id == *node && self.is_current(lease, *key))
                })
                .collect(),
            _ => Vec::new(),
        };
        let digests = |all: bool| -> Vec<u64> {
            if all {
                vec![self.delivery.digest(None)]
            } else {
                stale.iter().map(|node| self.delivery.digest(Some(*node))).collect()
            }
        };
        let before = digests(over);
        let done = work();
        if before != digests(over) {
            let whose = if over { "a lease that is over" } else { "a session that is over" };
            let detail = format!("{what} under {whose} changed the store: {lease:?}, {stale:?}");
            let at = self.time.now();
            self.account().violation.get_or_insert(Violation { invariant: Invariant::Fenced, at, detail });
        }
        self.account().fenced += u64::from(over || !stale.is_empty());
        let answer = if failure == Some(true) { unavailable() } else { done };
        Box::pin(futures::future::ready(answer))
    }
}

/// What the memory answers, which is at once.
fn at_once<T>(answer: Delivered<'_, T>) -> Result<T, DeliveryError> {
    answer.now_or_never().expect("the store in memory answers at once")
}

fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

impl DeliveryStore for Store {
    fn register<'a>(
        &'a self,
        gateway_id: GatewayId,
        address: &'a str,
        ttl: Duration,
    ) -> Delivered<'a, Registered> {
        self.call("register", None, &[], || {
            let registered = at_once(self.delivery.register(gateway_id, address, ttl))?;
            let until = self.time.now() + micros(ttl);
            self.account().leases.insert(gateway_id, (registered.lease.epoch, until));
            Ok(registered)
        })
    }

    fn renew<'a>(&'a self, lease: GatewayLease, ttl: Duration) -> Delivered<'a, Timestamp> {
        let over = !self.holds(lease);
        let answer = self.call("renew", Some(lease), &[], || {
            let renewed = at_once(self.delivery.renew(lease, ttl))?;
            let (at, until) = (self.time.now(), self.time.now() + micros(ttl));
            let mut account = self.account();
            if over {
                let detail = format!("a lease that is over was renewed: {lease:?}");
                account.violation.get_or_insert(Violation { invariant: Invariant::Fenced, at, detail });
            }
            account.leases.insert(lease.gateway_id, (lease.epoch, until));
            Ok(renewed)
        });
        let Some(by) = self.account().late.pop_front() else { return answer };
        self.account().delayed += 1;
        let late = SimClock::new(self.time.clone()).sleep(Duration::from_micros(by));
        Box::pin(async move {
            late.await;
            answer.await
        })
    }

    fn deregister<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, ()> {
        if self.is_dead(lease.gateway_id) {
            return Box::pin(futures::future::ready(unavailable()));
        }
        self.call("deregister", None, &[], || {
            self.account().leases.remove(&lease.gateway_id);
            at_once(self.delivery.deregister(lease))
        })
    }

    fn open_session<'a>(
        &'a self,
        lease: GatewayLease,
        hello: HelloFacts,
    ) -> Delivered<'a, Result<SessionOpened, SessionRefused>> {
        self.call("open_session", Some(lease), &[], || {
            let node_id = hello.node_id;
            let opened = at_once(self.delivery.open_session(lease, hello))?;
            if let Ok(opened) = &opened {
                self.sends("open_session", opened.generation > 0 || !opened.replay.is_empty());
                self.account().sessions.insert(node_id, (opened.session_epoch, lease));
            }
            Ok(opened)
        })
    }

    fn close_session<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, ()> {
        if self.is_dead(lease.gateway_id) {
            return Box::pin(futures::future::ready(unavailable()));
        }
        // Closing what one held is no harm, also late.
        let stale = !self.is_current(lease, session);
        let sessions = if stale { vec![session] } else { Vec::new() };
        let lease_too = stale.then_some(lease).filter(|lease| self.holds(*lease));
        self.call("close_session", lease_too, &sessions, || {
            at_once(self.delivery.close_session(lease, session))
        })
    }

    fn heartbeats<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<SessionKey>> {
        let keys = sessions.clone();
        self.call("heartbeats", Some(lease), &keys, || at_once(self.delivery.heartbeats(lease, sessions)))
    }

    fn ended<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>> {
        self.call("ended", Some(lease), &[], || at_once(self.delivery.ended(lease)))
    }

    fn claim_commands<'a>(
        &'a self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Delivered<'a, Vec<StoredCommand>> {
        let keys: Vec<SessionKey> = lanes.iter().map(|lane| lane.session).collect();
        self.call("claim_commands", Some(lease), &keys, || {
            let claimed = at_once(self.delivery.claim_commands(lease, lanes))?;
            self.sends("claim_commands", !claimed.is_empty());
            Ok(claimed)
        })
    }

    fn cancels<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId, String)>> {
        self.call("cancels", Some(lease), &[], || at_once(self.delivery.cancels(lease, sessions)))
    }

    fn apply_updates<'a>(
        &'a self,
        lease: GatewayLease,
        updates: Vec<ReportedUpdate>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId)>> {
        let keys: Vec<SessionKey> = updates.iter().map(|update| update.session).collect();
        self.call("apply_updates", Some(lease), &keys, || {
            let busy = self.busy(lease, &updates);
            let applied = at_once(self.delivery.apply_updates(lease, updates))?;
            for id in busy.into_iter().filter(|id| self.state_of(*id) == Some(CommandState::Dispatched)) {
                let (at, detail) =
                    (self.time.now(), format!("{id} found no room, and counts as sent for good"));
                let violation = Violation { invariant: Invariant::Settles, at, detail };
                self.account().violation.get_or_insert(violation);
            }
            Ok(applied)
        })
    }

    fn put_events<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Delivered<'a, Option<u64>> {
        self.call("put_events", Some(lease), &[session], || {
            at_once(self.delivery.put_events(lease, session, journal_id, events))
        })
    }

    fn put_events_of<'a>(
        &'a self,
        lease: GatewayLease,
        reported: Vec<ReportedEvents>,
    ) -> Delivered<'a, Vec<Option<u64>>> {
        // In one transaction, as in PostgreSQL: all of it is carried out, or none.
        let keys: Vec<SessionKey> = reported.iter().map(|one| one.session).collect();
        self.call("put_events", Some(lease), &keys, || {
            let put = |one: ReportedEvents| {
                at_once(self.delivery.put_events(lease, one.session, one.journal_id, one.events))
            };
            reported.into_iter().map(put).collect()
        })
    }

    fn put_statuses<'a>(&'a self, lease: GatewayLease, statuses: Vec<ReportedStatus>) -> Delivered<'a, ()> {
        let keys: Vec<SessionKey> = statuses.iter().map(|status| status.session).collect();
        self.call("put_statuses", Some(lease), &keys, || at_once(self.delivery.put_statuses(lease, statuses)))
    }

    fn put_inventory<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        sections: Vec<ReportedSection>,
    ) -> Delivered<'a, ()> {
        self.call("put_inventory", Some(lease), &[session], || {
            at_once(self.delivery.put_inventory(lease, session, sections))
        })
    }

    fn specs_behind<'a>(
        &'a self,
        lease: GatewayLease,
        sent: Vec<(SessionKey, u64)>,
    ) -> Delivered<'a, Vec<StoredSpec>> {
        self.call("specs_behind", Some(lease), &[], || {
            let specs = at_once(self.delivery.specs_behind(lease, sent))?;
            self.sends("specs_behind", !specs.is_empty());
            Ok(specs)
        })
    }

    fn spec<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, Option<StoredSpec>> {
        self.call("spec", Some(lease), &[session], || at_once(self.delivery.spec(lease, session)))
    }

    fn ask<'a>(
        &'a self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Delivered<'a, InboxAnswer> {
        if self.is_dead(lease.gateway_id) {
            return Box::pin(futures::future::ready(unavailable()));
        }
        // The one that waits: for a worker.
        {
            let mut account = self.account();
            account.calls += 1;
            account.asks += 1;
        }
        self.delivery.ask(lease, request, patience)
    }

    fn certificate_counts<'a>(&'a self, serial: &'a str) -> Delivered<'a, bool> {
        self.call("certificate_counts", None, &[], || at_once(self.delivery.certificate_counts(serial)))
    }

    fn next_poke<'a>(&'a self) -> Delivered<'a, Poke> {
        self.delivery.next_poke()
    }
}
