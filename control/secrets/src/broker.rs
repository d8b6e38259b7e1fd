//! What a node is told. That the node asks was established before; here is judged whether what it asks for is its to know.

use std::sync::Arc;

use kernel::events::{self, EventKind};
use kernel::ports::secrets::{SecretAsk, SecretBroker, SecretOutcome, SecretUses};
use kernel::{BoxFuture, Fault, ResultExt, audit};
use model::{NodeId, TenantId};
use pki::seal::EncryptionKey;
use serde_json::{Value, json};
use store::{Row, RowExt, Tx};
use uuid::Uuid;

use crate::{Secrets, sql};

/// Requests of one node within a minute: a host that was emptied makes so many instances at once.
const PER_MINUTE_MAX: i64 = 240;
const REPLAYED: &str = "replayed";
const RATE: &str = "rate";
const RELEASED: &str = "released";

/// Judges requests of nodes, by what `uses` knows of who uses what.
pub struct Broker {
    secrets: Secrets,
    uses: Arc<dyn SecretUses>,
}

/// Why a node is not told.
struct Refusal {
    reason: &'static str,
    message: &'static str,
}

const NOT_PLACED: Refusal =
    Refusal { reason: "not-placed", message: "the instance has no place on this node under that allocation" };
const NOT_NAMED: Refusal = Refusal { reason: "not-named", message: "the instance does not name that secret" };
/// Also of another tenant's, which is none to this one.
const NO_SECRET: Refusal = Refusal { reason: "no-secret", message: "there is no such secret" };
const OTHER_TENANT: Refusal = Refusal { reason: "other-tenant", ..NO_SECRET };

/// What a request is judged to be.
enum Judged {
    Told {
        tenant_id: TenantId,
        row: Row,
    },
    Refused(Refusal),
    /// It is on its way out: its host hears of that.
    Going,
}

impl Broker {
    pub fn new(secrets: Secrets, uses: Arc<dyn SecretUses>) -> Self {
        Self { secrets, uses }
    }

    async fn judge(&self, tx: &mut Tx<'_>, ask: &SecretAsk) -> Result<Judged, Fault> {
        let Some(used) = self.uses.of_instance(tx, ask.instance_id).await? else {
            return Ok(Judged::Refused(NOT_PLACED));
        };
        if used.place != Some((ask.node_id, ask.allocation_id)) {
            return Ok(Judged::Refused(NOT_PLACED));
        }
        if used.going {
            return Ok(Judged::Going);
        }
        if used.secret_id != Some(ask.secret_id) {
            return Ok(Judged::Refused(NOT_NAMED));
        }
        let Some(row) = tx.query_opt(&sql::SECRET_SEALED, &[&ask.secret_id.uuid()]).await? else {
            return Ok(Judged::Refused(NO_SECRET));
        };
        match row.id::<TenantId>("tenant_id") {
            tenant_id if tenant_id == used.tenant_id => Ok(Judged::Told { tenant_id, row }),
            _ => Ok(Judged::Refused(OTHER_TENANT)),
        }
    }

