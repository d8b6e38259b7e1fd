//! Between a gateway and the database: stored bytes go out, reports come in.
//!
//! A gateway knows no resource and judges nothing. Every write carries its [`GatewayLease`], and those about a node the
//! session's epoch too: a gateway that was paused past its lease, and a session that another one has taken over, change no row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{CommandId, Condition, GatewayId, IncarnationId, JournalId, NodeId, Timestamp};
use serde_json::Value;

use crate::BoxFuture;

/// A gateway's claim on what it serves. The epoch is new at each registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayLease {
    pub gateway_id: GatewayId,
    pub epoch: u64,
}

/// A lease just taken, and what the database's clock said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    pub lease: GatewayLease,
    pub server_time: Timestamp,
}

/// One node's session on one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    pub node_id: NodeId,
    pub epoch: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// The lease is over: the gateway closes its sessions and registers anew.
    #[error("the gateway's lease is over")]
    LeaseLost,
    /// Try again: every call may be repeated, also one that was carried out after all.
    #[error("the delivery store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A mistake in this program or its database role.
    #[error("the delivery store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

pub type Delivered<'a, T> = BoxFuture<'a, Result<T, DeliveryError>>;

/// What a Hello says, as far as the store needs it.
#[derive(Debug, Clone)]
pub struct HelloFacts {
    pub node_id: NodeId,
    /// Lowercase hex, of the certificate the connection was made with.
    pub cert_serial: String,
    pub journal_id: JournalId,
    pub incarnation_id: IncarnationId,
    pub boot_id: String,
    pub agent_version: String,
    pub protocol: u32,
    pub capabilities: Vec<String>,
    pub trust_version: u64,
    pub applied_generation: u64,
    pub observed_generation: u64,
    pub applied_spec_hash: String,
    pub deployment_epoch: u64,
    /// The spec the node holds, as it was signed: its proof when it turns out to be ahead of the database.
    pub applied_spec: Option<(Vec<u8>, Vec<u8>)>,
    /// Section name to hash.
    pub inventory_hashes: BTreeMap<String, String>,
    /// Commands in the node's journal: those running when it wrote it, by id.
    pub in_flight: Vec<(CommandId, InFlight)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    Accepted,
    Running,
}

/// Why a session is not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRefused {
    UnknownNode,
    /// The certificate or the node.
    Revoked,
    /// The node holds newer intent than the database. A worker judges its proof; nothing is sent until then.
    Ahead,
    /// The node once said so and could not prove it.
    Quarantined,
    /// It holds newer intent than the database, and that is known already: the deployment observes only.
    ObserveOnly,
}

