//! One history on both stores.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use kernel::ports::delivery::{
    DeliveryError, DeliveryStore, GatewayLease, InboxAnswer, InboxKind, InboxRequest, LaneCredits,
    ReportedSection, ReportedStatus, SessionKey, SessionOpened, SessionRefused, StoredCommand, StoredSpec,
};
use kit::Clock;
use model::{CommandId, CommandKind, Lane};
use prost::Message;
use serde_json::json;
use uuid::Uuid;
use wire::proto::agent::CommandBody;

use super::memory::Memory;
use super::postgres::Postgres;
use super::side::{Side, ago, gateway_id, journal_id, node_id, serial};
use super::step::{Body, Hello, JOURNALS, NODES, Status, Step, Update};
use super::words::{event, events_of, facts, name, reported, told_opened};

const LEASE_LOST: &str = "the lease is lost";
const TTL: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

/// One store, and the numbers it gave out.
struct Half {
    side: Box<dyn Side>,
    store: Arc<dyn DeliveryStore>,
    leases: Vec<GatewayLease>,
    sessions: Vec<SessionKey>,
}

pub struct Both {
    postgres: Arc<Postgres>,
    halves: [Half; 2],
    /// Nodes of the sessions, as numbered in both halves.
    commands: Vec<CommandId>,
    generations: BTreeMap<u8, u64>,
    nodes: Vec<u8>,
    trust: u64,
}

impl Both {
    pub fn new(postgres: Arc<Postgres>) -> Self {
        let clock: Arc<dyn Clock> = postgres.clock.clone();
        let half = |side: Box<dyn Side>| Half {
            store: side.store(),
            side,
            leases: Vec::new(),
            sessions: Vec::new(),
        };
        let halves = [half(Box::new(Memory::new(clock))), half(Box::new(postgres.clone()))];
        Self {
            postgres,
            halves,
            commands: Vec::new(),
            generations: BTreeMap::new(),
            nodes: Vec::new(),
            trust: 0,
        }
    }

