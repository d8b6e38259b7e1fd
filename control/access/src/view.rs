//! A tunnel as callers see it, computed from its row.

use api::tunnels::{Tunnel, TunnelOp, TunnelState};
use api::{Named, Vocabulary, Word};
use kernel::Fault;
use model::{InstanceId, NodeId, TenantId, Timestamp, TunnelId, UserId};
use store::{Row, RowExt, StoreError};

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub id: TunnelId,
    pub tenant_id: TenantId,
    pub tenant_name: String,
    pub node_id: NodeId,
    pub node_name: String,
    pub instance_id: Option<InstanceId>,
    pub op: String,
    pub port: Option<i32>,
    pub user_id: UserId,
    pub user_name: String,
    pub source_ip: String,
    pub created_at: Timestamp,
    pub open_until: Timestamp,
    pub ends_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
    pub revoke_reason: String,
    pub taken_at: Option<Timestamp>,
    pub closed_at: Option<Timestamp>,
    pub close_reason: String,
    pub bytes: Option<(i64, i64)>,
    pub now: Timestamp,
}

impl Stored {
    pub fn of_row(row: &Row) -> Self {
        let bytes = |name| row.get::<_, Option<i64>>(name);
        Self {
            id: row.id("tunnel_id"),
            tenant_id: row.id("tenant_id"),
            tenant_name: row.get("tenant_name"),
            node_id: row.id("node_id"),
            node_name: row.get("node_name"),
            instance_id: row.opt_id("instance_id"),
            op: row.get("op"),
            port: row.get("port"),
            user_id: row.id("user_id"),
            user_name: row.get("user_name"),
            source_ip: row.get("source_ip"),
            created_at: row.ts("created_at"),
            open_until: row.ts("open_until"),
            ends_at: row.ts("ends_at"),
            revoked_at: row.opt_ts("revoked_at"),
            revoke_reason: row.get("revoke_reason"),
            taken_at: row.opt_ts("taken_at"),
            closed_at: row.opt_ts("closed_at"),
            close_reason: row.get("close_reason"),
            bytes: bytes("to_node_bytes").zip(bytes("to_client_bytes")),
            now: row.ts("now"),
        }
    }

    pub fn state(&self) -> TunnelState {
        match (self.taken_at, self.closed_at) {
            (_, Some(_)) => TunnelState::Closed,
            (Some(_), None) => TunnelState::Open,
            (None, None) if self.revoked_at.is_some() || self.open_until < self.now => TunnelState::Closed,
            (None, None) => TunnelState::Issued,
        }
    }

    /// Why it is closed. That it was taken back is said rather than what its gateway saw of it.
    pub fn reason(&self) -> Option<&str> {
        match self.state() {
            TunnelState::Issued | TunnelState::Open => None,
            TunnelState::Closed if !self.revoke_reason.is_empty() => Some(&self.revoke_reason),
            TunnelState::Closed if self.close_reason.is_empty() => Some("not-used"),
            TunnelState::Closed => Some(&self.close_reason),
        }
    }
}

pub(crate) fn view(stored: &Stored) -> Result<Tunnel, Fault> {
    let op = TunnelOp::words().into_iter().find(|op| op.word() == stored.op);
    let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(Tunnel {
        id: stored.id.into(),
        tenant: Named::new(stored.tenant_id, &stored.tenant_name),
        state: Word(stored.state()),
        op: Word(op.ok_or_else(|| StoreError::decode("tunnel", "an operation that there is not"))?),
        port: stored.port.and_then(|port| u16::try_from(port).ok()),
        instance: stored.instance_id.map(Into::into),
        node: Named::new(stored.node_id, &stored.node_name),
        opened_by: Named::new(stored.user_id, &stored.user_name),
        source_ip: stored.source_ip.clone(),
        created_at: stored.created_at.into(),
        opened_at: stored.taken_at.map(Into::into),
        closed_at: stored.closed_at.map(Into::into),
        ends_at: stored.ends_at.into(),
        reason: stored.reason().map(str::to_owned),
        to_node_bytes: stored.bytes.map(|(to_node, _)| bytes(to_node)),
        to_client_bytes: stored.bytes.map(|(_, to_client)| bytes(to_client)),
        age_seconds: stored.now.since(stored.created_at).as_secs(),
    })
}
