//! The pool and the loop that runs a transaction again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use kit::Backoff;
use prometheus_client::registry::Registry;
use tokio_postgres::config::SslMode;
use tokio_postgres::{NoTls, Row};

use crate::config::StoreConfig;
use crate::error::{ErrorKind, IsRetryable, StoreError};
use crate::listen::{self, Messages};
use crate::metrics::Metrics;
use crate::schedule::{self, At, Fate};
use crate::tls::Tls;
use crate::tx::{Statement, Teller, Tx, after_failure};
use crate::{BoxFuture, Op, Param, Sql};

/// A transaction is begun this often at most. Conflicts clear within a few tries or not at all.
const TX_ATTEMPTS_MAX: u32 = 8;
/// No attempt starts later than this after the first, so that a request with a deadline hears of the outage.
const TX_RETRY_WITHIN: Duration = Duration::from_secs(10);
/// The first pause is up to this long; it doubles up to the second.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(4);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// A cheap handle on the database. Clones share one pool.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    pool: Pool,
    config: StoreConfig,
    metrics: Metrics,
    teller: Arc<Teller>,
}

impl Store {
    /// Connects once, so that a wrong address, password or role is found here. Does not look at the schema:
    /// see [`crate::migrate::check`].
    pub async fn open(config: StoreConfig) -> Result<Store, StoreError> {
        let driver = config.driver()?;
        // A closed connection is noticed without a round trip; a dead one by the statement's own failure.
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match driver.get_ssl_mode() {
            SslMode::Disable => Manager::from_config(driver, NoTls, manager_config),
            _ => Manager::from_config(driver, Tls::new(config.tls_roots.as_deref())?, manager_config),
        };
        let timeout = Some(config.connect_timeout);
        let pool = Pool::builder(manager)
            .max_size(config.pool_size.max(1))
            // A few connections do the work, and what they know of tables and plans stays in the processor's caches.
            .queue_mode(QueueMode::Lifo)
            .timeouts(Timeouts { wait: timeout, create: timeout, recycle: timeout })
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|err| StoreError::new("open", ErrorKind::Config { why: err.to_string() }))?;
        let store =
            Store(Arc::new(Inner { pool, config, metrics: Metrics::default(), teller: Arc::default() }));
        drop(store.connection().await?);
        Ok(store)
    }

    /// Runs `f` in a READ COMMITTED transaction and commits when it returns `Ok`.
    ///
    /// Runs it again after a serialization failure, a deadlock, a lock timeout or a connection lost before
    /// COMMIT, or when the caller's error says so: a bounded number of times with a growing jittered pause. A
    /// connection lost during COMMIT is [`ErrorKind::CommitUnknown`] and is not retried. Dropping the future
    /// closes the connection, which rolls back.
    pub fn tx<'a, T, E, F>(&'a self, op: Op, mut f: F) -> BoxFuture<'a, Result<T, E>>
    where
        F: for<'t> FnMut(&'t mut Tx<'a>) -> BoxFuture<'t, Result<T, E>> + Send + 'a,
        T: Send + 'a,
        E: From<StoreError> + IsRetryable + Send + 'a,
    {
        Box::pin(async move {
            let started = Instant::now();
            let mut backoff = Backoff::new(RETRY_PAUSE_FIRST, RETRY_PAUSE_MAX);
            loop {
                match self.attempt(op, &mut f).await {
                    Ok(value) => {
                        self.0.metrics.op_done(op.name(), "committed", started.elapsed());
                        return Ok(value);
                    }
                    Err(err)
                        if err.is_retryable()
                            && backoff.attempt() + 1 < TX_ATTEMPTS_MAX
                            && started.elapsed() < TX_RETRY_WITHIN =>
                    {
                        self.0.metrics.op_retried(op.name());
                        self.pause(backoff.next_wait(&*self.0.config.rng)).await;
                    }
                    Err(err) => {
                        self.0.metrics.op_done(op.name(), "failed", started.elapsed());
                        return Err(err);
                    }
                }
            }
        })
    }

    async fn attempt<'a, T, E, F>(&'a self, op: Op, f: &mut F) -> Result<T, E>
    where
        F: for<'t> FnMut(&'t mut Tx<'a>) -> BoxFuture<'t, Result<T, E>> + Send + 'a,
        T: Send + 'a,
        E: From<StoreError> + IsRetryable + Send + 'a,
    {
        let _turn = schedule::enter(&self.0.config.schedule, op.name()).await?;
        let (schedule, teller) = (self.0.config.schedule.clone(), self.0.teller.clone());
        let (connection, metrics) = (self.raw_connection().await?, self.0.metrics.clone());
        let mut tx: Tx<'a> = Tx::new(connection, metrics, self.virtual_now(), schedule, teller);
        match f(&mut tx).await {
            Ok(value) => {
                tx.commit().await?;
                Ok(value)
            }
            Err(err) => {
                tx.rollback().await;
                Err(err)
            }
        }
    }

    /// One statement that only reads, outside a transaction. Run once more when the connection had died.
    pub async fn read(&self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Vec<Row>, StoreError> {
        let _turn = schedule::enter(&self.0.config.schedule, sql.name).await?;
        match self.read_once(sql, params).await {
            Err(err) if err.retryable() => self.read_once(sql, params).await,
            done => done,
        }
    }

    /// Like [`Store::read`], for a statement that finds one row or none.
    pub async fn read_opt(
        &self,
        sql: &Sql,
        params: &[&(dyn Param + Sync)],
    ) -> Result<Option<Row>, StoreError> {
        at_most_one(sql, self.read(sql, params).await?)
    }

    /// Like [`Store::read`], for a statement that finds one row.
    pub async fn read_one(&self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Row, StoreError> {
        exactly_one(sql, self.read(sql, params).await?)
    }

    /// One statement that writes, outside a transaction. A connection lost while it ran is
    /// [`ErrorKind::CommitUnknown`].
    pub async fn execute(&self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<u64, StoreError> {
        let _turn = schedule::enter(&self.0.config.schedule, sql.name).await?;
        let fate = schedule::point(&self.0.config.schedule, At::Commit, sql.name).await;
        if fate == Fate::LostBefore {
            return Err(StoreError::new(sql.name, ErrorKind::CommitUnknown));
        }
        let connection = self.connection().await?;
        let statement = Statement::start(self.0.metrics.clone(), sql);
        let done = match connection.prepare_cached(sql.text).await {
            Err(err) => Err(StoreError::driver(sql.name, &err)),
            Ok(prepared) => connection.execute(&prepared, params).await.map_err(|err| {
                if crate::error::ends_session(&err) {
                    StoreError::new(sql.name, ErrorKind::CommitUnknown)
                } else {
                    StoreError::driver(sql.name, &err)
                }
            }),
        };
        let done = match fate {
            Fate::LostAfter => Err(StoreError::new(sql.name, ErrorKind::CommitUnknown)),
            Fate::Goes | Fate::LostBefore => done,
        };
        give_back(connection, statement.finish(done))
    }

    /// Parses and plans a statement without running it, so that a test finds what is wrong in it.
    pub async fn prepare(&self, sql: &Sql) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        connection.prepare(sql.text).await.map(drop).map_err(|err| StoreError::driver(sql.name, &err))
    }

    /// Adds the `store_…` metrics. Call once per registry.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.0.metrics.register(registry, self.0.pool.clone());
    }

    pub fn config(&self) -> &StoreConfig {
        &self.0.config
    }

    /// Closes the pool: connections in use end when they come back, and new ones are refused.
    pub fn close(&self) {
        self.0.pool.close();
    }

    async fn read_once(&self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Vec<Row>, StoreError> {
        let connection = self.raw_connection().await?;
        let statement = Statement::start(self.0.metrics.clone(), sql);
        let done = match connection.prepare_cached(sql.text).await {
            Ok(prepared) => match self.virtual_now() {
                None => connection.query(&prepared, params).await,
                // One behind the other, without waiting in between.
                Some(now) => {
                    let set = format!("SET compute.now_us = {}", now.micros());
                    let set = connection.batch_execute(&set);
                    let (set, done) = futures::join!(set, connection.query(&prepared, params));
                    set.and(done)
                }
            },
            Err(err) => Err(err),
        };
        give_back(connection, statement.finish(done.map_err(|err| StoreError::driver(sql.name, &err))))
    }

    async fn pause(&self, duration: Duration) {
        match &self.0.config.schedule {
            Some(schedule) => schedule.pause(duration).await,
            None => tokio::time::sleep(duration).await,
        }
    }

    /// A connection with the virtual clock, if any, set for what follows.
    pub(crate) async fn connection(&self) -> Result<Object, StoreError> {
        let connection = self.raw_connection().await?;
        if let Some(now) = self.virtual_now() {
            let set = format!("SET compute.now_us = {}", now.micros());
            connection.batch_execute(&set).await.map_err(|err| StoreError::driver("set_clock", &err))?;
        }
        Ok(connection)
    }

    async fn raw_connection(&self) -> Result<Object, StoreError> {
        self.0.pool.get().await.map_err(|err| match err {
            PoolError::Backend(err) => StoreError::driver("connect", &err),
            PoolError::Timeout(kind) => {
                let why = format!("no connection within {:?} ({kind:?})", self.0.config.connect_timeout);
                StoreError::new("connect", ErrorKind::Unavailable { why })
            }
            PoolError::Closed => {
                StoreError::new("connect", ErrorKind::Config { why: "the pool is closed".to_owned() })
            }
            PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                StoreError::new("connect", ErrorKind::Config { why: err.to_string() })
            }
        })
    }

    pub(crate) fn virtual_now(&self) -> Option<model::Timestamp> {
        self.0.config.virtual_clock.as_ref().map(|clock| clock())
    }
}

