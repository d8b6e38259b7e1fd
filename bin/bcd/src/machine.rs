//! One machine's agent, put together: the ports of a real host or a simulated one, a journal, a link, and the agent over them.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::identity::FileIdentity;
use agent::journal::{JournalStore, Limits, RedbJournal};
use agent::link::{Link, TunnelLink};
use agent::run::{Agent, AgentParts};
use anyhow::Context;
use handlers::node::{NodePorts, parts};
use kit::{Clock, OnEnd, Rng, Supervisor, TaskKind, Wake};
use sha2::{Digest, Sha256};

const HOSTNAME_BYTES_MAX: u64 = 1024;

/// Put between an agent and its journal, to see what the agent makes of one that fails it.
pub type JournalLayer = fn(Arc<dyn JournalStore>) -> Arc<dyn JournalStore>;

pub struct Machine {
    pub data_dir: PathBuf,
    pub ports: NodePorts,
    pub link: Arc<dyn Link>,
    /// By which others are let in; none, and nobody is.
    pub tunnels: Option<Arc<dyn TunnelLink>>,
    /// What a reboot command does; the ports' own when absent.
    pub host: Option<Arc<dyn agent::hardware::Host>>,
    pub journal_file_bytes_max: u64,
    /// None in a daemon that ships.
    pub journal_layer: Option<JournalLayer>,
    pub limits: Limits,
    /// Woken when something that the spec waits for has come.
    pub arrived: Option<Wake>,
    /// Where `bcd status` asks; none for a simulated machine.
    pub status_socket: Option<PathBuf>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub on_end: OnEnd,
}

/// Starts the agent of a machine that has joined.
pub async fn start(machine: Machine, supervisor: &Supervisor) -> anyhow::Result<Agent> {
    let tunnels = machine.tunnels.map(|link| (link, supervisor.clone()));
    let parts = parts(NodePorts { tunnels, ..machine.ports }).await?;
    let journal_path = machine.data_dir.join(agent::journal::JOURNAL_FILE);
    let (rng, now, bytes_max) = (machine.rng.clone(), machine.clock.now(), machine.journal_file_bytes_max);
    let journal =
        tokio::task::spawn_blocking(move || RedbJournal::open(&journal_path, bytes_max, &*rng, now))
            .await
            .context("open the journal")??;
    let journal: Arc<dyn JournalStore> = Arc::new(journal);
    let agent = agent::run::run(
        AgentParts {
            agent_version: crate::VERSION.to_owned(),
            boot_id: parts.boot_id,
            limits: machine.limits,
            clock: machine.clock.clone(),
            rng: machine.rng,
            link: machine.link,
            journal: match machine.journal_layer {
                Some(layer) => layer(journal),
                None => journal,
            },
            identity: Arc::new(FileIdentity::new(&machine.data_dir)),
            convergers: parts.convergers,
            kinds: parts.kinds,
            hardware: parts.hardware,
            host: machine.host.unwrap_or(parts.host),
            tunnels: parts.tunnels,
            on_end: machine.on_end,
        },
        supervisor,
    )?;
    let (watch, handle) = (parts.watch, agent.handle.clone());
    let kind = TaskKind { name: "machine_watch", on_end: machine.on_end };
    supervisor.spawn(kind, move |stop| watch.run(handle, stop));
    if let Some(mut arrived) = machine.arrived {
        let handle = agent.handle.clone();
        let kind = TaskKind { name: "arrivals", on_end: machine.on_end };
        supervisor.spawn(kind, move |stop| async move {
            while stop.run_until_cancelled(arrived.signalled()).await.is_some()
                && handle.converge().await.is_ok()
            {}
            Ok::<_, Infallible>(())
        });
    }
    if let Some(path) = &machine.status_socket {
        // The agent does its work without it, so a directory that cannot be made is no reason to stop.
        if let Err(err) = agent::status::serve(path, agent.handle.clone(), supervisor) {
            tracing::warn!(err = kit::chain(&err), "bcd status will not answer");
        }
    }
    Ok(agent)
}

/// This machine's name, for people.
pub fn hostname() -> String {
    let bytes = kit::fs::read_bounded(Path::new("/proc/sys/kernel/hostname"), HOSTNAME_BYTES_MAX);
    let name = bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).unwrap_or_default();
    // What the join payload allows.
    let name: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(253).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// SHA-256 over what tells this machine from another, for people to compare. Never an identity.
pub fn hardware_key(root: &Path) -> Vec<u8> {
    let mut hash = Sha256::new();
    for file in ["etc/machine-id", "sys/class/dmi/id/product_uuid", "sys/class/dmi/id/product_serial"] {
        let bytes = kit::fs::read_bounded(&root.join(file), HOSTNAME_BYTES_MAX).unwrap_or_default();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hash.finalize().to_vec()
}
