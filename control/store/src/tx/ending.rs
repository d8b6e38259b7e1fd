//! What a transaction has written down to be sent at its end, and its end.
//!
//! ```text
//! [BEGIN]  statements of the end: events, wake-ups, what was put off  COMMIT     notifications, also of others
//! ```
//!
//! All of it up to COMMIT goes out in one piece and is waited for once. The notifications are a transaction of their own
//! behind it (see [`tell`](super::tell)): inside, every commit that notifies would hold a lock of the whole cluster while it
//! waits for the disk. So a notification may be lost although the transaction was committed; whoever listens also looks by
//! period. Where a schedule decides over what runs when, they go out right behind COMMIT.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio_postgres::Error;

use super::tell::text;
use super::{Session, Tx};
use crate::error::{ErrorKind, StoreError, ends_session};
use crate::outbox::{self, Event};
use crate::schedule::{self, At, Fate};
use crate::{BoxFuture, Param, Sql, work};

/// A parameter of a statement that is put off.
pub type Owned = Box<dyn Param + Sync + Send>;

/// A statement that is put off to the end.
pub(crate) struct Later {
    pub(crate) sql: Sql,
    pub(crate) params: Vec<Owned>,
}

/// What waits for the end. Each list only grows, but for a savepoint's rollback.
#[derive(Default)]
pub(super) struct Pending {
    notifications: Vec<(&'static str, String)>,
    wakes: Vec<(&'static str, String)>,
    events: Vec<Event>,
    later: Vec<Later>,
}

/// How much of it there was at a savepoint.
#[derive(Clone, Copy)]
pub(super) struct Mark([usize; 4]);

impl Pending {
    pub(super) fn mark(&self) -> Mark {
        Mark([self.notifications.len(), self.wakes.len(), self.events.len(), self.later.len()])
    }

    pub(super) fn back_to(&mut self, Mark([notifications, wakes, events, later]): Mark) {
        self.notifications.truncate(notifications);
        let wakes = if kit::mutant::on("store.savepoint-drops-earlier-wakes") { 0 } else { wakes };
        self.wakes.truncate(wakes);
        self.events.truncate(events);
        self.later.truncate(later);
    }

    fn is_empty(&self) -> bool {
        self.notifications.is_empty() && !self.writes()
    }

    fn writes(&self) -> bool {
        !(self.wakes.is_empty() && self.events.is_empty() && self.later.is_empty())
    }

    /// The statements in the order in which they are sent.
    fn statements(&mut self) -> Vec<Later> {
        let mut statements = std::mem::take(&mut self.later);
        if !self.events.is_empty() {
            statements.extend(outbox::append_all(std::mem::take(&mut self.events)));
        }
        if !self.wakes.is_empty() {
            let mut wakes = std::mem::take(&mut self.wakes);
            wakes.sort_unstable();
            wakes.dedup();
            statements.extend(work::wake_all(&wakes));
        }
        statements
    }

    /// Each once, however often it was asked for.
    fn notifications(&mut self) -> Vec<(&'static str, String)> {
        let mut notifications = std::mem::take(&mut self.notifications);
        notifications.sort_unstable();
        notifications.dedup();
        notifications
    }
}

impl Tx<'_> {
    /// Sends a notification when the transaction has committed. The same one is sent once however often it is asked for.
    pub fn notify(&mut self, channel: &'static str, payload: impl Into<String>) {
        if let Some(session) = &mut self.session {
            session.pending.notifications.push((channel, payload.into()));
        }
    }

    /// Runs a statement with the commit, in one piece with it: for a write that nothing in this transaction looks at
    /// afterwards. When it fails, so does the transaction.
    pub fn later(&mut self, sql: &Sql, params: Vec<Owned>) {
        if let Some(session) = &mut self.session {
            session.pending.later.push(Later { sql: *sql, params });
        }
    }

    pub(crate) fn later_event(&mut self, event: Event) {
        if let Some(session) = &mut self.session {
            session.pending.events.push(event);
        }
    }

    pub(crate) fn later_wake(&mut self, queue: &'static str, key: String) {
        if let Some(session) = &mut self.session {
            session.pending.wakes.push((queue, key));
        }
    }

    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        let session = self.session("commit")?;
        if session.failed {
            // COMMIT would answer "ROLLBACK" as if all were well.
            self.rollback().await;
            return Err(StoreError::new("commit", ErrorKind::Aborted));
        }
        if session.begin.is_some() && session.pending.is_empty() {
            self.session.take();
            return Ok(());
        }
        let notified = session.end().await?;
        let Some(Session { schedule, connection, teller, .. }) = self.session.take() else { return Ok(()) };
        match schedule {
            Some(schedule) => {
                drop(connection);
                schedule.committed(notified).await;
            }
            None => teller.tell(connection, &notified),
        }
        Ok(())
    }
}

