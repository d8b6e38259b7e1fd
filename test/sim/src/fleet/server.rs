//! The database's server, and what happens to it: killed, stopped, copied, and replaced by an older copy of itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use store::embedded::{Embedded, EmbeddedConfig};

const CONNECTIONS_MAX: u32 = 200;
const START_TRIES: u32 = 50;
/// Many minutes of virtual time go by in one, and the server seldom lives for that long.
const VACUUM_EVERY: Duration = Duration::from_secs(5);

/// A connection that is new plans each statement anew, and up to six times where it looks at the parameters. Chaos makes many
/// connections, and a plan that goes by the parameters may find rows in another order in a second run. Tables of some hundred
/// rows that change with every heartbeat would be vacuumed and analyzed at every look.
const SETTINGS: &str = "plan_cache_mode = force_generic_plan\n\
    autovacuum_vacuum_threshold = 1000\n\
    autovacuum_analyze_threshold = 2000\n";

/// In a folder in memory, where what is durable costs nothing.
pub struct Server {
    dir: PathBuf,
    running: Option<Embedded>,
    backup: Option<PathBuf>,
}

impl Server {
    pub async fn start(dir: PathBuf) -> anyhow::Result<Self> {
        let mut server = Self { dir, running: None, backup: None };
        server.up().await?;
        server.configure()?;
        Ok(server)
    }

    /// For this server and for all that are started over the same files.
    fn configure(&self) -> anyhow::Result<()> {
        let path = self.dir.join("pgdata/postgresql.conf");
        let mut text = std::fs::read_to_string(&path)?;
        text.push_str(SETTINGS);
        std::fs::write(&path, text)?;
        self.signal(rustix::process::Signal::HUP)
    }

    fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.embedded()?.pid())?;
        let pid = rustix::process::Pid::from_raw(pid).context("a process")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    pub fn embedded(&self) -> anyhow::Result<&Embedded> {
        self.running.as_ref().context("the server runs")
    }

    async fn up(&mut self) -> anyhow::Result<()> {
        let config = EmbeddedConfig {
            connections_max: CONNECTIONS_MAX,
            vacuum_every: VACUUM_EVERY,
            ..EmbeddedConfig::durable(&self.dir)
        };
        let mut tries = 0;
        self.running = loop {
            match Embedded::start(config.clone()).await {
                Ok(running) => break Some(running),
                // What a killed server leaves behind ends by itself, a little later.
                Err(_) if tries < START_TRIES => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(err) => return Err(err.into()),
            }
        };
        Ok(())
    }

    pub async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(running) = self.running.take() {
            running.stop().await?;
        }
        Ok(())
    }

    /// As a power cut: nothing is said to anybody, and what follows is a recovery.
    pub async fn power_cut(&mut self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::KILL)?;
        let running = self.running.take().context("the server runs")?;
        running.ended().await;
        drop(running);
        self.up().await
    }

    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Copies the cluster as it stands.
    pub async fn back_up(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        let to = self.dir.with_extension("backup");
        replace(&self.dir.join("pgdata"), &to)?;
        self.backup = Some(to);
        self.up().await
    }

    /// The copy takes the cluster's place.
    pub async fn restore(&mut self) -> anyhow::Result<()> {
        let Some(backup) = self.backup.clone() else { bail!("there is no backup") };
        self.stop().await?;
        replace(&backup, &self.dir.join("pgdata"))?;
        self.up().await
    }
}

/// With owners and modes, which the server insists on.
fn replace(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    if !copied.success() {
        bail!("cannot copy {} to {}", from.display(), to.display());
    }
    Ok(())
}