/// Back to the pool, unless what happened speaks against the connection.
fn give_back<T>(connection: Object, done: Result<T, StoreError>) -> Result<T, StoreError> {
    if let Err(err) = &done
        && after_failure(&connection, err)
    {
        drop(Object::take(connection));
    }
    done
}

/// A connection outside the pool, which its user drives.
pub(crate) async fn connect_raw(
    config: &StoreConfig,
) -> Result<(tokio_postgres::Client, Messages), StoreError> {
    let driver = config.driver()?;
    let failed = |err: tokio_postgres::Error| StoreError::driver("connect", &err);
    if driver.get_ssl_mode() == SslMode::Disable {
        let (client, connection) = driver.connect(NoTls).await.map_err(failed)?;
        return Ok((client, listen::messages(connection)));
    }
    let (client, connection) =
        driver.connect(Tls::new(config.tls_roots.as_deref())?).await.map_err(failed)?;
    Ok((client, listen::messages(connection)))
}

pub(crate) fn at_most_one(sql: &Sql, rows: Vec<Row>) -> Result<Option<Row>, StoreError> {
    match rows.len() {
        0 | 1 => Ok(rows.into_iter().next()),
        found => Err(StoreError::new(sql.name, ErrorKind::RowCount { found })),
    }
}

pub(crate) fn exactly_one(sql: &Sql, rows: Vec<Row>) -> Result<Row, StoreError> {
    at_most_one(sql, rows)?.ok_or_else(|| StoreError::new(sql.name, ErrorKind::RowCount { found: 0 }))
}
