//! The gateway's side of the database: [`DeliveryStore`] over PostgreSQL.
//!
//! Runs under a role that may do just this. It never writes a command's body, a spec, a certificate or a token, and every write is
//! guarded by the gateway's and the session's epoch in its own statement.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kernel::module::queue;
use kernel::ports::delivery::{
    CurrentSpec, Delivered, DeliveryError, DeliveryStore, GatewayLease, HelloFacts, InboxAnswer,
    InboxRequest, LaneCredits, Poke, Registered, ReportedEvent, ReportedEvents, ReportedSection,
    ReportedStatus, ReportedUpdate, SessionEnd, SessionKey, SessionOpened, SessionRefused, StoredCommand,
    StoredSpec,
};
use kit::{Clock, Rng};
use model::{CommandId, GatewayId, JournalId, NodeId, Timestamp};
use store::{IsRetryable, Op, RowExt, Store, StoreError, Tx};
use tokio::sync::Mutex;

use crate::core::{node_key, node_of_key};
use crate::{DELIVERY_CHANNEL, JOIN_CHANNEL, OBSERVE_QUEUE};

mod ask;
mod commands;
mod intake;
mod sessions;
pub mod sql;

const CHANNELS: &[&str] = &[DELIVERY_CHANNEL, JOIN_CHANNEL];

/// Cheap to clone.
#[derive(Clone)]
pub struct PgDelivery(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    listener: Mutex<store::Listener>,
    /// Who waits for which inbox row.
    asking: ask::Asking,
    /// The last claim may have been committed without our hearing of it.
    claim_in_doubt: AtomicBool,
}

impl PgDelivery {
    pub fn new(store: Store, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let listener = Mutex::new(store::Listener::new(&store, CHANNELS));
        Self(Arc::new(Inner {
            store,
            clock,
            rng,
            listener,
            asking: ask::Asking::default(),
            claim_in_doubt: AtomicBool::new(false),
        }))
    }

    /// A configuration for a gateway's connections: a transaction that stands still is ended by the server well before the lease
    /// of whoever began it can run out, so that a process that slept through its lease finds nothing left to commit.
    pub fn store_config(mut config: store::StoreConfig, ttl: Duration) -> store::StoreConfig {
        config.idle_in_transaction_timeout = config.idle_in_transaction_timeout.min(ttl / 3);
        config.statement_timeout = config.statement_timeout.min(ttl / 2);
        config.lock_timeout = config.lock_timeout.min(ttl / 3);
        config
    }

    fn store(&self) -> &Store {
        &self.0.store
    }
}

/// What can go wrong inside one of our transactions.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the gateway's lease is over")]
    LeaseLost,
    #[error("database error")]
    Store(#[from] StoreError),
}

impl IsRetryable for Failure {
    fn is_retryable(&self) -> bool {
        match self {
            Failure::LeaseLost => false,
            Failure::Store(err) => err.is_retryable(),
        }
    }
}

impl From<Failure> for DeliveryError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseLost => DeliveryError::LeaseLost,
            // Every call may be repeated, so one whose commit is in doubt is simply made again.
            Failure::Store(err) if err.retryable() || is_doubtful(&err) => {
                DeliveryError::Unavailable(Box::new(err))
            }
            Failure::Store(err) => DeliveryError::Failed(Box::new(err)),
        }
    }
}

fn is_doubtful(err: &StoreError) -> bool {
    matches!(err.kind(), store::ErrorKind::CommitUnknown | store::ErrorKind::StatementTimeout)
}

fn store_error(err: StoreError) -> DeliveryError {
    Failure::Store(err).into()
}

fn epoch(lease: GatewayLease) -> i64 {
    to_i64(lease.epoch)
}

