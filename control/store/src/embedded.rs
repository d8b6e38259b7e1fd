//! A private PostgreSQL, run from the system's binaries.
//!
//! The folder of a durable one holds `pgdata` (the cluster), `password` (the superuser's, 0600), `run` (the
//! socket, 0700) and `lock` (held while we run it). The server listens on the unix socket alone and asks for the
//! random password (SCRAM-SHA-256). When started by root it runs as an unprivileged user of its own.
//!
//! The server is the child of a thread that lives exactly as long as it does, and the kernel stops the server when
//! that thread is gone (PR_SET_PDEATHSIG): however this process ends, no server stays behind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{Secret, StoreConfig};

mod binaries;
mod folder;
mod init;
mod keeper;
mod user;

/// The cluster's superuser.
const SUPERUSER: &str = "bc";
/// Crash recovery of a large database takes a while; a clean start takes a tenth of a second.
const START_WITHIN: Duration = Duration::from_secs(120);
/// A fast shutdown writes one checkpoint.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    pub mode: Mode,
    /// Where `initdb` and `postgres` are; else PATH and `/usr/lib/postgresql/*/bin` are searched, newest first.
    pub bin_dir: Option<PathBuf>,
    pub connections_max: u32,
    pub size: Size,
    /// How long autovacuum rests between two looks.
    pub vacuum_every: Duration,
}

const VACUUM_EVERY: Duration = Duration::from_secs(60);

/// What the server may take of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 64 MiB of buffers, and half a gigabyte of log: beside whatever else a machine does.
    Small,
    /// A gigabyte of buffers, and a log of up to 8 GiB, compressed, with a checkpoint every quarter of an hour: what a server with
    /// ten thousand nodes should have. With less, each page is logged whole again and again.
    Large,
}

/// Whether the data is kept.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Kept in this folder, with every commit on disk.
    Durable { dir: PathBuf },
    /// In a folder that goes when the server does, in `/dev/shm` or where temporary files go; nothing is fsynced.
    Memory,
}

impl EmbeddedConfig {
    pub fn durable(dir: impl Into<PathBuf>) -> Self {
        Self {
            mode: Mode::Durable { dir: dir.into() },
            bin_dir: None,
            connections_max: 100,
            size: Size::Small,
            vacuum_every: VACUUM_EVERY,
        }
    }

    pub fn memory() -> Self {
        Self { mode: Mode::Memory, ..Self::durable("") }
    }
}

/// Why the private PostgreSQL does not run. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error(
        "find PostgreSQL 15 or newer (looked at {looked_at}): install it with `apt-get install postgresql-15`, or name its bin folder"
    )]
    NotFound { looked_at: String },
    #[error(
        "open the data folder {dir:?}: it was made by PostgreSQL {wanted}, and only {found} is installed: run `apt-get install postgresql-{wanted}`"
    )]
    WrongMajor { dir: PathBuf, wanted: u32, found: String },
    #[error(
        "use the data folder {dir:?}: it belongs to uid {owner} and we run as uid {ours}: run `chown -R {ours} {dir:?}` or choose another"
    )]
    ForeignFolder { dir: PathBuf, owner: u32, ours: u32 },
    #[error(
        "use the data folder {dir:?}: uid {uid}, which the server runs as, may not pass {blocked:?}: run `chmod o+x {blocked:?}` or choose another"
    )]
    BlockedPath { dir: PathBuf, blocked: PathBuf, uid: u32 },
    #[error("use the data folder {dir:?}: another process runs a server on it")]
    AlreadyRunning { dir: PathBuf },
    #[error("use the data folder {dir:?}: it is neither empty nor one of ours")]
    NotOurs { dir: PathBuf },
    #[error("make a PostgreSQL cluster in {dir:?}: initdb said: {said}")]
    Init { dir: PathBuf, said: String },
    #[error("start PostgreSQL in {dir:?}: it ended ({status}); its last words: {said}")]
    Start { dir: PathBuf, status: String, said: String },
    #[error("start PostgreSQL in {dir:?} within {within:?}; its last words: {said}")]
    Slow { dir: PathBuf, within: Duration, said: String },
    #[error("stop PostgreSQL in {dir:?} within {within:?}: it was killed")]
    Killed { dir: PathBuf, within: Duration },
    #[error("{doing} {path:?}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("prepare the data folder")]
    Files(#[source] kit::fs::FsError),
}

