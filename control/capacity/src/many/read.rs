//! Reads that come together are one statement. Each sees what was committed when it was asked for, since it is asked for
//! before the statement begins.

use std::convert::Infallible;
use std::time::Duration;

use api::Ref;
use kernel::Fault;
use kernel::run::Running;
use kit::{Pace, TaskKind};
use model::{PoolId, ReservationId, TenantId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Asked, BATCH_MAX, WAITING_MAX, ask, gather};
use crate::Capacity;
use crate::pools::PoolRef;
use crate::state::Reserved;

/// What a statement costs is shared by more where many ask.
const PACE: Pace = Pace::new(6, Duration::from_millis(15));
const READ: TaskKind = TaskKind::fatal("reservation_read");
const FIND: TaskKind = TaskKind::fatal("pool_find");

type AskedReservation = Asked<ReservationId, Option<Reserved>>;
type AskedPool = Asked<(TenantId, Ref<PoolId>), Option<PoolRef>>;

/// Ways to the tasks that read.
pub(crate) struct Readers {
    reservations: mpsc::Sender<AskedReservation>,
    pools: mpsc::Sender<AskedPool>,
}

impl Capacity {
    pub(super) fn start_reading(&self, running: &Running) {
        let (reservations, asked_reservations) = mpsc::channel(WAITING_MAX);
        let (pools, asked_pools) = mpsc::channel(WAITING_MAX);
        if self.0.readers.set(Readers { reservations, pools }).is_err() {
            return;
        }
        let this = self.clone();
        running.supervisor.spawn(READ, move |stop| this.reading(asked_reservations, stop));
        let this = self.clone();
        running.supervisor.spawn(FIND, move |stop| this.finding(asked_pools, stop));
    }

    /// None when there is none; a draft is none yet.
    pub(crate) async fn reserved(&self, id: ReservationId) -> Result<Option<Reserved>, Fault> {
        match self.0.readers.get() {
            Some(readers) => ask(&readers.reservations, id).await,
            None => Ok(self.reserved_alone(id).await?),
        }
    }

    /// The pool that a tenant means: its own, else the nearest above of that name.
    pub(crate) async fn pool_find(
        &self,
        tenant_id: TenantId,
        pool: &Ref<PoolId>,
    ) -> Result<Option<PoolRef>, Fault> {
        match self.0.readers.get() {
            Some(readers) => ask(&readers.pools, (tenant_id, pool.clone())).await,
            None => Ok(self.pool_find_alone(tenant_id, pool).await?),
        }
    }

    async fn reading(
        self,
        mut asked: mpsc::Receiver<AskedReservation>,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let (mut batch, mut pace) = (Vec::with_capacity(BATCH_MAX), PACE);
        while stop.run_until_cancelled(asked.recv_many(&mut batch, BATCH_MAX)).await.is_some() {
            gather(&mut asked, &mut batch, &mut pace, self.clock()).await;
            let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_MAX));
            stop.run_until_cancelled(self.read_all(batch)).await;
        }
        Ok(())
    }

    async fn read_all(&self, asked: Vec<AskedReservation>) {
        let mut ids: Vec<Uuid> = asked.iter().map(|one| one.what.uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        let Ok(read) = self.reserved_all(&ids).await else {
            // One that cannot be read is not all of them, and each is told its own.
            for one in asked {
                let answer = self.reserved_alone(one.what).await;
                one.answer(answer.map_err(Fault::from));
            }
            return;
        };
        for one in asked {
            let answer = read.get(&one.what).cloned();
            one.answer(Ok(answer));
        }
    }

    async fn finding(
        self,
        mut asked: mpsc::Receiver<AskedPool>,
        stop: CancellationToken,
    ) -> Result<(), Infallible> {
        let (mut batch, mut pace) = (Vec::with_capacity(BATCH_MAX), PACE);
        while stop.run_until_cancelled(asked.recv_many(&mut batch, BATCH_MAX)).await.is_some() {
            gather(&mut asked, &mut batch, &mut pace, self.clock()).await;
            let batch = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_MAX));
            stop.run_until_cancelled(self.find_all(batch)).await;
        }
        Ok(())
    }

    /// Most ask for the same few pools.
    async fn find_all(&self, mut asked: Vec<AskedPool>) {
        while let Some(first) = asked.pop() {
            let (alike, others): (Vec<AskedPool>, Vec<AskedPool>) =
                asked.into_iter().partition(|one| one.what == first.what);
            asked = others;
            let (tenant_id, pool) = &first.what;
            let found = self.pool_find_alone(*tenant_id, pool).await;
            match found {
                Ok(found) => {
                    alike.into_iter().for_each(|one| one.answer(Ok(found.clone())));
                    first.answer(Ok(found));
                }
                Err(err) => {
                    first.answer(Err(err.into()));
                    // They are asked for again, since an error is told to one.
                    asked.extend(alike);
                }
            }
        }
    }
}
