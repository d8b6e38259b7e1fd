//! The gateway's side of tunnels' rows, under its narrow role. Each write is guarded by the gateway's lease.

use kernel::ports::delivery::{Delivered, DeliveryError, GatewayLease};
use kernel::ports::tunnels::{TicketStore, TunnelClosed};
use model::{NodeId, TunnelId};
use store::{RowExt, Store, StoreError};
use uuid::Uuid;

use crate::sql;

/// Cheap to clone.
#[derive(Clone)]
pub struct PgTickets {
    store: Store,
}

impl PgTickets {
    pub fn new(store: Store) -> Self {
        Self { store }
    }
}

fn failed(err: StoreError) -> DeliveryError {
    let doubtful = matches!(err.kind(), store::ErrorKind::CommitUnknown | store::ErrorKind::StatementTimeout);
    match err.retryable() || doubtful {
        true => DeliveryError::Unavailable(Box::new(err)),
        false => DeliveryError::Failed(Box::new(err)),
    }
}

fn epoch(lease: GatewayLease) -> i64 {
    i64::try_from(lease.epoch).unwrap_or(i64::MAX)
}

fn count(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl TicketStore for PgTickets {
    fn take<'a>(&'a self, lease: GatewayLease, tunnel_id: TunnelId, node_id: NodeId) -> Delivered<'a, bool> {
        Box::pin(async move {
            let values: [&(dyn store::Param + Sync); 4] =
                [&tunnel_id.uuid(), &node_id.uuid(), &lease.gateway_id.uuid(), &epoch(lease)];
            Ok(self.store.execute(&sql::TUNNEL_TAKE, &values).await.map_err(failed)? > 0)
        })
    }

    fn ended<'a>(&'a self, lease: GatewayLease, open: Vec<TunnelId>) -> Delivered<'a, Vec<TunnelId>> {
        Box::pin(async move {
            let ids: Vec<Uuid> = open.iter().map(|id| id.uuid()).collect();
            let values: [&(dyn store::Param + Sync); 3] = [&ids, &lease.gateway_id.uuid(), &epoch(lease)];
            let rows = self.store.read(&sql::TUNNELS_ENDED, &values).await.map_err(failed)?;
            Ok(rows.iter().map(|row| row.id("tunnel_id")).collect())
        })
    }

    fn closed<'a>(&'a self, lease: GatewayLease, closed: Vec<TunnelClosed>) -> Delivered<'a, ()> {
        Box::pin(async move {
            let ids: Vec<Uuid> = closed.iter().map(|one| one.tunnel_id.uuid()).collect();
            let reasons: Vec<&str> = closed.iter().map(|one| one.reason).collect();
            let to_node: Vec<i64> = closed.iter().map(|one| count(one.to_node_bytes)).collect();
            let to_client: Vec<i64> = closed.iter().map(|one| count(one.to_client_bytes)).collect();
            let values: [&(dyn store::Param + Sync); 6] =
                [&ids, &reasons, &to_node, &to_client, &lease.gateway_id.uuid(), &epoch(lease)];
            self.store.execute(&sql::TUNNELS_CLOSED, &values).await.map_err(failed)?;
            Ok(())
        })
    }
}