#[derive(Debug, Clone)]
pub struct SessionOpened {
    pub session_epoch: u64,
    pub deployment_epoch: u64,
    pub server_time: Timestamp,
    /// The newest spec to deliver; 0 when there is none, or when nothing is to be sent to this node.
    pub generation: u64,
    /// For the journal the Hello named; 0 for a new one.
    pub acked_event_seq: u64,
    /// Sections whose stored hash differs from the Hello's.
    pub inventory_sections: Vec<String>,
    /// An encoded signed bundle, when the node's is behind.
    pub trust_bundle: Option<Vec<u8>>,
    /// In-flight commands to send again, in their order.
    pub replay: Vec<StoredCommand>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCommand {
    pub command_id: CommandId,
    pub node_id: NodeId,
    pub kind: String,
    pub lane: String,
    pub body: Vec<u8>,
    pub signature: Vec<u8>,
    pub attempt: u32,
    pub cancel_requested: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSpec {
    pub node_id: NodeId,
    pub generation: u64,
    pub body: Vec<u8>,
    pub signature: Vec<u8>,
}

/// What a node's intent is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CurrentSpec {
    /// There is none, or the node is trusted with nothing.
    None,
    /// Of the generation that is known.
    Known,
    Newer(StoredSpec),
}

/// A session and how many commands each of its lanes can still take.
#[derive(Debug, Clone)]
pub struct LaneCredits {
    pub session: SessionKey,
    /// By lane name.
    pub credits: BTreeMap<String, u32>,
}

/// A reported update, with its terminal result exactly as received.
#[derive(Debug, Clone)]
pub struct ReportedUpdate {
    pub session: SessionKey,
    pub command_id: CommandId,
    /// The wire's number of the state.
    pub wire_state: i32,
    pub event: model::lifecycle::CommandEvent,
    pub result: Option<Vec<u8>>,
    pub signature: Option<Vec<u8>>,
    pub key_sha256: Option<Vec<u8>>,
    pub reason: String,
    pub message: String,
    pub boot_id: String,
}

/// A node's event, as received.
#[derive(Debug, Clone)]
pub struct ReportedEvent {
    pub seq: u64,
    pub class: i32,
    pub report: Vec<u8>,
    pub signature: Option<Vec<u8>>,
    pub key_sha256: Option<Vec<u8>>,
    pub observed_at: Timestamp,
}

/// Events of one session, ascending.
#[derive(Debug, Clone)]
pub struct ReportedEvents {
    pub session: SessionKey,
    pub journal_id: JournalId,
    pub events: Vec<ReportedEvent>,
}

/// The latest status of one session.
#[derive(Debug, Clone)]
pub struct ReportedStatus {
    pub session: SessionKey,
    pub applied_generation: u64,
    pub observed_generation: u64,
    pub applied_spec_hash: String,
    /// `[{"section","state","generation","reason","message"}]`.
    pub sections: Value,
    pub conditions: Vec<Condition>,
    pub pressure: Option<Value>,
    /// Zero when the report does not speak of it.
    pub trust_version: u64,
    /// Hash of what a worker has to look at: another one wakes it.
    pub status_key: String,
}

#[derive(Debug, Clone)]
pub struct ReportedSection {
    pub section: String,
    pub hash: String,
    pub content: Value,
}

/// What only a holder of keys can answer: a worker.
#[derive(Debug, Clone)]
pub struct InboxRequest {
    pub kind: InboxKind,
    /// The encoded request.
    pub request: Vec<u8>,
    pub source_ip: String,
    /// The connection's certificate, for a renewal and for a secret.
    pub peer_serial: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxKind {
    Join,
    Renew,
    /// A statement that binds a node's current spec to its Hello's nonce. The request is an encoded `FreshStatement` with the node's
    /// id and nonce; the reply an encoded `FreshBinding`, made together with the generation it names.
    Fresh,
    /// A node's question for a secret. The request is an encoded `SecretRequest`, the reply an encoded `SecretAnswer`.
    Secret,
}

impl InboxKind {
    pub const fn name(self) -> &'static str {
        match self {
            InboxKind::Join => "join",
            InboxKind::Renew => "renew",
            InboxKind::Fresh => "fresh",
            InboxKind::Secret => "secret",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboxAnswer {
    /// An encoded reply.
    Reply(Vec<u8>),
    /// Why not, for the machine's operator.
    Refused(String),
    /// No worker answered in time.
    TimedOut,
}

/// What wakes a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Poke {
    /// There is news of these nodes, whose sessions may be anybody's.
    Nodes(BTreeSet<NodeId>),
    /// Anything may have changed: after a reconnect, or said so.
    Everything,
}

pub trait DeliveryStore: Send + Sync + 'static {
    /// Registers a gateway under a new epoch for `ttl`.
    fn register<'a>(
        &'a self,
        gateway_id: GatewayId,
        address: &'a str,
        ttl: Duration,
    ) -> Delivered<'a, Registered>;

    /// Keeps the lease for another `ttl` and tells the database's time; [`DeliveryError::LeaseLost`] when it ran out.
    fn renew<'a>(&'a self, lease: GatewayLease, ttl: Duration) -> Delivered<'a, Timestamp>;

    /// Ends the lease and closes the gateway's sessions.
    fn deregister<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, ()>;

