//! Publishing what nodes are to trust, and checking that this process's keys belong to this database.

use kernel::{Fault, ResultExt};
use model::DeploymentId;
use pki::signed::SignedMessage;
use pki::trust::TrustBundle;
use store::{Op, RowExt, Tx};

use crate::core::Fleet;
use crate::sql;

const CLAIM: Op = Op::new("trust_claim");
const PUBLISH: Op = Op::new("trust_publish");

/// Why this process's keys do not fit the database.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(
        "the keys belong to deployment {keys}, the database to {database}: this is another deployment's database or key folder"
    )]
    OtherDeployment { keys: DeploymentId, database: DeploymentId },
}

impl Fleet {
    /// Gives a database that nobody has served yet the keys' deployment id, and refuses one of another deployment. Comes before the
    /// database is held against the record kept outside it, which remembers the id.
    pub async fn claim_database(&self) -> Result<(), Fault> {
        self.store().tx(CLAIM, |tx| Box::pin(self.claim_database_in(tx))).await
    }

    async fn claim_database_in(&self, tx: &mut Tx<'_>) -> Result<(), Fault> {
        let keys = self.keys()?;
        let database: DeploymentId = tx.query_one(&sql::DEPLOYMENT_LOCK, &[]).await?.id("deployment_id");
        if tx.query_opt(&sql::TRUST_BUNDLE, &[]).await?.is_none() {
            tx.execute(&sql::DEPLOYMENT_ID_PUT, &[&keys.deployment_id.uuid()]).await?;
        } else if database != keys.deployment_id {
            return Err(TrustError::OtherDeployment { keys: keys.deployment_id, database })
                .doing("claim the database");
        }
        Ok(())
    }

    /// Publishes this process's trust bundle when its content is news, under the next version, on a database claimed for it.
    /// Returns the current version.
    pub async fn publish_trust(&self) -> Result<u64, Fault> {
        self.store().tx(PUBLISH, |tx| Box::pin(self.publish_trust_in(tx))).await
    }

    /// Whether the stored bundle says an epoch that a confirmed restore has ended.
    pub(crate) async fn is_trust_of_earlier_epoch(&self) -> Result<bool, Fault> {
        let Some(row) = self.store().read_opt(&sql::TRUST_BUNDLE, &[]).await? else { return Ok(false) };
        let message = SignedMessage::decode(row.get("message")).doing("read the stored trust bundle")?;
        let current = TrustBundle::parse(&message.body).doing("read the stored trust bundle")?;
        let epoch: i64 = self.store().read_one(&sql::DEPLOYMENT, &[]).await?.get("epoch");
        Ok(current.deployment_epoch < u64::try_from(epoch).unwrap_or(0))
    }

    pub(crate) async fn publish_trust_in(&self, tx: &mut Tx<'_>) -> Result<u64, Fault> {
        let keys = self.keys()?;
        let deployment = tx.query_one(&sql::DEPLOYMENT_LOCK, &[]).await?;
        self.claim_database_in(tx).await?;
        let stored = tx.query_opt(&sql::TRUST_BUNDLE, &[]).await?;
        let mut bundle = keys.trust.clone();
        bundle.deployment_epoch = u64::try_from(deployment.get::<_, i64>("epoch")).unwrap_or(0);
        bundle.issued_at = tx.now().await?;
        bundle.version = 1;
        if let Some(row) = stored {
            let version = u64::try_from(row.get::<_, i64>("version")).unwrap_or(0);
            let message = SignedMessage::decode(row.get("message")).doing("read the stored trust bundle")?;
            let current = TrustBundle::parse(&message.body).doing("read the stored trust bundle")?;
            if same_content(&current, &bundle) {
                return Ok(version);
            }
            bundle.version = version + 1;
        }
        let version = i64::try_from(bundle.version).unwrap_or(i64::MAX);
        let message = bundle.sign(&keys.join_signing).encode();
        tx.execute(&sql::TRUST_BUNDLE_INSERT, &[&version, &message]).await?;
        Ok(bundle.version)
    }
}

/// Whether a node would learn nothing from the second.
fn same_content(one: &TrustBundle, other: &TrustBundle) -> bool {
    let plain = |bundle: &TrustBundle| TrustBundle { version: 0, issued_at: one.issued_at, ..bundle.clone() };
    plain(one) == plain(other)
}
