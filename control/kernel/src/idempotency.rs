//! A create that is sent twice makes one thing.
//!
//! A key belongs to a caller within a tenant and points at what its create made. The same request under it is answered
//! with that thing as it is now; another request under it is CONFLICT. Keys are kept for [`KEPT`].

use std::time::Duration;

use model::{TenantId, UserId};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::{Op, Store, Tx};

use crate::call::Call;
use crate::fault::{ApiError, Fault, ResultExt};
use crate::{json, sql};

/// How long a key is remembered: longer than any client retries by itself.
pub const KEPT: Duration = Duration::from_secs(72 * 3600);

const KEY_BYTES_MAX: usize = 128;

/// Not part of what is asked for: how long to hold the answer, and the key itself.
const NOT_IDENTITY: [&str; 2] = ["wait", "idempotencyKey"];

/// A caller's key together with what was asked under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    tenant_id: TenantId,
    user_id: UserId,
    key: String,
    method: &'static str,
    request_sha256: Vec<u8>,
}

impl Key {
    /// The key of a call that gave one. `tenant_id` is whose the thing will be.
    pub fn of<R: Serialize>(
        call: &Call,
        tenant_id: TenantId,
        key: Option<&str>,
        request: &R,
    ) -> Result<Option<Self>, Fault> {
        let Some(key) = key.filter(|_| !kit::mutant::on("kernel.keys-are-not-asked")) else {
            return Ok(None);
        };
        let fits =
            !key.is_empty() && key.len() <= KEY_BYTES_MAX && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            let message = format!(
                "an idempotency key is 1 to {KEY_BYTES_MAX} printable ASCII characters without spaces"
            );
            return Err(ApiError::invalid("/idempotencyKey", message).into());
        }
        let mut request =
            serde_json::to_value(request).doing("encode the request for its idempotency key")?;
        if let Value::Object(fields) = &mut request {
            fields.retain(|name, value| !NOT_IDENTITY.contains(&name.as_str()) && !value.is_null());
        }
        let request_sha256 = Sha256::digest(json::canonical(&request).as_bytes()).to_vec();
        Ok(Some(Self {
            tenant_id,
            user_id: call.principal.user_id,
            key: key.to_owned(),
            method: call.method,
            request_sha256,
        }))
    }

    /// What an earlier call of the same request under this key made, if any: `rsv_…`. CONFLICT for another request.
    /// Asked before anything is made, so that a replay decides and books nothing.
    pub async fn replay(&self, store: &Store) -> Result<Option<String>, Fault> {
        let keys: [&(dyn store::Param + Sync); 3] = [&self.tenant_id.uuid(), &self.user_id.uuid(), &self.key];
        let found = store.read_opt(&sql::IDEMPOTENCY_GET, &keys).await?;
        found.map(|row| self.judge(&row)).transpose()
    }

    /// Points the key at `resource`, in the transaction that makes it. `Some` when a call at the same time was first: the
    /// caller undoes what it made (by returning an error, or making nothing) and answers with that resource.
    pub async fn claim(&self, tx: &mut Tx<'_>, resource: &str) -> Result<Option<String>, Fault> {
        let inserted = tx
            .execute(
                &sql::IDEMPOTENCY_INSERT,
                &[
                    &self.tenant_id.uuid(),
                    &self.user_id.uuid(),
                    &self.key,
                    &self.method,
                    &self.request_sha256,
                    &resource,
                ],
            )
            .await?;
        if inserted == 1 || kit::mutant::on("kernel.key-claimed-twice") {
            return Ok(None);
        }
        let keys: [&(dyn store::Param + Sync); 3] = [&self.tenant_id.uuid(), &self.user_id.uuid(), &self.key];
        // The other call committed, or the insert would still wait for it.
        let row = tx.query_one(&sql::IDEMPOTENCY_GET, &keys).await?;
        self.judge(&row).map(Some)
    }

    /// Frees the key of a resource that was refused, so that the next attempt is judged anew.
    pub async fn release(&self, tx: &mut Tx<'_>, resource: &str) -> Result<(), Fault> {
        let keys: [&(dyn store::Param + Sync); 4] =
            [&self.tenant_id.uuid(), &self.user_id.uuid(), &self.key, &resource];
        tx.execute(&sql::IDEMPOTENCY_DELETE, &keys).await?;
        Ok(())
    }

    fn judge(&self, row: &store::Row) -> Result<String, Fault> {
        let resource: String = row.get("resource");
        let same = row.get::<_, &str>("method") == self.method
            && row.get::<_, &[u8]>("request_sha256") == self.request_sha256.as_slice();
        if same {
            return Ok(resource);
        }
        let message = format!("the idempotency key was used for another request, which made {resource}");
        Err(ApiError::conflict(message)
            .detail("resource", resource)
            .detail("idempotencyKey", self.key.clone())
            .into())
    }
}

/// The id of what an earlier call made.
pub fn made<I: model::Id>(resource: &str) -> Result<I, Fault> {
    resource.parse().doing("read the resource of an idempotency key")
}

const OP_IDEMPOTENCY_PRUNE: Op = Op::new("idempotency_prune");

/// Forgets keys older than [`KEPT`], a thousand at a time; returns how many went.
pub async fn prune(store: &Store) -> Result<u64, Fault> {
    let kept_secs = i64::try_from(KEPT.as_secs()).expect("a few days fit");
    let kept_secs = &kept_secs;
    store
        .tx(OP_IDEMPOTENCY_PRUNE, |tx| {
            Box::pin(async move { Ok(tx.execute(&sql::IDEMPOTENCY_PRUNE, &[kept_secs]).await?) })
        })
        .await
}
