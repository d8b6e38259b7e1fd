//! The access section of nodes' specs: whom their sshd trusts.

use std::collections::HashMap;

use kernel::BoxFuture;
use kernel::ports::node::SpecContributor;
use model::NodeId;
use store::{RowExt, StoreError, Tx};
use uuid::Uuid;
use wire::proto::agent::{AccessAccount, AccessSection, NodeSpec};

use super::accounts;
use crate::sql::ssh as sql;

/// A node refuses more.
const CA_KEYS_MAX: i64 = 16;

/// Contributes it. A node whose pool names no accounts has none, and its sshd stays as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SshSpec;

impl SpecContributor for SshSpec {
    fn name(&self) -> &'static str {
        "ssh"
    }

    fn part<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
    ) -> BoxFuture<'a, Result<NodeSpec, StoreError>> {
        Box::pin(async move {
            let parts = parts_of(tx, &[node_id]).await?;
            Ok(parts.into_iter().next().unwrap_or_default())
        })
    }

    fn parts<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        nodes: &'a [NodeId],
    ) -> BoxFuture<'a, Result<Vec<NodeSpec>, StoreError>> {
        Box::pin(parts_of(tx, nodes))
    }
}

async fn parts_of(tx: &mut Tx<'_>, nodes: &[NodeId]) -> Result<Vec<NodeSpec>, StoreError> {
    let ids: Vec<Uuid> = nodes.iter().map(|node_id| node_id.uuid()).collect();
    let rows = tx.query(&sql::NODES_ACCESS, &[&ids]).await?;
    let mut sections: HashMap<NodeId, AccessSection> = HashMap::new();
    if !rows.is_empty() {
        let keys = tx.query(&sql::CA_KEYS_TRUSTED, &[&CA_KEYS_MAX]).await?;
        let keys: Vec<String> = keys.iter().map(|row| row.get("public_key")).collect();
        for row in &rows {
            let node_id = row.id("node_id");
            let revoked: Vec<i64> = row.get("revoked");
            sections.insert(node_id, section(node_id, &keys, accounts(row.get("accounts")), &revoked));
        }
    }
    let of = |node_id: &NodeId| NodeSpec { access: sections.remove(node_id), ..NodeSpec::default() };
    Ok(nodes.iter().map(of).collect())
}

fn section(node_id: NodeId, keys: &[String], accounts: Vec<String>, revoked: &[i64]) -> AccessSection {
    let account =
        |account: String| AccessAccount { principals: vec![format!("{account}@{node_id}")], account };
    AccessSection {
        ssh_ca_keys: keys.to_vec(),
        accounts: accounts.into_iter().map(account).collect(),
        revoked_serials: revoked.iter().filter_map(|serial| u64::try_from(*serial).ok()).collect(),
    }
}
