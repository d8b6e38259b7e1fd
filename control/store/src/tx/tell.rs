//! Notifications on their way to the database.
//!
//! One costs the server a lock of the whole cluster and every process that listens a look, which is more than a row. So
//! those of transactions that end within a moment of each other are sent together, each once. The first goes at once;
//! nobody waits for any.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_postgres::Object;

/// What is told: a channel, and what is named there.
pub(crate) type Told = (&'static str, String);

/// Between two sendings of one process at least: what the last one of a burst waits, and far less than a pass takes.
const APART: Duration = Duration::from_millis(2);

/// Of one pool.
#[derive(Debug, Default)]
pub(crate) struct Teller(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    told: BTreeSet<Told>,
    /// Somebody is sending, and goes on until nothing waits.
    sending: bool,
}

impl Teller {
    /// Sends what a transaction notified of, on its connection unless others' are under way. To be called when it has
    /// committed.
    pub fn tell(self: &Arc<Self>, connection: Object, notifications: &[Told]) {
        let begins = self.with(|waiting| {
            waiting.told.extend(notifications.iter().cloned());
            !waiting.told.is_empty() && !std::mem::replace(&mut waiting.sending, true)
        });
        if begins {
            let sending = Sending { teller: self.clone(), ends: false };
            // What is lost with it is found by those who listen when they look by period.
            #[allow(
                clippy::disallowed_methods,
                reason = "a store has no supervisor, and nothing follows from its end"
            )]
            drop(tokio::spawn(sending.send(connection)));
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut Waiting) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whoever sends. When it ends without having said so, as with its runtime, the next transaction begins anew.
struct Sending {
    teller: Arc<Teller>,
    /// It has said so.
    ends: bool,
}

impl Sending {
    async fn send(mut self, first: Object) {
        // None when the pool is gone already, and so is everybody who could use the connection.
        let Some(pool) = Object::pool(&first) else { return };
        let mut connection = Some(first);
        loop {
            let told = self.teller.with(|waiting| {
                waiting.sending = !waiting.told.is_empty();
                std::mem::take(&mut waiting.told)
            });
            self.ends = told.is_empty();
            if self.ends {
                return;
            }
            let on = match connection.take() {
                Some(connection) => Ok(connection),
                None => pool.get().await,
            };
            match on {
                Ok(on) => {
                    if let Err(err) = on.batch_execute(&text(&told)).await {
                        tracing::debug!(err = kit::chain(&err), "failed to notify");
                        drop(Object::take(on));
                    }
                }
                Err(err) => tracing::debug!(err = kit::chain(&err), "failed to notify"),
            }
            tokio::time::sleep(APART).await;
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.ends {
            self.teller.with(|waiting| waiting.sending = false);
        }
    }
}

/// One row each: a list of columns would end at 1,664 of them, and a fleet that is told of new specs names more nodes.
pub(crate) fn text<'a>(told: impl IntoIterator<Item = &'a Told>) -> String {
    let row = |(channel, payload): &Told| format!("('{channel}', '{}')", payload.replace('\'', "''"));
    let rows = told.into_iter().map(row).collect::<Vec<_>>().join(", ");
    format!("SELECT pg_notify(channel, payload) FROM (VALUES {rows}) AS told (channel, payload)")
}
