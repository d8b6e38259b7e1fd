//! One transaction.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use deadpool_postgres::Object;
use kit::mutant;
use model::Timestamp;
use tokio_postgres::Row;

use crate::error::{ErrorKind, StoreError};
use crate::metrics::Metrics;
use crate::pool::{at_most_one, exactly_one};
use crate::schedule::{self, At, Fate, Scheduled};
use crate::{BoxFuture, Param, RowExt, Sql, sql};

mod ending;
mod tell;

pub(crate) use ending::Later;
pub use ending::Owned;
use ending::Pending;
pub(crate) use tell::Teller;

const NOW: Sql = sql("compute_now", "SELECT compute_now() AS now");

/// A running transaction, given to the closure of [`crate::Store::tx`].
///
/// `'env` is what the closure may borrow: `&'t mut Tx<'env>` implies that `'env` outlives `'t`, so the boxed
/// future of lifetime `'t` may hold anything of lifetime `'env`.
///
/// BEGIN travels with the first statement, and what nothing in the transaction waits for (events, wake-ups, [`Tx::later`])
/// with COMMIT. An empty transaction costs nothing.
pub struct Tx<'env> {
    /// Absent while a savepoint has it, and for good when a savepoint's future was dropped midway.
    session: Option<Session>,
    env: PhantomData<&'env ()>,
}

struct Session {
    connection: Object,
    metrics: Metrics,
    schedule: Scheduled,
    teller: Arc<Teller>,
    /// The text that begins the transaction, until it was sent.
    begin: Option<String>,
    /// A statement failed and no savepoint was rolled back since: the server refuses everything but ROLLBACK.
    failed: bool,
    /// The server on the other side is shutting down, or not the one that takes writes: not back to the pool.
    discard: bool,
    savepoints: u32,
    /// What is sent at the end.
    pending: Pending,
}

impl<'env> Tx<'env> {
    pub(crate) fn new(
        connection: Object,
        metrics: Metrics,
        virtual_now: Option<Timestamp>,
        schedule: Scheduled,
        teller: Arc<Teller>,
    ) -> Self {
        let mut begin = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
        if let Some(now) = virtual_now {
            begin.push_str(&format!("; SET LOCAL compute.now_us = {}", now.micros()));
        }
        let session = Session {
            connection,
            metrics,
            schedule,
            teller,
            begin: Some(begin),
            failed: false,
            discard: false,
            savepoints: 0,
            pending: Pending::default(),
        };
        Self { session: Some(session), env: PhantomData }
    }

    pub async fn query(&mut self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Vec<Row>, StoreError> {
        self.session(sql.name)?.query(sql, params).await
    }

    /// One row or none; more is an error.
    pub async fn query_opt(
        &mut self,
        sql: &Sql,
        params: &[&(dyn Param + Sync)],
    ) -> Result<Option<Row>, StoreError> {
        at_most_one(sql, self.query(sql, params).await?)
    }

    /// Exactly one row.
    pub async fn query_one(&mut self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Row, StoreError> {
        exactly_one(sql, self.query(sql, params).await?)
    }

    /// The number of rows the statement touched.
    pub async fn execute(&mut self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<u64, StoreError> {
        self.session(sql.name)?.execute(sql, params).await
    }

    /// The time as this transaction's statements see it.
    pub async fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok(self.query_one(&NOW, &[]).await?.ts("now"))
    }

    /// Runs `f` so that its `Err` undoes only what `f` did, and the transaction goes on.
    ///
    /// The outer error is the database's, and leaves the transaction as failed as any statement does.
    pub fn savepoint<'t, T, E, F>(&'t mut self, f: F) -> BoxFuture<'t, Result<Result<T, E>, StoreError>>
    where
        F: for<'s> FnOnce(&'s mut Tx<'t>) -> BoxFuture<'s, Result<T, E>> + Send + 't,
        T: Send + 't,
        E: Send + 't,
    {
        Box::pin(async move {
            let session = self.session("savepoint")?;
            session.savepoints += 1;
            let name = format!("s{}", session.savepoints);
            session.command("savepoint", &format!("SAVEPOINT {name}")).await?;
            let kept = session.pending.mark();

            // The session moves into a shorter-lived Tx, so that `f` may borrow what lives as long as this call.
            let mut inner: Tx<'t> = Tx { session: self.session.take(), env: PhantomData };
            let result = f(&mut inner).await;
            self.session = inner.session.take();

            let session = self.session("savepoint")?;
            if result.is_ok() && !session.failed {
                session.command("savepoint_release", &format!("RELEASE SAVEPOINT {name}")).await?;
            } else {
                let mut back = format!("ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}");
                if mutant::on("store.savepoint-keeps-its-rows") && !session.failed {
                    back = format!("RELEASE SAVEPOINT {name}");
                }
                session.command("savepoint_rollback", &back).await?;
                if !mutant::on("store.savepoint-keeps-its-events") {
                    session.pending.back_to(kept);
                }
                if result.is_ok() {
                    session.failed = false;
                    return Err(StoreError::new("savepoint", ErrorKind::Aborted));
                }
                session.failed = false;
            }
            Ok(result)
        })
    }

    fn session(&mut self, at: &'static str) -> Result<&mut Session, StoreError> {
        self.session.as_mut().ok_or_else(|| StoreError::new(at, ErrorKind::Aborted))
    }

    /// Best effort: a connection that cannot roll back is closed, and the server rolls back.
    pub(crate) async fn rollback(mut self) {
        let Some(session) = &mut self.session else { return };
        if session.discard {
            return;
        }
        if session.begin.is_some() || session.connection.batch_execute("ROLLBACK").await.is_ok() {
            self.session.take();
        }
    }
}

impl Drop for Tx<'_> {
    /// A session still here was neither committed nor rolled back: it must not go back to the pool.
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(Object::take(session.connection));
        }
    }
}

