//! Whether this process can do its work.

use std::sync::Arc;
use std::time::Duration;

use kit::Clock;
use store::{Store, deployment, migrate};
use tokio::sync::Mutex;

use crate::ReadyCheck;

/// How long an answer stands: anybody may ask, and each look costs the database two statements.
const KEPT: Duration = Duration::from_secs(1);
/// A database that does not answer by then is not reachable.
const WITHIN: Duration = Duration::from_secs(3);

/// Ready, or why not.
pub(crate) type Readiness = Result<(), String>;

pub(crate) struct Health {
    store: Store,
    clock: Arc<dyn Clock>,
    checks: Vec<ReadyCheck>,
    /// When it was looked at, and what was seen. Held while looking, so that callers share one look.
    last: Mutex<Option<(Duration, Readiness)>>,
}

impl Health {
    pub(crate) fn new(store: Store, clock: Arc<dyn Clock>, checks: Vec<ReadyCheck>) -> Self {
        Self { store, clock, checks, last: Mutex::new(None) }
    }

    pub(crate) async fn ready(&self) -> Readiness {
        let mut last = self.last.lock().await;
        let now = self.clock.monotonic();
        if let Some((at, readiness)) = &*last
            && now.saturating_sub(*at) < KEPT
        {
            return readiness.clone();
        }
        let looked = tokio::time::timeout(WITHIN, self.look()).await;
        let readiness = looked.unwrap_or_else(|_| Err("the database does not answer".to_owned()));
        *last = Some((self.clock.monotonic(), readiness.clone()));
        readiness
    }

    async fn look(&self) -> Readiness {
        if let Some(why) = self.checks.iter().find_map(|check| check()) {
            return Err(why);
        }
        if let Err(err) = migrate::check(&self.store).await {
            tracing::warn!(err = kit::chain(&err), "not ready");
            return Err("the database is not reachable or its schema is another program's".to_owned());
        }
        match deployment::read(&self.store).await {
            Ok(deployment) if deployment.observe_only => {
                Err("observe-only: the database may be an older one, and a restore has to be confirmed"
                    .to_owned())
            }
            Ok(_) => Ok(()),
            Err(err) => {
                tracing::warn!(err = kit::chain(&err), "not ready");
                Err("the database is not reachable".to_owned())
            }
        }
    }
}