impl Session {
    /// Sends the end and waits for the commit. Gives what was notified.
    async fn end(&mut self) -> Result<Vec<(&'static str, String)>, StoreError> {
        let commits = self.begin.is_none() || self.pending.writes();
        let (statements, notified) = (self.pending.statements(), self.pending.notifications());
        for later in &statements {
            self.point(later.sql.name).await?;
        }
        let fate = schedule::point(&self.schedule, At::Commit, "commit").await;
        if fate == Fate::LostBefore {
            return Err(StoreError::new("commit", ErrorKind::CommitUnknown));
        }
        let mut prepared = Vec::with_capacity(statements.len());
        for Later { sql, .. } in &statements {
            match self.connection.prepare_cached(sql.text).await {
                Ok(statement) => prepared.push(statement),
                Err(err) => return self.failed_at(sql.name, &err),
            }
        }
        let (begin, told) = (self.begin.take(), text(&notified));
        let connection = &self.connection;
        let mut names = Vec::with_capacity(statements.len() + 2);
        let mut flights: Vec<BoxFuture<'_, Result<(), Error>>> = Vec::with_capacity(statements.len() + 3);
        if commits {
            if let Some(begin) = &begin {
                names.push("begin");
                flights.push(Box::pin(connection.batch_execute(begin)));
            }
            for (Later { sql, params }, prepared) in statements.iter().zip(&prepared) {
                let params = params.iter().map(|param| &**param as &(dyn Param + Sync));
                names.push(sql.name);
                flights.push(Box::pin(async move {
                    connection.execute_raw(prepared, params.collect::<Vec<_>>()).await.map(drop)
                }));
            }
            names.push("commit");
            flights.push(Box::pin(connection.batch_execute("COMMIT")));
        }
        if !notified.is_empty() && fate == Fate::Goes && self.schedule.is_some() {
            flights.push(Box::pin(connection.batch_execute(&told)));
        }
        let done = in_order(flights, names.len()).await;
        let mut first: Option<(&'static str, Error)> = None;
        for (name, (result, took)) in names.into_iter().zip(done) {
            self.metrics.statement_done(name, took);
            if let (Err(err), true) = (result, first.is_none()) {
                first = Some((name, err));
            }
        }
        match first {
            None if fate == Fate::LostAfter => Err(StoreError::new("commit", ErrorKind::CommitUnknown)),
            None => Ok(notified),
            // BEGIN alone was cancelled, so what came behind it committed by itself.
            Some(("begin", err)) if err.as_db_error().is_some() && !ends_session(&err) => {
                Err(StoreError::new("begin", ErrorKind::CommitUnknown))
            }
            // The session ended while COMMIT was under way, or without a word of how far it had come.
            Some((name, err)) if ends_session(&err) && (name == "commit" || err.as_db_error().is_none()) => {
                Err(StoreError::new("commit", ErrorKind::CommitUnknown))
            }
            // The server refused this statement, so COMMIT rolled back. The connection is dropped all the same.
            Some((name, err)) => self.failed_at(name, &err),
        }
    }

    fn failed_at<T>(&mut self, name: &'static str, err: &Error) -> Result<T, StoreError> {
        let failed = Err(StoreError::driver(name, err));
        self.note(&failed);
        if let Err(err) = &failed {
            self.metrics.statement_failed(name, err.label());
        }
        failed
    }
}

/// Polls all in their order, so that they go out in it, until the first `wanted` have ended; the others are sent and not
/// waited for. Each with its time since the one before it.
async fn in_order<T>(mut flights: Vec<BoxFuture<'_, T>>, wanted: usize) -> Vec<(T, Duration)> {
    let mut last = Instant::now();
    let mut done: Vec<Option<(T, Duration)>> = flights.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (flight, done) in flights.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(result) = flight.as_mut().poll(cx)
            {
                *done = Some((result, last.elapsed()));
                last = Instant::now();
            }
        }
        if done.iter().take(wanted).all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().take(wanted).flatten().collect()
}
