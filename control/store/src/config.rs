//! How to reach the database and what a session may take.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kit::{OsRng, Rng};
use model::Timestamp;
use tokio_postgres::config::{Host, SslMode};

use crate::error::{ErrorKind, StoreError};

/// A text that no Debug or Display shows: a connection URL with its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The simulator's clock: what `compute_now()` returns in this store's sessions.
pub type VirtualClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Everything a [`crate::Store`] is made from.
#[derive(Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database`; a unix socket's folder is percent-encoded as the host.
    ///
    /// Over TCP `sslmode` is `verify-full`, which is the default, or `disable`. There is nothing between: a
    /// connection is either verified, name and chain, or said to be open.
    pub url: Secret,
    /// Connections at most. Each costs the server a process of several megabytes.
    pub pool_size: usize,
    /// Shown in `pg_stat_activity`.
    pub application_name: String,
    /// A role to drop to for every session. A process that must not be more than it, logs in as one that is not.
    pub role: Option<String>,
    /// How long one statement may run.
    pub statement_timeout: Duration,
    /// How long one statement may wait for a lock.
    pub lock_timeout: Duration,
    /// How long a transaction may sit idle before the server ends its session.
    pub idle_in_transaction_timeout: Duration,
    /// How long to wait for a connection: for a free one in the pool, and for a new one to be made.
    pub connect_timeout: Duration,
    /// Jitter between retries of a transaction.
    pub rng: Arc<dyn Rng>,
    pub virtual_clock: Option<VirtualClock>,
    /// The simulator's hand on each statement.
    pub schedule: Option<Arc<dyn crate::schedule::Schedule>>,
    /// PEM certificates that may sign the server's, instead of the system's.
    pub tls_roots: Option<PathBuf>,
}

impl StoreConfig {
    /// The defaults of the control plane over this URL.
    pub fn new(url: Secret) -> Self {
        Self {
            url,
            pool_size: 16,
            application_name: "better-compute".to_owned(),
            role: None,
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            rng: Arc::new(OsRng),
            virtual_clock: None,
            schedule: None,
            tls_roots: None,
        }
    }

    /// The driver's configuration: the URL's, then ours over it.
    pub(crate) fn driver(&self) -> Result<tokio_postgres::Config, StoreError> {
        let refused = |why: String| StoreError::new("open", ErrorKind::Config { why });
        // The driver knows `require` for what is `verify-full` here, and neither of the halves.
        let url = self.url.reveal().replace("sslmode=verify-full", "sslmode=require");
        let mut config: tokio_postgres::Config =
            url.parse().map_err(|_| refused("the URL does not parse".to_owned()))?;
        if config.get_hosts().is_empty() {
            return Err(refused("the URL names no host".to_owned()));
        }
        if config.get_ssl_mode() == SslMode::Prefer {
            let local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
            config.ssl_mode(if local { SslMode::Disable } else { SslMode::Require });
        }
        let mut options = config.get_options().unwrap_or_default().to_owned();
        let mut set = |name: &str, value: &str| {
            options.push_str(&format!(" -c {name}={value}"));
        };
        set("statement_timeout", &self.statement_timeout.as_millis().to_string());
        set("lock_timeout", &self.lock_timeout.as_millis().to_string());
        set("idle_in_transaction_session_timeout", &self.idle_in_transaction_timeout.as_millis().to_string());
        // Statements here touch few rows: compiling one takes a thousand times as long as running it.
        set("jit", "off");
        // What is asked for lies in memory, or on a disk that nothing moves in. By what PostgreSQL takes for granted, of disks
        // that turn, a few hundred rows of a large table are dearer to look up than all of it is to read.
        set("random_page_cost", "1.1");
        set("timezone", "UTC");
        set("search_path", "public");
        if let Some(role) = &self.role {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if role.is_empty() || !role.chars().all(plain) {
                return Err(refused(format!("{role:?} is not a plain role name")));
            }
            set("role", role);
        }
        config
            .options(options)
            .application_name(&self.application_name)
            .connect_timeout(self.connect_timeout)
            // A peer that vanished without a word is noticed in about half a minute.
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(30));
        Ok(config)
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("url", &self.url)
            .field("pool_size", &self.pool_size)
            .field("application_name", &self.application_name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
