//! Who places in a large pool: one process at a time, by a lease.
//!
//! In a small pool every process places what it admits, and the database settles races. In a large one racers would meet too
//! often, so one process has the pool: it alone decides, and many decisions become one transaction. The others admit what
//! they are asked for as waiting, which is a row, and signal the owner. An owner that is gone loses nothing, since what waits
//! is in the database; one that comes back late books nothing, since each of its transactions is fenced by the lease's epoch.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use kit::Rng;
use model::PoolId;
use store::lease::{self, Lease};
use store::{Op, StoreError, Tx};

use crate::Capacity;

const HOLD: Op = Op::new("placer_lease_hold");

/// Pools of at least so many nodes have an owner.
pub(crate) const NODES_MIN: usize = 100;
/// Another process takes a pool over this long after its owner was last heard of.
const LEASE_FOR: Duration = Duration::from_secs(6);
/// Three chances to keep it before that.
const KEPT_EVERY: Duration = Duration::from_secs(2);

/// How a pool stands to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Everybody places in it.
    Shared,
    /// This process has it, and fences what it books there by this.
    Ours(Lease),
    /// Another process has it, or nobody yet.
    Theirs,
}

struct Held {
    lease: Lease,
    /// By our own clock from before it was asked for, which errs towards giving up early. The fence decides all the same.
    until: Duration,
}

pub(crate) struct Owner {
    holder: String,
    nodes_min: usize,
    held: Mutex<HashMap<PoolId, Held>>,
}

impl Owner {
    pub fn new(rng: &dyn Rng, nodes_min: usize) -> Self {
        Self { holder: format!("placer-{:016x}", rng.u64()), nodes_min, held: Mutex::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<PoolId, Held>> {
        self.held.lock().expect("no holder of this lock panics")
    }
}

fn name(pool_id: PoolId) -> String {
    format!("placer:{}", pool_id.uuid().hyphenated())
}

/// Whether this process may book in the pool, and if so keeps the pool from changing hands until the transaction is over.
pub(crate) async fn fenced(tx: &mut Tx<'_>, standing: &Standing) -> Result<bool, StoreError> {
    match standing {
        Standing::Ours(_) if kit::mutant::on("capacity.owner-not-fenced") => Ok(true),
        Standing::Ours(lease) => lease::guard(tx, lease).await,
        Standing::Shared => Ok(true),
        Standing::Theirs => Ok(false),
    }
}

impl Capacity {
    pub(crate) fn standing(&self, pool_id: PoolId) -> Standing {
        let owner = self.owner();
        if let Some(held) = owner.held().get(&pool_id)
            && held.until > self.clock().monotonic()
        {
            return Standing::Ours(held.lease.clone());
        }
        match self.books().nodes_of(pool_id) < owner.nodes_min {
            true => Standing::Shared,
            false => Standing::Theirs,
        }
    }

    /// Pools that this process has.
    pub(crate) fn owned(&self) -> Vec<PoolId> {
        let now = self.clock().monotonic();
        let held = self.owner().held();
        let mut owned: Vec<PoolId> =
            held.iter().filter(|(_, held)| held.until > now).map(|(pool_id, _)| *pool_id).collect();
        owned.sort_unstable();
        owned
    }

    /// Takes the pool, or keeps it; false while another process has it.
    pub(crate) async fn hold_pool(&self, pool_id: PoolId) -> Result<bool, StoreError> {
        let (name, holder) = (&name(pool_id), self.owner().holder.as_str());
        let asked_at = self.clock().monotonic();
        let had = self.owner().held().contains_key(&pool_id);
        if !had && lease::taken(self.store(), name, holder).await?.is_some() {
            return Ok(false);
        }
        let lease = self
            .store()
            .tx(HOLD, |tx| Box::pin(async move { lease::acquire(tx, name, holder, LEASE_FOR).await }))
            .await?;
        let mut held = self.owner().held();
        match lease {
            Some(lease) => held.insert(pool_id, Held { lease, until: asked_at + LEASE_FOR }),
            None => held.remove(&pool_id),
        };
        Ok(held.contains_key(&pool_id))
    }

    /// The fence did not hold: another process has the pool by now.
    pub(crate) fn lost_pool(&self, pool_id: PoolId) {
        tracing::info!(%pool_id, "the pool is placed in by another process");
        self.owner().held().remove(&pool_id);
    }
}

/// Takes large pools that nobody has, and keeps those this process has.
pub(crate) struct Own(pub Capacity);

impl Pass for Own {
    fn name(&self) -> &'static str {
        "reservation-own"
    }

    fn period(&self) -> Duration {
        KEPT_EVERY
    }

    fn singleton(&self) -> bool {
        false
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let capacity = &self.0;
            capacity.books().refresh().await?;
            for pool_id in capacity.books().pools_of(capacity.owner().nodes_min) {
                let had = matches!(capacity.standing(pool_id), Standing::Ours(_));
                if capacity.hold_pool(pool_id).await? && !had {
                    // What was handed to an owner that is gone.
                    capacity.place_waiting(pool_id).await?;
                }
            }
            Ok(PassOutcome::Idle)
        })
    }
}
