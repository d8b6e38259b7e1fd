//! Forgets requests that are too old to be taken again, and wraps secrets by the newest key after a rotation.

use std::time::Duration;

use kernel::module::{Pass, PassOutcome};
use kernel::{BoxFuture, Fault};
use model::{SecretId, TenantId};
use store::{Op, RowExt};

use crate::{Secrets, context, sql};

const PERIOD: Duration = Duration::from_secs(600);
const AT_ONCE: i64 = 1000;
/// Of one transaction: a rotation is in no hurry.
const REWRAPPED_AT_ONCE: i64 = 100;
const SECRET_REWRAP: Op = Op::new("secret_rewrap");

pub(crate) struct Upkeep(pub Secrets);

impl Pass for Upkeep {
    fn name(&self) -> &'static str {
        "secret-upkeep"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>> {
        Box::pin(async move {
            let store = self.0.store();
            let gone = store.execute(&sql::REQUESTS_FORGET, &[&AT_ONCE]).await?;
            store.execute(&sql::REFUSALS_FORGET, &[]).await?;
            let wrapped = self.0.rewrap().await?;
            let more = gone == AT_ONCE.unsigned_abs() || wrapped == REWRAPPED_AT_ONCE.unsigned_abs();
            Ok(if more { PassOutcome::More } else { PassOutcome::Idle })
        })
    }
}

impl Secrets {
    /// How many were wrapped anew.
    pub(crate) async fn rewrap(&self) -> Result<u64, Fault> {
        let Some(ring) = &self.0.ring else { return Ok(0) };
        let newest = &ring.newest().to_string();
        let entropy = &*self.0.entropy;
        self.store()
            .tx(SECRET_REWRAP, |tx| {
                Box::pin(async move {
                    let mut wrapped = 0;
                    for row in tx.query(&sql::SECRETS_OF_OTHER_KEYS, &[newest, &REWRAPPED_AT_ONCE]).await? {
                        let (id, tenant_id): (SecretId, TenantId) = (row.id("secret_id"), row.id("tenant_id"));
                        match ring.rewrap(row.get("sealed"), &context(tenant_id, id), entropy) {
                            Ok(Some(sealed)) => {
                                tx.execute(&sql::SECRET_REWRAP, &[&id.uuid(), &sealed, newest]).await?;
                                wrapped += 1;
                            }
                            Ok(None) => {}
                            // Left as it is: another process may hold its key.
                            Err(err) => {
                                tracing::error!(secret_id = %id, err = kit::chain(&err), "a secret cannot be wrapped anew");
                            }
                        }
                    }
                    Ok::<_, Fault>(wrapped)
                })
            })
            .await
    }
}