impl Session {
    async fn query(&mut self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<Vec<Row>, StoreError> {
        self.point(sql.name).await?;
        let statement = Statement::start(self.metrics.clone(), sql);
        let done = match self.connection.prepare_cached(sql.text).await {
            Ok(prepared) => {
                let rows = self.connection.query(&prepared, params);
                after_begin(&self.connection, self.begin.take(), sql, rows).await
            }
            Err(err) => Err(StoreError::driver(sql.name, &err)),
        };
        let done = statement.finish(done);
        self.note(&done);
        done
    }

    async fn execute(&mut self, sql: &Sql, params: &[&(dyn Param + Sync)]) -> Result<u64, StoreError> {
        self.point(sql.name).await?;
        let statement = Statement::start(self.metrics.clone(), sql);
        let done = match self.connection.prepare_cached(sql.text).await {
            Ok(prepared) => {
                let count = self.connection.execute(&prepared, params);
                after_begin(&self.connection, self.begin.take(), sql, count).await
            }
            Err(err) => Err(StoreError::driver(sql.name, &err)),
        };
        let done = statement.finish(done);
        self.note(&done);
        done
    }

    /// Transaction control.
    async fn command(&mut self, at: &'static str, text: &str) -> Result<(), StoreError> {
        let text = match self.begin.take() {
            Some(begin) => format!("{begin}; {text}"),
            None => text.to_owned(),
        };
        let done = self.connection.batch_execute(&text).await;
        let done = done.map_err(|err| StoreError::driver(at, &err));
        self.note(&done);
        done
    }

    async fn point(&mut self, at: &'static str) -> Result<(), StoreError> {
        if schedule::point(&self.schedule, At::Statement, at).await == Fate::Goes {
            return Ok(());
        }
        let lost = Err(StoreError::lost(at));
        self.note(&lost);
        lost
    }

    fn note<T>(&mut self, done: &Result<T, StoreError>) {
        let Err(err) = done else { return };
        self.failed = true;
        self.discard |= after_failure(&self.connection, err);
    }
}

/// Forgets prepared statements that a migration overtook, on every connection. True when the connection itself
/// should not be used again.
pub(crate) fn after_failure(connection: &Object, err: &StoreError) -> bool {
    if *err.kind() == ErrorKind::StalePlan
        && let Some(pool) = Object::pool(connection)
    {
        pool.manager().statement_caches.clear();
    }
    matches!(err.kind(), ErrorKind::Unavailable { .. } | ErrorKind::CommitUnknown)
}

/// Sends BEGIN, where it was not sent yet, and the statement right behind it without waiting in between.
async fn after_begin<T>(
    connection: &Object,
    begin: Option<String>,
    sql: &Sql,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    let Some(begin) = begin else {
        return statement.await.map_err(|err| StoreError::driver(sql.name, &err));
    };
    // Polled in this order, so BEGIN is on the wire first.
    match futures::join!(connection.batch_execute(&begin), statement) {
        (Ok(()), done) => done.map_err(|err| StoreError::driver(sql.name, &err)),
        (Err(err), Err(_)) => Err(StoreError::driver("begin", &err)),
        // BEGIN alone was cancelled, so the statement ran, and committed, by itself.
        (Err(_), Ok(_)) => Err(StoreError::new(sql.name, ErrorKind::CommitUnknown)),
    }
}

/// Measures one statement.
pub(crate) struct Statement {
    metrics: Metrics,
    name: &'static str,
    started: Instant,
}

impl Statement {
    pub(crate) fn start(metrics: Metrics, sql: &Sql) -> Self {
        Self { metrics, name: sql.name, started: Instant::now() }
    }

    pub(crate) fn finish<T>(self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        self.metrics.statement_done(self.name, self.started.elapsed());
        if let Err(err) = &done {
            self.metrics.statement_failed(self.name, err.label());
        }
        done
    }
}
