//! Level-triggered passes: what is over ends, what is on a lost node leaves it, what nobody admitted goes. What waits is
//! placed by `line`.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome, QueueHandler, wake};
use kernel::{BoxFuture, Fault};
use model::lifecycle::{AllocationState, NodeState};
use model::{AllocationId, NodeId, PoolId, ReservationId};
use store::{IsRetryable, Op, RowExt};
use uuid::Uuid;

use crate::change::Why;
use crate::observe::Leaving;
use crate::{Capacity, sql};

/// The queue that places what waits in a pool. Key: the pool's UUID in hyphenated form.
pub const PLACE_QUEUE: &str = "reservation-place";

const SWEEP: Op = Op::new("reservation_sweep");
const EXPIRE: Op = Op::new("reservation_expire");
const LEAVE_LOST: Op = Op::new("reservation_leave_lost");

/// A decision takes seconds; a draft this old was left by a crash.
const DRAFT_KEPT_SECONDS: i64 = 600;
const PERIOD: Duration = Duration::from_secs(5);
/// As many as the statement gives; when it gives fewer, that was all.
const EXPIRED_PER_PASS: usize = 200;
/// The same for what is on lost nodes.
const LOST_PER_PASS: usize = 200;

pub(crate) fn pool_key(pool_id: PoolId) -> String {
    pool_id.uuid().hyphenated().to_string()
}

/// The handler of [`PLACE_QUEUE`].
pub(crate) struct PlaceQueue(pub Capacity);

impl QueueHandler for PlaceQueue {
    fn queue(&self) -> &'static str {
        PLACE_QUEUE
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            if let Ok(pool_id) = Uuid::parse_str(key) {
                self.0.place_waiting(PoolId::from_uuid(pool_id)).await?;
            }
            // The sweep wakes what still waits.
            Ok(None)
        })
    }
}

impl Capacity {
    /// Ends what is over; whether there is more than one pass takes. One that cannot be ended does not keep the others.
    pub(crate) async fn expire_due(&self) -> Result<bool, Fault> {
        let rows = self.store().read(&sql::RESERVATIONS_EXPIRING, &[]).await?;
        let mut ended = 0;
        for row in &rows {
            let id: ReservationId = row.id("reservation_id");
            let done = self
                .store()
                .tx(EXPIRE, |tx| Box::pin(async move { self.release_in(tx, id, Why::Expired).await }))
                .await;
            match done {
                Ok(()) => ended += 1,
                Err(err) if err.is_retryable() => return Err(err),
                Err(err) => {
                    tracing::error!(reservation_id = %id, err = kit::chain(&err), "reservation cannot be ended");
                }
            }
        }
        Ok(ended > 0 && rows.len() >= EXPIRED_PER_PASS)
    }

    /// Places again what was on nodes that are lost by now; whether there is more than one pass takes.
    ///
    /// A node is lost only where its pool says after how long. What is still on it is fenced: it stays booked until the node
    /// comes back and says that it let go, or is removed.
    async fn leave_lost(&self) -> Result<bool, Fault> {
        let rows = self.store().read(&sql::LOST_HELD, &[]).await?;
        let mut left = 0;
        for row in &rows {
            let (id, reservation_id, node_id): (AllocationId, ReservationId, NodeId) =
                (row.id("allocation_id"), row.id("reservation_id"), row.id("node_id"));
            let done = self
                .store()
                .tx(LEAVE_LOST, |tx| {
                    Box::pin(async move {
                        // It may be back since the list was read, and cannot come back before this is over.
                        let node = tx.query_opt(&sql::NODE_STATE_SHARE, &[&node_id.uuid()]).await?;
                        let state = node.as_ref().and_then(|row| NodeState::parse(row.get("state")));
                        if state != Some(NodeState::Lost) {
                            return Ok(());
                        }
                        let spoken = self.locked(tx, id, reservation_id).await?;
                        match spoken.state {
                            AllocationState::Placed | AllocationState::Bound | AllocationState::Releasing => {
                                self.leave(tx, node_id, &spoken, Leaving::Lost).await
                            }
                            AllocationState::Released | AllocationState::Failed => Ok(()),
                        }
                    })
                })
                .await;
            match done {
                Ok(()) => left += 1,
                Err(err) if err.is_retryable() => return Err(err),
                Err(err) => {
                    tracing::error!(
                        reservation_id = %reservation_id, err = kit::chain(&err),
                        "reservation cannot leave a lost node"
                    );
                }
            }
        }
        Ok(left > 0 && rows.len() >= LOST_PER_PASS)
    }

    /// Deletes drafts that a crash left, and wakes the pools in which something waits.
    async fn sweep(&self) -> Result<(), Fault> {
        self.store()
            .tx(SWEEP, |tx| {
                Box::pin(async move {
                    let pruned = tx.execute(&sql::DRAFTS_PRUNE, &[&DRAFT_KEPT_SECONDS]).await?;
                    if pruned > 0 {
                        tracing::info!(pruned, "drafts left behind were deleted");
                    }
                    for row in tx.query(&sql::POOLS_WAITING, &[]).await? {
                        wake(tx, PLACE_QUEUE, &pool_key(row.id("pool_id"))).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }
}

/// Expiry, lost nodes, drafts, and the period of placement.
pub(crate) struct Sweep(pub Capacity);

impl Pass for Sweep {
    fn name(&self) -> &'static str {
        "reservation-sweep"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let expiring = self.0.expire_due().await?;
            let leaving = self.0.leave_lost().await?;
            self.0.sweep().await?;
            Ok(if expiring || leaving { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}