    /// Takes the node's session over from whoever had it, applies the resume rules to its in-flight commands and stores what the Hello says.
    fn open_session<'a>(
        &'a self,
        lease: GatewayLease,
        hello: HelloFacts,
    ) -> Delivered<'a, Result<SessionOpened, SessionRefused>>;

    /// Like [`DeliveryStore::open_session`] for many nodes, each named once: in one transaction where the store can. Answers in their order.
    fn open_sessions<'a>(
        &'a self,
        lease: GatewayLease,
        hellos: Vec<HelloFacts>,
    ) -> Delivered<'a, Vec<Result<SessionOpened, SessionRefused>>> {
        Box::pin(async move {
            let mut opened = Vec::with_capacity(hellos.len());
            for hello in hellos {
                opened.push(self.open_session(lease, hello).await?);
            }
            Ok(opened)
        })
    }

    fn close_session<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, ()>;

    /// Like [`DeliveryStore::close_session`] for many: in one statement where the store can.
    fn close_sessions<'a>(&'a self, lease: GatewayLease, sessions: Vec<SessionKey>) -> Delivered<'a, ()> {
        Box::pin(async move {
            for session in sessions {
                self.close_session(lease, session).await?;
            }
            Ok(())
        })
    }

    /// One statement for all. Answers the sessions that are no longer this gateway's.
    fn heartbeats<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<SessionKey>>;

    /// Open sessions of this gateway to end now, since their node or certificate was revoked.
    fn ended<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>>;

    /// Like [`DeliveryStore::ended`], of these sessions alone where the store can tell them apart.
    fn ended_of<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>> {
        drop(sessions);
        self.ended(lease)
    }

    /// Nodes of this gateway's sessions that commands wait for. None when the store cannot tell: any may be one.
    fn commands_waiting<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Option<Vec<NodeId>>> {
        let _ = lease;
        Box::pin(async { Ok(None) })
    }

    /// Marks pending commands as sent on these sessions, at most as many of a lane as it has credits, and in order: returns them for sending. Those that
    /// must not be sent (a requested cancel, a body for another node) are settled instead.
    fn claim_commands<'a>(
        &'a self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Delivered<'a, Vec<StoredCommand>>;

    /// In-flight commands of these sessions whose cancel was requested.
    fn cancels<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId, String)>>;

    /// Moves commands by what their nodes reported. Returns, per node, the terminal ones to acknowledge: stored now, stored
    /// before, or not that node's.
    fn apply_updates<'a>(
        &'a self,
        lease: GatewayLease,
        updates: Vec<ReportedUpdate>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId)>>;

    /// Stores the events above what is acknowledged for this journal, in order. Returns the sequence number stored up to, which is
    /// below the last one's when too many of the node's wait to be handled and none was stored; none when the session or its
    /// journal is another by now.
    fn put_events<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Delivered<'a, Option<u64>>;

    /// [`DeliveryStore::put_events`] of several sessions, each once, and what it returns for each. In one transaction where a store
    /// can: then an error means that none of it is stored.
    fn put_events_of<'a>(
        &'a self,
        lease: GatewayLease,
        reported: Vec<ReportedEvents>,
    ) -> Delivered<'a, Vec<Option<u64>>> {
        Box::pin(async move {
            let mut stored = Vec::with_capacity(reported.len());
            for one in reported {
                stored.push(self.put_events(lease, one.session, one.journal_id, one.events).await?);
            }
            Ok(stored)
        })
    }

    /// Stores the latest status of many sessions, in one transaction.
    fn put_statuses<'a>(&'a self, lease: GatewayLease, statuses: Vec<ReportedStatus>) -> Delivered<'a, ()>;

    fn put_inventory<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        sections: Vec<ReportedSection>,
    ) -> Delivered<'a, ()>;

    /// Specs of this gateway's nodes above what was sent: `sent` is the generation each session was last sent or holds. Some megabytes
    /// at once: whoever gets any asks again for the rest.
    fn specs_behind<'a>(
        &'a self,
        lease: GatewayLease,
        sent: Vec<(SessionKey, u64)>,
    ) -> Delivered<'a, Vec<StoredSpec>>;

    /// The current spec of one node, whatever it holds.
    fn spec<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, Option<StoredSpec>>;

    /// A node's current spec for a gateway that need not have its session, when its generation is not `known`. It fails closed: a
    /// store that cannot tell has none.
    fn current_spec<'a>(&'a self, node_id: NodeId, known: u64) -> Delivered<'a, CurrentSpec> {
        let _ = (node_id, known);
        Box::pin(async { Ok(CurrentSpec::None) })
    }

    /// Leaves a request for a worker and waits for its answer, at most `patience`.
    fn ask<'a>(
        &'a self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Delivered<'a, InboxAnswer>;

    /// Whether this node certificate still counts: known, unrevoked, its node too. Asked before a stream is served.
    fn certificate_counts<'a>(&'a self, serial: &'a str) -> Delivered<'a, bool>;

    /// Like [`DeliveryStore::certificate_counts`] for many: in one statement where the store can. Answers in their order.
    fn certificates_count<'a>(&'a self, serials: Vec<String>) -> Delivered<'a, Vec<bool>> {
        Box::pin(async move {
            let mut counts = Vec::with_capacity(serials.len());
            for serial in &serials {
                counts.push(self.certificate_counts(serial).await?);
            }
            Ok(counts)
        })
    }

    /// The next wake-up; [`Poke::Everything`] after a lost connection, the first one included.
    fn next_poke<'a>(&'a self) -> Delivered<'a, Poke>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    Revoked,
    TakenOver,
}