    pub async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Pass { seconds } => self.postgres.clock.pass(u64::from(*seconds)),
            Step::Enqueue { node, kind, body } => self.enqueue(*node, *kind, *body).await,
            Step::PutSpec { node } => self.put_spec(*node).await,
            Step::TrustBundle => {
                self.trust += 1;
                for half in &self.halves {
                    half.side.put_trust_bundle(self.trust, vec![self.trust as u8]).await;
                }
            }
            Step::Cancel { command } => {
                let Some(command_id) = ago(&self.commands, *command) else { return Ok(()) };
                for half in &self.halves {
                    half.side.request_cancel(command_id, "enough").await;
                }
            }
            Step::RevokeNode { node } => {
                self.known(*node).await;
                for half in &self.halves {
                    half.side.revoke_node(node_id(*node)).await;
                }
            }
            Step::RevokeCertificate { node, cert } => {
                self.known(*node).await;
                for half in &self.halves {
                    half.side.revoke_certificate(serial(*node, *cert)).await;
                }
            }
            Step::Quarantine { node } => {
                self.known(*node).await;
                for half in &self.halves {
                    half.side.quarantine(node_id(*node)).await;
                }
            }
            Step::ObserveOnly { on } => {
                for half in &self.halves {
                    half.side.observe_only(*on).await;
                }
            }
            Step::Expire { gateway } => {
                for half in &self.halves {
                    half.side.expire(gateway_id(*gateway)).await;
                }
            }
            asked => return self.ask_both(asked).await,
        }
        Ok(())
    }

    /// What both were asked, and whether they answered the same.
    async fn ask_both(&mut self, step: &Step) -> Result<(), String> {
        let hellos = match step {
            Step::Open { hello, .. } => std::slice::from_ref(hello),
            Step::OpenMany { hellos, .. } => hellos.as_slice(),
            _ => &[],
        };
        for hello in hellos {
            // The last one is seldom known, so that strangers come too.
            if hello.node + 1 < NODES || hello.cert == 0 {
                self.known(hello.node).await;
            }
        }
        let commands = self.commands.clone();
        let [memory, postgres] = &mut self.halves;
        let one = memory.ask(step, &commands, &self.generations).await;
        let other = postgres.ask(step, &commands, &self.generations).await;
        // A look that finds nothing to send need not ask for the lease.
        let nothing = |told: &str| told == "[]" || told == LEASE_LOST;
        let looked = matches!(step, Step::Claim { .. }) && nothing(&one) && nothing(&other);
        if one == other || looked {
            Ok(())
        } else {
            Err(format!("\n in memory: {one}\n PostgreSQL: {other}"))
        }
    }

    /// A node is made when it is first spoken of.
    async fn known(&mut self, node: u8) {
        if self.nodes.contains(&node) {
            return;
        }
        self.nodes.push(node);
        for half in &self.halves {
            for cert in 0..2 {
                half.side.add_node(node_id(node), serial(node, cert)).await;
            }
        }
    }

    async fn enqueue(&mut self, node: u8, kind: u8, body: Body) {
        self.known(node).await;
        let kind = CommandKind::ALL[usize::from(kind) % CommandKind::ALL.len()];
        let command_id = CommandId::from_uuid(Uuid::from_u128(0x1_0000 + self.commands.len() as u128));
        let named = if body == Body::Others { node_id(NODES) } else { node_id(node) };
        let right = CommandBody {
            command_id: command_id.to_string(),
            node_id: named.to_string(),
            deployment_epoch: 1,
            kind: kind.name().to_owned(),
            not_after_ms: 4_000_000_000_000,
            payload: Some(wire::command::empty_payload(kind)),
            ..CommandBody::default()
        };
        let command = StoredCommand {
            command_id,
            node_id: node_id(node),
            kind: kind.name().to_owned(),
            lane: kind.policy().lane.name().to_owned(),
            body: if body == Body::Garbage { vec![0xff; 9] } else { right.encode_to_vec() },
            signature: vec![1, 2, 3],
            attempt: 0,
            cancel_requested: None,
        };
        let lasts = if body == Body::Short { MINUTE } else { HOUR };
        let not_after = self.postgres.clock.now().saturating_add(lasts);
        for half in &self.halves {
            half.side.enqueue(command.clone(), not_after).await;
        }
        self.commands.push(command_id);
    }

    async fn put_spec(&mut self, node: u8) {
        self.known(node).await;
        let generation = self.generations.entry(node).or_insert(0);
        *generation += 1;
        let spec = StoredSpec {
            node_id: node_id(node),
            generation: *generation,
            body: vec![*generation as u8; 8],
            signature: vec![2; 8],
        };
        for half in &self.halves {
            half.side.put_spec(spec.clone()).await;
        }
    }

    /// Whether the rows say the same.
    pub async fn same_state(&self) -> Result<(), String> {
        let mut states = [String::new(), String::new()];
        for (half, state) in self.halves.iter().zip(&mut states) {
            for command_id in &self.commands {
                state.push_str(&format!("{command_id} {:?}\n", half.side.fate(*command_id).await));
            }
            for node in &self.nodes {
                let node_id = node_id(*node);
                let mut seqs = Vec::new();
                for journal in 0..JOURNALS {
                    seqs.push(half.side.event_seqs(node_id, journal_id(node_id, journal)).await);
                }
                // Before its first status a node has none in the one store, and an empty one in the other.
                let status = half.side.status(node_id).await.filter(|(key, _)| !key.is_empty());
                let session = half.side.open_session(node_id).await;
                let session = session.map(|epoch| half.number(SessionKey { node_id, epoch }));
                let inventory = half.side.inventory(node_id).await;
                state.push_str(&format!("{node} {seqs:?} {status:?} {session:?} {inventory:?}\n"));
            }
        }
        let [memory, postgres] = states;
        let differs = memory.lines().zip(postgres.lines()).find(|(one, other)| one != other);
        match differs {
            Some((one, other)) => Err(format!("\n in memory: {one}\n PostgreSQL: {other}")),
            None => Ok(()),
        }
    }
}

impl Half {
    /// Which of the sessions it is, as both stores count them.
    fn number(&self, key: SessionKey) -> Option<usize> {
        self.sessions.iter().position(|session| *session == key)
    }

    fn session(&self, back: u8) -> SessionKey {
        ago(&self.sessions, back).unwrap_or(SessionKey { node_id: node_id(0), epoch: 9_999 })
    }

    /// Each once, as a gateway has them.
    fn sessions(&self, backs: impl IntoIterator<Item = u8>) -> Vec<SessionKey> {
        let mut sessions: Vec<SessionKey> = Vec::new();
        for back in backs {
            let session = self.session(back);
            if !sessions.contains(&session) {
                sessions.push(session);
            }
        }
        sessions
    }

    fn lease(&self, back: u8) -> GatewayLease {
        let back = usize::from(back) % self.leases.len().max(1);
        *self.leases.iter().rev().nth(back).expect("every history begins with gateways that register")
    }

    fn told<T: Debug>(&self, answer: Result<T, DeliveryError>) -> String {
        match answer {
            Ok(value) => format!("{value:?}"),
            Err(DeliveryError::LeaseLost) => LEASE_LOST.to_owned(),
            Err(err) => kit::chain(&err),
        }
    }

