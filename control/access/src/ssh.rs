//! SSH certificates for nodes: what lets somebody in where nothing of ours answers any more.
//!
//! ```text
//! nodes.issueSshCert: decision -> row, certificate ---> its holder ---> sshd of that node, of the one account
//! rows ---> access section of the node's spec ---> bcd: CA keys, principals, revoked serials, as files of sshd
//! ```
//!
//! # What cannot happen
//!
//! No certificate opens another node or account than the one it was decided on, none is given out that is not a row and so cannot
//! be revoked, and none lasts for longer than half a day. While it lasts, it is decided anew whether its holder may have it.

mod issue;
mod read;
mod revoke;
mod spec;
mod upkeep;
mod view;
mod watch;

use std::sync::Arc;

use kernel::module::wake_all;
use kernel::ports::node::SPEC_QUEUE;
use kernel::{Fault, Module};
use model::NodeId;
use pki::ssh::{SshPublicKey, ssh_ca_public_key};
use pki::{Entropy, SigningKey};
use store::{Op, RowExt, StoreError, Tx};
use uuid::Uuid;

use crate::sql::ssh as sql;
use crate::{Access, handler};

pub use spec::SshSpec;

const ANNOUNCE: Op = Op::new("ssh_ca_announce");

/// What signs certificates.
#[derive(Clone)]
pub struct SshCa {
    key: SigningKey,
    public: SshPublicKey,
    entropy: Arc<dyn Entropy>,
}

impl SshCa {
    pub fn new(key: SigningKey, entropy: Arc<dyn Entropy>) -> Self {
        let public = ssh_ca_public_key(&key);
        Self { key, public, entropy }
    }
}

pub(crate) fn register(module: Module, access: &Access) -> Module {
    module
        .method::<api::nodes::ssh_certs::Issue, _>(handler(access, issue::issue))
        .method::<api::nodes::ssh_certs::List, _>(handler(access, read::list))
        .method::<api::nodes::ssh_certs::Revoke, _>(handler(access, revoke::revoke))
        .queue(Arc::new(watch::CertWatch(access.clone())))
        .pass(Arc::new(upkeep::Upkeep(access.clone())))
}

impl Access {
    /// Has nodes trust the key that this process signs with. Before it signs anything.
    pub async fn announce_ssh_ca(&self) -> Result<(), Fault> {
        let Some(ca) = &self.0.ssh else { return Ok(()) };
        let key = ca.public.line();
        self.store()
            .tx(ANNOUNCE, |tx| {
                Box::pin(async move {
                    if tx.execute(&sql::CA_KEY_ANNOUNCE, &[&key]).await? > 0 {
                        wake_all_told(tx).await?;
                    }
                    Ok::<_, Fault>(())
                })
            })
            .await
    }
}

/// Whatever is told to all nodes has changed.
async fn wake_all_told(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let rows = tx.query(&sql::NODES_TOLD, &[]).await?;
    let keys: Vec<String> = rows.iter().map(|row| spec_key(row.id("node_id"))).collect();
    wake_all(tx, SPEC_QUEUE, &keys).await
}

fn spec_key(node_id: NodeId) -> String {
    key_of(node_id.uuid())
}

fn key_of(uuid: Uuid) -> String {
    uuid.hyphenated().to_string()
}

/// The accounts that a pool's policy names.
fn accounts(stored: Option<serde_json::Value>) -> Vec<String> {
    stored.and_then(|stored| serde_json::from_value(stored).ok()).unwrap_or_default()
}