    async fn answered(&self, tx: &mut Tx<'_>, ask: &SecretAsk) -> Result<SecretOutcome, Fault> {
        let node = ask.node_id.uuid();
        let lately: i64 = tx.query_one(&sql::REQUESTS_LATELY, &[&node]).await?.get("lately");
        if lately >= PER_MINUTE_MAX {
            self.tell(tx, ask.node_id, Some(ask), RATE).await?;
            return Ok(SecretOutcome::Later { reason: RATE });
        }
        let judged = self.judge(tx, ask).await?;
        let outcome = match &judged {
            Judged::Told { tenant_id, row } => self.sealed(ask, *tenant_id, row)?,
            Judged::Refused(refusal) => {
                SecretOutcome::Refused { reason: refusal.reason, message: refusal.message }
            }
            Judged::Going => SecretOutcome::Later { reason: "going" },
        };
        let word = match &outcome {
            SecretOutcome::Sealed(_) => RELEASED,
            SecretOutcome::Refused { reason, .. } | SecretOutcome::Later { reason } => *reason,
        };
        let request = Uuid::from_bytes(ask.request_id);
        let values: [&(dyn store::Param + Sync); 4] = [&request, &node, &ask.secret_id.uuid(), &word];
        if tx.execute(&sql::REQUEST_INSERT, &values).await? == 0 {
            // No refusal: whoever carries requests could fail an instance by sending its request twice.
            self.tell(tx, ask.node_id, Some(ask), REPLAYED).await?;
            return Ok(SecretOutcome::Later { reason: REPLAYED });
        }
        match (&outcome, judged) {
            (SecretOutcome::Sealed(_), Judged::Told { tenant_id, .. }) => {
                let (id, resource) = (self.secrets.id(), format!("secret/{}", ask.secret_id));
                let (tenant_id, action) = (Some(tenant_id), "compute:secrets:release");
                audit::write_system(tx, id, tenant_id, action, &resource, about(ask)).await?;
            }
            (SecretOutcome::Refused { reason, .. }, _) => {
                self.tell(tx, ask.node_id, Some(ask), reason).await?;
            }
            (SecretOutcome::Sealed(_) | SecretOutcome::Later { .. }, _) => {}
        }
        Ok(outcome)
    }

    /// The value in a box that the one-time key opens.
    fn sealed(&self, ask: &SecretAsk, tenant_id: TenantId, row: &Row) -> Result<SecretOutcome, Fault> {
        let value = match self.secrets.open(tenant_id, ask.secret_id, row.get("sealed")) {
            Ok(value) => value,
            Err(fault) => {
                // A person can mend it: its key is missing here, or the row was meddled with.
                tracing::error!(secret_id = %ask.secret_id, err = kit::chain(&fault), "a secret cannot be opened");
                return Ok(SecretOutcome::Later { reason: "cannot-be-opened" });
            }
        };
        let Ok(key) = EncryptionKey::from_spki_der(&ask.one_time_key) else {
            return Ok(SecretOutcome::Refused {
                reason: "no-key",
                message: "the one-time key is no P-256 key",
            });
        };
        let sealed = pki::seal::seal(&value, &key, &ask.kid, &*self.secrets.0.entropy);
        sealed.map(SecretOutcome::Sealed).doing("seal a secret for a node")
    }

    /// Once a minute of each node and reason, so that who asks again and again fills neither log.
    async fn tell(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        ask: Option<&SecretAsk>,
        reason: &'static str,
    ) -> Result<(), Fault> {
        tracing::warn!(target: "security", %node_id, reason, "a request for a secret was refused");
        if tx.execute(&sql::REFUSAL_TELL, &[&node_id.uuid(), &reason]).await? == 0 {
            return Ok(());
        }
        let tenant_id =
            tx.query_opt(&sql::NODE_TENANT, &[&node_id.uuid()]).await?.map(|row| row.id("tenant_id"));
        let mut data = ask.map(about).unwrap_or_else(|| json!({}));
        data["reason"] = reason.into();
        let mut event = data.clone();
        if let Value::Object(event) = &mut event {
            event.remove("nodeId");
        }
        let (rng, kind) = (&*self.secrets.0.rng, EventKind::SecuritySecretRefused);
        events::append(tx, rng, kind, node_id, tenant_id, event).await?;
        data["nodeId"] = node_id.to_string().into();
        let (id, resource) = (self.secrets.id(), format!("node/{node_id}"));
        Ok(audit::write_system(tx, id, tenant_id, "compute:secrets:refuse", &resource, data).await?)
    }
}

fn about(ask: &SecretAsk) -> Value {
    json!({
        "nodeId": ask.node_id.to_string(), "instanceId": ask.instance_id.to_string(),
        "allocationId": ask.allocation_id.to_string(), "secretId": ask.secret_id.to_string(),
    })
}

impl SecretBroker for Broker {
    fn answer<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        ask: &'a SecretAsk,
    ) -> BoxFuture<'a, Result<SecretOutcome, Fault>> {
        Box::pin(self.answered(tx, ask))
    }

    fn distrusted<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        node_id: NodeId,
        reason: &'static str,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.tell(tx, node_id, None, reason))
    }
}
