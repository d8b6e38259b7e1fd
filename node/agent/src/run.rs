//! The actor around the engine: it feeds inputs, commits writes, does effects. Everything with I/O in the agent is here
//! or behind a port.

mod actor;
mod connection;
mod converger;
mod renewal;

use std::sync::Arc;
use std::time::Duration;

use kit::{Clock, OnEnd, Rng, Supervisor, TaskHandle, TaskKind, Wake, Waker};
use model::IncarnationId;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Now;
use crate::converge::{Converger, PassReport};
use crate::desired::HeldSpec;
use crate::engine::{Certificate, Engine, EngineParts, Node};
use crate::hardware::{Hardware, Host};
use crate::identity::{Identity, IdentityError, IdentityStore};
use crate::journal::{JournalError, JournalStore, Limits};
use crate::kinds::{KindHandler, Outcome};
use crate::link::Link;
use crate::renew::RenewError;
use crate::secrets::Desk;
use crate::tunnel::{Refused, Tunnels};

pub use crate::engine::StatusView;
use actor::Actor;

/// Requests to the engine that wait. Commands come through the session, so these are a few callers and workers.
const INBOX: usize = 64;
/// How long running commands, and a converge pass, get to come to an end when the daemon stops.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// What an agent is made from.
pub struct AgentParts {
    /// As Hello and join tell it.
    pub agent_version: String,
    /// This boot of the machine: another value after a reboot, the same after a restart of the daemon.
    pub boot_id: String,
    pub limits: Limits,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub link: Arc<dyn Link>,
    pub journal: Arc<dyn JournalStore>,
    pub identity: Arc<dyn IdentityStore>,
    pub convergers: Vec<Box<dyn Converger>>,
    pub kinds: Vec<Arc<dyn KindHandler>>,
    pub hardware: Arc<dyn Hardware>,
    pub host: Arc<dyn Host>,
    pub tunnels: Arc<dyn Tunnels>,
    /// What the end of this agent means for the process: fatal for a daemon, isolated for one of a thousand simulated ones.
    pub on_end: OnEnd,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("start the agent: this machine has not joined; run: bcd join")]
    NotJoined,
    #[error("start the agent")]
    Identity(#[from] IdentityError),
    #[error("run the agent")]
    Journal(#[from] JournalError),
}

/// Somebody's request to the engine, or somebody's news.
enum Message {
    Finished { id: model::CommandId, outcome: Outcome },
    Passed(PassReport),
    HardwareChanged,
    Converge,
    TunnelRefused(Refused),
    Renewed(Box<Result<Identity, RenewError>>),
    Status(oneshot::Sender<StatusView>),
}

/// Talks to a running agent. Cheap to clone.
#[derive(Clone)]
pub struct AgentHandle {
    inbox: mpsc::Sender<Message>,
}

/// The agent is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ask the agent: it has stopped")]
pub struct Stopped;

impl AgentHandle {
    pub async fn status(&self) -> Result<StatusView, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Message::Status(reply)).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Makes a converge pass soon.
    pub async fn converge(&self) -> Result<(), Stopped> {
        self.inbox.send(Message::Converge).await.map_err(|_| Stopped)
    }

    /// The hardware's readings changed: hashes, conditions or both.
    pub async fn hardware_changed(&self) -> Result<(), Stopped> {
        self.inbox.send(Message::HardwareChanged).await.map_err(|_| Stopped)
    }
}

/// A running agent. Dropping this leaves it running under its supervisor.
pub struct Agent {
    pub handle: AgentHandle,
    engine: TaskHandle,
    converge: TaskHandle,
}

impl Agent {
    /// Asks it to stop and waits: running commands get a moment to come to an end, and their outcomes are journaled.
    pub async fn stop(self) {
        self.engine.cancel();
        self.converge.cancel();
        self.engine.finished().await;
        self.converge.finished().await;
    }

    /// Ends it as a power cut would, apart from what other threads are doing: nothing more is journaled or sent.
    pub async fn crash(self) {
        self.engine.abort();
        self.converge.abort();
        self.engine.finished().await;
        self.converge.finished().await;
    }

    pub fn is_finished(&self) -> bool {
        self.engine.is_finished()
    }

    pub async fn finished(self) {
        self.engine.finished().await;
        self.converge.cancel();
        self.converge.finished().await;
    }
}

/// Starts an agent under `supervisor`. It settles what an earlier process left, converges the spec it held, and connects.
pub fn run(parts: AgentParts, supervisor: &Supervisor) -> Result<Agent, AgentError> {
    let identity = parts.identity.load()?.ok_or(AgentError::NotJoined)?;
    let now = Now::read(parts.clock.as_ref());
    let (inbox, messages) = mpsc::channel(INBOX);
    let (wake, waker) = Wake::new();
    let (spec, held) = watch::channel(None);
    let engine = Engine::new(engine_parts(&parts, &identity, now)?, now);
    let handle = AgentHandle { inbox: inbox.clone() };
    let desk = Desk::default();

    let passes = converger::Loop {
        convergers: parts.convergers,
        held,
        wake,
        inbox: inbox.clone(),
        node_id: identity.node_id,
        boot_id: parts.boot_id.clone(),
        desk: desk.clone(),
        clock: parts.clock.clone(),
    };
    let actor = Actor::new(
        actor::Ports {
            clock: parts.clock,
            rng: parts.rng,
            link: parts.link,
            journal: parts.journal,
            identity: parts.identity,
            kinds: parts.kinds,
            hardware: parts.hardware,
            host: parts.host,
            tunnels: parts.tunnels,
            supervisor: supervisor.clone(),
        },
        engine,
        identity,
        parts.boot_id,
        Mailbox { inbox, messages, spec, waker, desk },
    );
    let kind = |name| TaskKind { name, on_end: parts.on_end };
    Ok(Agent {
        handle,
        engine: supervisor.spawn(kind("agent"), |stop| actor.run(stop)),
        converge: supervisor.spawn(kind("converge"), |stop| passes.run(stop)),
    })
}

/// The actor's ends of its channels.
struct Mailbox {
    inbox: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    spec: watch::Sender<Option<Arc<HeldSpec>>>,
    waker: Waker,
    desk: Desk,
}

fn engine_parts(parts: &AgentParts, identity: &Identity, now: Now) -> Result<EngineParts, AgentError> {
    let incarnation: IncarnationId = parts.rng.id(now.wall);
    Ok(EngineParts {
        node: Node {
            node_id: identity.node_id,
            site_id: identity.site_id,
            role: identity.role,
            boot_id: parts.boot_id.clone(),
            agent_version: parts.agent_version.clone(),
            capabilities: parts.hardware.capabilities(),
        },
        key: identity.key.clone(),
        certificate: Certificate { begins: identity.not_before, ends: identity.not_after },
        trust: identity.trust.clone(),
        marks: identity.marks,
        journal_id: parts.journal.id(),
        incarnation,
        limits: parts.limits,
        loaded: parts.journal.load()?,
        handled: parts.kinds.iter().map(|handler| handler.kind()).collect(),
        validators: parts.convergers.iter().filter_map(|converger| converger.validator()).collect(),
        versions: wire::versions::Versions::SPOKEN,
        rng: parts.rng.clone(),
    })
}

#[cfg(test)]
mod tests;