    /// The answer, in words and numbers that both stores have.
    async fn ask(&mut self, step: &Step, commands: &[CommandId], newest: &BTreeMap<u8, u64>) -> String {
        let store = self.store.clone();
        match step {
            Step::Register { gateway } => {
                let registered = store.register(gateway_id(*gateway), "gw.example.test:443", TTL).await;
                if let Ok(registered) = &registered {
                    self.leases.push(registered.lease);
                }
                self.told(registered.map(|registered| registered.server_time))
            }
            Step::Renew { lease } => self.told(store.renew(self.lease(*lease), TTL).await),
            Step::Deregister { lease } => self.told(store.deregister(self.lease(*lease)).await),
            Step::Open { lease, hello } => {
                let facts = facts(hello, newest);
                let opened = store.open_session(self.lease(*lease), facts).await;
                self.opened(std::slice::from_ref(hello), opened.map(|opened| vec![opened]))
            }
            Step::OpenMany { lease, hellos } => {
                let mut each: Vec<Hello> = Vec::new();
                for hello in hellos {
                    if !each.iter().any(|other| other.node == hello.node) {
                        each.push(hello.clone());
                    }
                }
                let facts = each.iter().map(|hello| facts(hello, newest)).collect();
                let opened = store.open_sessions(self.lease(*lease), facts).await;
                self.opened(&each, opened)
            }
            Step::CloseMany { lease, sessions } => {
                let sessions = self.sessions(sessions.iter().copied());
                self.told(store.close_sessions(self.lease(*lease), sessions).await)
            }
            Step::EndedOf { lease, sessions } => {
                let sessions = self.sessions(sessions.iter().copied());
                let ended = store.ended_of(self.lease(*lease), sessions.clone()).await;
                // A store that cannot tell them apart answers all.
                let asked = |ended: Vec<(SessionKey, _)>| {
                    let ended = ended.iter().filter(|(key, _)| sessions.contains(key));
                    ended.map(|(key, why)| (self.number(*key), *why)).collect::<Vec<_>>()
                };
                self.told(ended.map(asked))
            }
            Step::Close { lease, session } => {
                self.told(store.close_session(self.lease(*lease), self.session(*session)).await)
            }
            Step::Heartbeats { lease, sessions } => {
                let sessions = self.sessions(sessions.iter().copied());
                let lost = store.heartbeats(self.lease(*lease), sessions).await;
                self.told(lost.map(|lost| lost.iter().map(|key| self.number(*key)).collect::<Vec<_>>()))
            }
            Step::Ended { lease } => {
                let ended = store.ended(self.lease(*lease)).await;
                let told = |ended: Vec<_>| {
                    ended.iter().map(|(key, why)| (self.number(*key), *why)).collect::<Vec<_>>()
                };
                self.told(ended.map(told))
            }
            Step::Claim { lease, lanes } => self.claim(self.lease(*lease), lanes).await,
            Step::Cancels { lease, sessions } => {
                let sessions = self.sessions(sessions.iter().copied());
                let cancels = store.cancels(self.lease(*lease), sessions).await;
                // Of one node they come in order; of several, in any.
                self.told(cancels.map(|mut cancels| {
                    cancels.sort_by_key(|(node_id, ..)| *node_id);
                    cancels
                }))
            }
            Step::Updates { lease, updates } => self.update(self.lease(*lease), updates, commands).await,
            Step::Events { lease, session, journal, from, count, every } => {
                let session = self.session(*session);
                let events =
                    (0..*count).map(|at| event(u64::from(from + 1) + u64::from(at * every))).collect();
                let journal_id = journal_id(session.node_id, *journal);
                self.told(store.put_events(self.lease(*lease), session, journal_id, events).await)
            }
            Step::EventsOfMany { lease, batches } => {
                let events = events_of(batches, |back| self.session(back));
                self.told(store.put_events_of(self.lease(*lease), events).await)
            }
            Step::Statuses { lease, statuses } => self.statuses(self.lease(*lease), statuses).await,
            Step::Inventory { lease, session, section, hash } => {
                let section =
                    ReportedSection { section: name(*section), hash: name(*hash), content: json!({}) };
                self.told(
                    store.put_inventory(self.lease(*lease), self.session(*session), vec![section]).await,
                )
            }
            Step::SpecsBehind { lease, sent } => {
                let mut asked: Vec<(SessionKey, u64)> = Vec::new();
                for (session, generation) in sent {
                    let session = self.session(*session);
                    if !asked.iter().any(|(other, _)| *other == session) {
                        asked.push((session, u64::from(*generation)));
                    }
                }
                let specs = store.specs_behind(self.lease(*lease), asked).await;
                self.told(specs.map(|mut specs| {
                    specs.sort_by_key(|spec| spec.node_id);
                    specs
                }))
            }
            Step::Spec { lease, session } => {
                self.told(store.spec(self.lease(*lease), self.session(*session)).await)
            }
            Step::Counts { node, cert } => self.told(store.certificate_counts(&serial(*node, *cert)).await),
            Step::Ask { lease, kind, refused } => self.ask_worker(self.lease(*lease), *kind, *refused).await,
            Step::Enqueue { .. }
            | Step::Cancel { .. }
            | Step::PutSpec { .. }
            | Step::RevokeNode { .. }
            | Step::RevokeCertificate { .. }
            | Step::Quarantine { .. }
            | Step::ObserveOnly { .. }
            | Step::TrustBundle
            | Step::Expire { .. }
            | Step::Pass { .. } => unreachable!("these are done, not asked"),
        }
    }

