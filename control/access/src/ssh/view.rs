//! An SSH certificate as callers see it, computed from its row.

use api::nodes::ssh_certs::{SshCert, SshCertState};
use api::{Named, Word};
use kernel::ports::iam::Resource;
use model::{NodeId, SshCertId, TenantId, Timestamp, TokenId, UserId};
use serde_json::{Value, json};
use store::{Row, RowExt};

pub(super) const KIND: &str = "compute-node";

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub id: SshCertId,
    pub serial: i64,
    pub tenant_id: TenantId,
    pub tenant_name: String,
    pub node_id: NodeId,
    pub node_name: String,
    pub node_state: String,
    pub site_name: String,
    pub pool_name: Option<String>,
    pub account: String,
    pub key_fingerprint: String,
    pub user_id: UserId,
    pub user_name: String,
    pub token_id: TokenId,
    pub source_ip: String,
    pub reason: String,
    pub created_at: Timestamp,
    pub valid_before: Timestamp,
    pub revoked_at: Option<Timestamp>,
    pub revoke_reason: String,
    pub now: Timestamp,
}

impl Stored {
    pub fn of_row(row: &Row) -> Self {
        Self {
            id: row.id("cert_id"),
            serial: row.get("serial"),
            tenant_id: row.id("tenant_id"),
            tenant_name: row.get("tenant_name"),
            node_id: row.id("node_id"),
            node_name: row.get("node_name"),
            node_state: row.get("node_state"),
            site_name: row.get("site_name"),
            pool_name: row.get("pool_name"),
            account: row.get("account"),
            key_fingerprint: row.get("key_fingerprint"),
            user_id: row.id("user_id"),
            user_name: row.get("user_name"),
            token_id: row.id("token_id"),
            source_ip: row.get("source_ip"),
            reason: row.get("reason"),
            created_at: row.ts("created_at"),
            valid_before: row.ts("valid_before"),
            revoked_at: row.opt_ts("revoked_at"),
            revoke_reason: row.get("revoke_reason"),
            now: row.ts("now"),
        }
    }

    pub fn state(&self) -> SshCertState {
        match self.revoked_at {
            Some(_) => SshCertState::Revoked,
            None if self.valid_before <= self.now => SshCertState::Expired,
            None => SshCertState::Valid,
        }
    }

    /// What is decided on: its node, as policies know it, and the account.
    pub fn resource(&self) -> Resource {
        let resource = Resource::one(KIND, self.node_id, self.tenant_id)
            .with("resource.name", self.node_name.clone())
            .with("resource.state", self.node_state.clone())
            .with("resource.site", self.site_name.clone());
        let resource = match &self.pool_name {
            Some(pool) => resource.with("resource.pool", pool.clone()),
            None => resource,
        };
        of_account(resource, &self.account)
    }

    /// What events say of it.
    pub fn data(&self) -> Value {
        json!({
            "serial": self.serial.to_string(), "account": self.account, "keyFingerprint": self.key_fingerprint,
            "by": self.user_name,
        })
    }
}

/// The node, for one of its accounts.
pub(super) fn of_account(node: Resource, account: &str) -> Resource {
    node.with("resource.account", account.to_owned())
}

pub(super) fn view(stored: &Stored) -> SshCert {
    SshCert {
        id: stored.id.into(),
        serial: stored.serial.to_string(),
        tenant: Named::new(stored.tenant_id, &stored.tenant_name),
        state: Word(stored.state()),
        node: Named::new(stored.node_id, &stored.node_name),
        account: stored.account.clone(),
        principals: vec![format!("{}@{}", stored.account, stored.node_id)],
        key_fingerprint: stored.key_fingerprint.clone(),
        issued_to: Named::new(stored.user_id, &stored.user_name),
        reason: stored.reason.clone(),
        source_ip: stored.source_ip.clone(),
        created_at: stored.created_at.into(),
        valid_before: stored.valid_before.into(),
        revoked_at: stored.revoked_at.map(Into::into),
        revoke_reason: stored.revoked_at.map(|_| stored.revoke_reason.clone()),
        age_seconds: stored.now.since(stored.created_at).as_secs(),
    }
}
