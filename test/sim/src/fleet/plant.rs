//! What the processes of the control plane have in common: the database, the keys, and how a process connects.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kit::{Rng, SeededRng};
use store::{Secret, Store, StoreConfig, StoreError};

use super::exec::ProcessId;
use super::keys::Keys;
use super::schedule::{Database, ProcessSchedule};
use super::time::{Core, SimClock};

/// Connections of one process: one transaction runs at once.
const POOL_SIZE: usize = 1;
/// Processes start and die all the time, and a session that plans a statement for its values does so five times first.
const OPTIONS: &str = "options=-c%20plan_cache_mode%3Dforce_generic_plan";
/// How slow the machine is must not be seen.
const REAL_TIMEOUT: Duration = Duration::from_secs(1800);

pub struct Plant {
    pub core: Arc<Core>,
    pub clock: Arc<SimClock>,
    pub keys: Keys,
    pub database: Arc<Database>,
    /// As the owner of the schema, without faults: for the simulator's own looks.
    pub store: Store,
    config: StoreConfig,
    /// Whether the control plane has instances.
    pub instances: bool,
    /// Outside of the database: the record of how far it had come.
    pub record_dir: PathBuf,
}

impl Plant {
    pub async fn open(
        core: &Arc<Core>,
        seed: u64,
        server: StoreConfig,
        record_dir: PathBuf,
        instances: bool,
    ) -> anyhow::Result<Self> {
        let told = core.clone();
        let url = server.url.reveal();
        let url = Secret::new(format!("{url}{}{OPTIONS}", if url.contains('?') { '&' } else { '?' }));
        let config = StoreConfig {
            url,
            pool_size: POOL_SIZE,
            virtual_clock: Some(Arc::new(move || told.now())),
            rng: core.rng.clone(),
            ..server
        };
        let store = Store::open(config.clone()).await?;
        store::migrate::run(&store).await?;
        Ok(Self {
            core: core.clone(),
            clock: SimClock::new(core),
            keys: Keys::new(seed, core.now(), &*core.rng)?,
            database: Arc::default(),
            store,
            config,
            instances,
            record_dir,
        })
    }

    /// Randomness of a process of its own.
    pub fn rng(&self) -> Arc<dyn Rng> {
        Arc::new(SeededRng::new(self.core.rng.u64()))
    }

    pub fn schedule(&self, process: ProcessId) -> Arc<ProcessSchedule> {
        ProcessSchedule::new(&self.core, process, &self.database)
    }

    /// A process's connections. Time stands still meanwhile.
    pub async fn connect(&self, schedule: &Arc<ProcessSchedule>, gateway: bool) -> Result<Store, StoreError> {
        let _held = self.core.hold_time();
        let config = StoreConfig { schedule: Some(schedule.clone()), rng: self.rng(), ..self.config.clone() };
        let config = match gateway {
            false => config,
            true => {
                let config = StoreConfig { role: Some("bc_gateway".to_owned()), ..config };
                fleet::PgDelivery::store_config(config, gateway::Timing::default().ttl)
            }
        };
        let config = StoreConfig {
            statement_timeout: REAL_TIMEOUT,
            lock_timeout: REAL_TIMEOUT,
            idle_in_transaction_timeout: REAL_TIMEOUT,
            connect_timeout: REAL_TIMEOUT,
            ..config
        };
        Store::open(config).await
    }
}