/// A running server. Dropping it stops it and waits, for at most [`STOP_WITHIN`].
pub struct Embedded {
    // Dropped in this order: the server ends before its folder is given up.
    keeper: keeper::Keeper,
    folder: folder::Folder,
    password: Secret,
}

impl Embedded {
    /// The database a new cluster has.
    pub const DATABASE: &str = "postgres";

    /// Makes the cluster if there is none, starts the server and returns when it takes connections.
    pub async fn start(config: EmbeddedConfig) -> Result<Embedded, EmbeddedError> {
        tokio::task::spawn_blocking(move || Self::start_blocking(&config))
            .await
            .unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }

    /// [`Embedded::start`] for a caller without a runtime.
    pub fn start_blocking(config: &EmbeddedConfig) -> Result<Embedded, EmbeddedError> {
        let owner = user::Owner::choose();
        let folder = folder::Folder::open(&config.mode, &owner)?;
        let bin_dir = binaries::find(config.bin_dir.as_deref(), folder.major()?, folder.root())?;
        let password = init::ensure(&folder, &bin_dir, &owner)?;
        folder.clear_stale_server()?;
        let keeper = keeper::Keeper::start(keeper::Launch {
            program: bin_dir.join("postgres"),
            arguments: arguments(config, &folder),
            data: folder.data(),
            owner: owner.runs_as(),
            durable: folder.is_durable(),
        })?;
        keeper.wait_ready(START_WITHIN)?;
        folder.watch_over(keeper.pid())?;
        Ok(Embedded { keeper, folder, password })
    }

    /// Where to connect to reach `database`; [`Embedded::DATABASE`] always exists.
    pub fn url(&self, database: &str) -> Secret {
        let host: String = self.folder.socket_dir().to_string_lossy().replace('%', "%25").replace('/', "%2F");
        Secret::new(format!("postgres://{SUPERUSER}:{}@{host}/{database}", self.password.reveal()))
    }

    pub fn store_config(&self, database: &str) -> StoreConfig {
        StoreConfig::new(self.url(database))
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> u32 {
        self.keeper.pid()
    }

    /// The folder that holds everything of this server.
    pub fn dir(&self) -> &Path {
        self.folder.root()
    }

    /// Returns when the server has ended, by whatever cause, with its last words.
    pub async fn ended(&self) -> String {
        self.keeper.ended().await
    }

    /// Ends the sessions, writes a checkpoint and returns when the server is gone.
    pub async fn stop(self) -> Result<(), EmbeddedError> {
        tokio::task::spawn_blocking(move || self.keeper.stop(STOP_WITHIN))
            .await
            .unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded")
            .field("dir", &self.folder.root())
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

fn arguments(config: &EmbeddedConfig, folder: &folder::Folder) -> Vec<String> {
    let mut settings = vec![
        ("listen_addresses", String::new()),
        ("unix_socket_directories", folder.socket_dir().display().to_string()),
        ("unix_socket_permissions", "0700".to_owned()),
        ("max_connections", config.connections_max.to_string()),
        ("autovacuum_naptime", config.vacuum_every.as_secs().max(1).to_string()),
        ("timezone", "UTC".to_owned()),
        ("log_timezone", "UTC".to_owned()),
        // The log names errors without the rows and statements they came from.
        ("log_error_verbosity", "terse".to_owned()),
        ("log_min_error_statement", "panic".to_owned()),
        ("log_min_messages", "fatal".to_owned()),
        // Short statements over few rows gain nothing from these.
        ("jit", "off".to_owned()),
        ("max_parallel_workers_per_gather", "0".to_owned()),
        ("update_process_title", "off".to_owned()),
    ];
    let how: &[(&'static str, &str)] = if folder.is_durable() {
        &[("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on"), ("max_wal_senders", "4")]
    } else {
        &[
            ("fsync", "off"),
            ("synchronous_commit", "off"),
            ("full_page_writes", "off"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
        ]
    };
    let size: &[(&'static str, &str)] = match config.size {
        Size::Small => &[("shared_buffers", "64MB"), ("max_wal_size", "512MB")],
        Size::Large => &[
            ("shared_buffers", "1GB"),
            ("max_wal_size", "8GB"),
            ("checkpoint_timeout", "15min"),
            ("wal_compression", "on"),
        ],
    };
    settings.extend(how.iter().chain(size).map(|(name, value)| (*name, (*value).to_owned())));
    let mut arguments = vec!["-D".to_owned(), folder.data().display().to_string()];
    for (name, value) in settings {
        arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    arguments
}