    /// The sessions that were opened are known from here on.
    fn opened(
        &mut self,
        hellos: &[Hello],
        opened: Result<Vec<Result<SessionOpened, SessionRefused>>, DeliveryError>,
    ) -> String {
        let opened = match opened {
            Ok(opened) => opened,
            Err(err) => return self.told::<()>(Err(err)),
        };
        assert_eq!(hellos.len(), opened.len(), "each is answered");
        for (hello, opened) in hellos.iter().zip(&opened) {
            if let Ok(opened) = opened {
                self.sessions.push(SessionKey { node_id: node_id(hello.node), epoch: opened.session_epoch });
            }
        }
        format!("{:?}", opened.iter().map(|opened| opened.as_ref().map(told_opened)).collect::<Vec<_>>())
    }

    async fn claim(&self, lease: GatewayLease, lanes: &[(u8, u8, u8)]) -> String {
        let mut wanted: Vec<LaneCredits> = Vec::new();
        for (session, lane, credits) in lanes {
            let session = self.session(*session);
            let lane = Lane::ALL[usize::from(*lane)].name().to_owned();
            match wanted.iter_mut().find(|wanted| wanted.session == session) {
                Some(wanted) => {
                    wanted.credits.insert(lane, u32::from(*credits));
                }
                None => wanted
                    .push(LaneCredits { session, credits: BTreeMap::from([(lane, u32::from(*credits))]) }),
            }
        }
        let claimed = self.store.claim_commands(lease, wanted).await;
        self.told(claimed.map(|mut claimed| {
            claimed.sort_by_key(|command| command.node_id);
            claimed
        }))
    }

    async fn update(&self, lease: GatewayLease, updates: &[Update], commands: &[CommandId]) -> String {
        let updates = updates
            .iter()
            .map(|update| {
                let command_id = ago(commands, update.command);
                let command_id = command_id.unwrap_or(CommandId::from_uuid(Uuid::from_u128(0xdead)));
                reported(self.session(update.session), command_id, update)
            })
            .collect();
        self.told(self.store.apply_updates(lease, updates).await)
    }

    async fn statuses(&self, lease: GatewayLease, statuses: &[Status]) -> String {
        let mut reported: Vec<ReportedStatus> = Vec::new();
        for status in statuses {
            let session = self.session(status.session);
            if reported.iter().any(|other| other.session.node_id == session.node_id) {
                continue;
            }
            reported.push(ReportedStatus {
                session,
                applied_generation: u64::from(status.applied),
                observed_generation: u64::from(status.observed),
                applied_spec_hash: "ab".to_owned(),
                sections: json!([]),
                conditions: Vec::new(),
                pressure: None,
                trust_version: 0,
                status_key: name(status.key),
            });
        }
        self.told(self.store.put_statuses(lease, reported).await)
    }

    async fn ask_worker(&self, lease: GatewayLease, kind: u8, refused: bool) -> String {
        let request = InboxRequest {
            kind: [InboxKind::Join, InboxKind::Renew, InboxKind::Fresh][usize::from(kind)],
            request: vec![kind; 3],
            source_ip: "192.0.2.7".to_owned(),
            peer_serial: (kind == 1).then(|| serial(0, 0)),
        };
        let answer =
            if refused { InboxAnswer::Refused("no".to_owned()) } else { InboxAnswer::Reply(vec![5]) };
        // Whoever listens hands answers out.
        let listening = async {
            loop {
                if self.store.next_poke().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let asked = async {
            match select(self.store.ask(lease, request, PATIENCE), self.side.answer_next(answer)).await {
                Either::Left((Ok(answered), answering)) => format!("{:?} {answered:?}", answering.await),
                Either::Left((failed, _)) => self.told(failed),
                Either::Right((seen, asking)) => format!("{seen:?} {}", self.told(asking.await)),
            }
        };
        match select(Box::pin(asked), Box::pin(listening)).await {
            Either::Left((told, _)) => told,
            Either::Right(((), _)) => unreachable!("it listens for ever"),
        }
    }
}