/// PostgreSQL has no unsigned type; a number past its range is one no honest peer sends.
fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn to_u64(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// The first statement of a transaction that reads before it writes.
async fn guard(tx: &mut Tx<'_>, lease: GatewayLease) -> Result<(), Failure> {
    match tx.query_opt(&sql::GATEWAY_GUARD, &[&lease.gateway_id.uuid(), &epoch(lease)]).await? {
        Some(_) => Ok(()),
        None => lapsed(),
    }
}

/// The gateway has not its lease.
fn lapsed() -> Result<(), Failure> {
    if kit::mutant::on("fleet.lapsed-gateway-writes") { Ok(()) } else { Err(Failure::LeaseLost) }
}

impl PgDelivery {
    async fn holds(&self, lease: GatewayLease) -> Result<(), DeliveryError> {
        let params = (lease.gateway_id.uuid(), epoch(lease));
        let held = self.store().read_opt(&sql::GATEWAY_GUARD, &[&params.0, &params.1]).await;
        held.map_err(store_error)?.map(drop).ok_or(DeliveryError::LeaseLost)
    }
}

/// A name that is no node's is a newer program's: anything may have changed.
fn poke(named: Option<&BTreeSet<String>>) -> Poke {
    let nodes = named.and_then(|named| named.iter().map(|key| node_of_key(key)).collect());
    nodes.map_or(Poke::Everything, Poke::Nodes)
}

/// Has a worker look at what these nodes sent.
async fn observe(tx: &mut Tx<'_>, nodes: impl IntoIterator<Item = NodeId>) -> Result<(), StoreError> {
    let mut keys: Vec<String> = nodes.into_iter().map(node_key).collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.is_empty() { Ok(()) } else { store::work::enqueue_all(tx, queue(OBSERVE_QUEUE), &keys).await }
}

impl DeliveryStore for PgDelivery {
    fn register<'a>(
        &'a self,
        gateway_id: GatewayId,
        address: &'a str,
        ttl: Duration,
    ) -> Delivered<'a, Registered> {
        Box::pin(async move {
            let ttl = ttl.as_secs_f64();
            let row = self
                .store()
                .tx(Op::new("gateway_register"), |tx| {
                    Box::pin(async move {
                        tx.query_one(&sql::GATEWAY_REGISTER, &[&gateway_id.uuid(), &address, &ttl]).await
                    })
                })
                .await
                .map_err(store_error)?;
            let lease = GatewayLease { gateway_id, epoch: to_u64(row.get("epoch")) };
            Ok(Registered { lease, server_time: row.ts("server_time") })
        })
    }

    fn renew<'a>(&'a self, lease: GatewayLease, ttl: Duration) -> Delivered<'a, Timestamp> {
        Box::pin(async move {
            let ttl = ttl.as_secs_f64();
            let params = (lease.gateway_id.uuid(), epoch(lease));
            // It may run twice: the lease lasts from the last of them.
            let renewed = self
                .store()
                .read_opt(&sql::GATEWAY_RENEW, &[&params.0, &params.1, &ttl])
                .await
                .map_err(store_error)?;
            renewed.map(|row| row.ts("server_time")).ok_or(DeliveryError::LeaseLost)
        })
    }

    fn deregister<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, ()> {
        Box::pin(async move {
            self.store()
                .tx(Op::new("gateway_deregister"), |tx| {
                    Box::pin(async move {
                        let params = (lease.gateway_id.uuid(), epoch(lease));
                        tx.execute(&sql::GATEWAY_SESSIONS_CLOSE, &[&params.0, &params.1]).await?;
                        tx.execute(&sql::GATEWAY_END, &[&params.0, &params.1]).await?;
                        Ok::<_, StoreError>(())
                    })
                })
                .await
                .map_err(store_error)
        })
    }

    fn open_session<'a>(
        &'a self,
        lease: GatewayLease,
        hello: HelloFacts,
    ) -> Delivered<'a, Result<SessionOpened, SessionRefused>> {
        Box::pin(async move {
            let opened = self.open_all(lease, vec![hello]).await?.pop();
            Ok(opened.unwrap_or(Err(SessionRefused::UnknownNode)))
        })
    }

    fn open_sessions<'a>(
        &'a self,
        lease: GatewayLease,
        hellos: Vec<HelloFacts>,
    ) -> Delivered<'a, Vec<Result<SessionOpened, SessionRefused>>> {
        Box::pin(self.open_all(lease, hellos))
    }

    fn close_session<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, ()> {
        Box::pin(self.close_all(lease, vec![session]))
    }

    fn close_sessions<'a>(&'a self, lease: GatewayLease, sessions: Vec<SessionKey>) -> Delivered<'a, ()> {
        Box::pin(self.close_all(lease, sessions))
    }

    fn heartbeats<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<SessionKey>> {
        Box::pin(self.store_heartbeats(lease, sessions))
    }

    fn ended<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>> {
        Box::pin(async move {
            let rows = self
                .store()
                .read(&sql::SESSIONS_REVOKED, &[&lease.gateway_id.uuid(), &epoch(lease)])
                .await
                .map_err(store_error)?;
            Ok(rows.iter().map(|row| (sessions::session_key(row), SessionEnd::Revoked)).collect())
        })
    }

    fn ended_of<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(SessionKey, SessionEnd)>> {
        Box::pin(async move {
            let revoked = self.revoked_of(lease, sessions).await?;
            Ok(revoked.into_iter().map(|key| (key, SessionEnd::Revoked)).collect())
        })
    }

    fn commands_waiting<'a>(&'a self, lease: GatewayLease) -> Delivered<'a, Option<Vec<NodeId>>> {
        Box::pin(async move {
            let params = (lease.gateway_id.uuid(), epoch(lease));
            let rows = self.store().read(&sql::COMMANDS_WAITING, &[&params.0, &params.1]).await;
            Ok(Some(rows.map_err(store_error)?.iter().map(|row| row.id("node_id")).collect()))
        })
    }

    fn claim_commands<'a>(
        &'a self,
        lease: GatewayLease,
        lanes: Vec<LaneCredits>,
    ) -> Delivered<'a, Vec<StoredCommand>> {
        Box::pin(self.claim(lease, lanes))
    }

    fn cancels<'a>(
        &'a self,
        lease: GatewayLease,
        sessions: Vec<SessionKey>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId, String)>> {
        Box::pin(self.read_cancels(lease, sessions))
    }

    fn apply_updates<'a>(
        &'a self,
        lease: GatewayLease,
        updates: Vec<ReportedUpdate>,
    ) -> Delivered<'a, Vec<(NodeId, CommandId)>> {
        Box::pin(self.store_updates(lease, updates))
    }

    fn put_events<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        journal_id: JournalId,
        events: Vec<ReportedEvent>,
    ) -> Delivered<'a, Option<u64>> {
        Box::pin(async move {
            let reported = vec![ReportedEvents { session, journal_id, events }];
            Ok(self.store_events(lease, reported).await?.pop().flatten())
        })
    }

    fn put_events_of<'a>(
        &'a self,
        lease: GatewayLease,
        reported: Vec<ReportedEvents>,
    ) -> Delivered<'a, Vec<Option<u64>>> {
        Box::pin(self.store_events(lease, reported))
    }

    fn put_statuses<'a>(&'a self, lease: GatewayLease, statuses: Vec<ReportedStatus>) -> Delivered<'a, ()> {
        Box::pin(self.store_statuses(lease, statuses))
    }

    fn put_inventory<'a>(
        &'a self,
        lease: GatewayLease,
        session: SessionKey,
        sections: Vec<ReportedSection>,
    ) -> Delivered<'a, ()> {
        Box::pin(self.store_inventory(lease, session, sections))
    }

    fn specs_behind<'a>(
        &'a self,
        lease: GatewayLease,
        sent: Vec<(SessionKey, u64)>,
    ) -> Delivered<'a, Vec<StoredSpec>> {
        Box::pin(self.read_specs_behind(lease, sent))
    }

    fn spec<'a>(&'a self, lease: GatewayLease, session: SessionKey) -> Delivered<'a, Option<StoredSpec>> {
        Box::pin(
            async move { Ok(self.read_specs_behind(lease, vec![(session, 0)]).await?.into_iter().next()) },
        )
    }

    fn current_spec<'a>(&'a self, node_id: NodeId, known: u64) -> Delivered<'a, CurrentSpec> {
        Box::pin(self.read_current_spec(node_id, known))
    }

    fn ask<'a>(
        &'a self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Delivered<'a, InboxAnswer> {
        Box::pin(self.ask_worker(lease, request, patience))
    }

    fn certificate_counts<'a>(&'a self, serial: &'a str) -> Delivered<'a, bool> {
        Box::pin(async move {
            let counts = self.certificates_count(vec![serial.to_owned()]).await?;
            Ok(counts == [true])
        })
    }

    fn certificates_count<'a>(&'a self, serials: Vec<String>) -> Delivered<'a, Vec<bool>> {
        Box::pin(async move {
            let rows = self.store().read(&sql::CERTIFICATES_COUNT, &[&serials]).await.map_err(store_error)?;
            let count: BTreeSet<&str> = rows.iter().map(|row| row.get("serial")).collect();
            Ok(serials.iter().map(|serial| count.contains(serial.as_str())).collect())
        })
    }

    fn next_poke<'a>(&'a self) -> Delivered<'a, Poke> {
        Box::pin(async move {
            let mut listener = self.0.listener.lock().await;
            loop {
                let notified = listener.next().await;
                if notified.channels.contains(JOIN_CHANNEL) {
                    self.hand_out_answers().await;
                }
                if notified.channels.contains(DELIVERY_CHANNEL) {
                    return Ok(poke(notified.named(DELIVERY_CHANNEL)));
                }
            }
        })
    }
}
