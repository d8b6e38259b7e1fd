//! `secrets.put`: a value that replaces the one of its name. The same value again changes nothing.

use std::sync::Arc;

use api::secrets::{Encoding, KeptSecret, PutSecret};
use api::{Int, Method};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kernel::events::{self, EventKind};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{SecretId, TenantId};
use serde_json::json;
use store::{Op, RowExt, Tx};
use zeroize::Zeroizing;

use crate::view::{KIND, Stored, view};
use crate::{Secrets, sql};

const SECRET_PUT: Op = Op::new("secret_put");
/// More is a program that runs wild.
const SECRETS_MAX: i64 = 1000;

struct Put<'a> {
    tenant_id: TenantId,
    name: &'a str,
    value: Zeroizing<Vec<u8>>,
    if_version: Option<u64>,
}

pub(crate) async fn put(secrets: Secrets, call: Arc<Call>, request: PutSecret) -> Result<KeptSecret, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let name = request.name.as_str();
    let asked = Resource::any(KIND, tenant_id).with("resource.name", name.to_owned());
    call.require_in(api::secrets::Put::ACTION, &asked).await?;
    secrets.ring()?;
    let put = &Put { tenant_id, name, value: value(&request)?, if_version: request.if_version.map(Int::get) };
    call.about(format!("secret/{name}"));
    let this = &secrets;
    let written = call.tx(secrets.store(), SECRET_PUT, |tx| Box::pin(this.put_in(tx, put))).await;
    let id = written.map_err(|fault| refusal(fault, put))?;
    let row = secrets.store().read_opt(&sql::SECRET_GET, &[&id.uuid()]).await?;
    let row = row.ok_or_else(|| ApiError::not_found("secret", name))?;
    Ok(view(&Stored::of_row(&row)))
}

fn refusal(fault: Fault, put: &Put<'_>) -> Fault {
    if let Fault::Store(err) = &fault
        && err.is_foreign_key("secrets_tenant_id_fkey")
    {
        return ApiError::not_found("tenant", put.tenant_id).into();
    }
    let name = put.name;
    fault.on_unique("secrets_tenant_id_name_key", || {
        ApiError::conflict(format!("secret {name} was made at the same time: try again"))
    })
}

fn value(request: &PutSecret) -> Result<Zeroizing<Vec<u8>>, ApiError> {
    let text = request.value.expose();
    let bytes = match request.encoding.map_or(Encoding::Text, |encoding| encoding.0) {
        Encoding::Text => text.as_bytes().to_vec(),
        // What is wrong with it would show a part of it.
        Encoding::Base64 => BASE64_STANDARD
            .decode(text)
            .map_err(|_| ApiError::invalid("/value", "this is no base64 with padding"))?,
    };
    let bytes = Zeroizing::new(bytes);
    match bytes.len() {
        0 => Err(ApiError::invalid("/value", "the value is empty")),
        length if length > api::secrets::SECRET_BYTES_MAX => {
            let most = api::secrets::SECRET_BYTES_MAX;
            Err(ApiError::invalid("/value", format!("the value has {length} bytes: at most {most} are kept")))
        }
        _ => Ok(bytes),
    }
}

impl Put<'_> {
    fn check_version(&self, stored: u64) -> Result<(), ApiError> {
        match self.if_version {
            Some(expected) if expected != stored => {
                let message = match stored {
                    0 => format!("there is no secret {} yet", self.name),
                    _ => format!("secret {} is at version {stored}, not {expected}", self.name),
                };
                Err(ApiError::conflict(message).detail("version", stored))
            }
            _ => Ok(()),
        }
    }
}

impl Secrets {
    async fn put_in(&self, tx: &mut Tx<'_>, put: &Put<'_>) -> Result<SecretId, Fault> {
        let tenant = put.tenant_id.uuid();
        let (id, version) = match tx.query_opt(&sql::SECRET_LOCK, &[&tenant, &put.name]).await? {
            None => {
                put.check_version(0)?;
                let kept: i64 = tx.query_one(&sql::SECRETS_COUNT, &[&tenant]).await?.get("kept");
                if kept >= SECRETS_MAX {
                    let message =
                        format!("the tenant has {kept} secrets, which is as many as it may: delete some");
                    return Err(ApiError::conflict(message).detail("max", SECRETS_MAX).into());
                }
                let id: SecretId = self.id();
                self.insert(tx, put.tenant_id, id, Some(put.name), None, &put.value).await?;
                (id, 1)
            }
            Some(row) => {
                let (id, version): (SecretId, i64) = (row.id("secret_id"), row.get("version"));
                put.check_version(u64::try_from(version).unwrap_or(0))?;
                // One that cannot be opened any more is replaced by one that can.
                let same =
                    self.open(put.tenant_id, id, row.get("sealed")).is_ok_and(|held| *held == *put.value);
                if same {
                    return Ok(id);
                }
                let sealed = self.seal(put.tenant_id, id, &put.value)?;
                let values: [&(dyn store::Param + Sync); 4] =
                    [&id.uuid(), &sealed, &self.ring()?.newest().to_string(), &size(&put.value)];
                tx.execute(&sql::SECRET_UPDATE, &values).await?;
                (id, version + 1)
            }
        };
        let data = json!({ "name": put.name, "version": version });
        events::append(tx, &*self.0.rng, EventKind::SecretPut, id, Some(put.tenant_id), data).await?;
        Ok(id)
    }

    pub(crate) async fn insert(
        &self,
        tx: &mut Tx<'_>,
        tenant_id: TenantId,
        id: SecretId,
        name: Option<&str>,
        instance_id: Option<uuid::Uuid>,
        value: &[u8],
    ) -> Result<(), Fault> {
        let sealed = self.seal(tenant_id, id, value)?;
        let values: [&(dyn store::Param + Sync); 7] = [
            &id.uuid(),
            &tenant_id.uuid(),
            &name,
            &instance_id,
            &sealed,
            &self.ring()?.newest().to_string(),
            &size(value),
        ];
        tx.execute(&sql::SECRET_INSERT, &values).await?;
        Ok(())
    }
}

fn size(value: &[u8]) -> i32 {
    i32::try_from(value.len()).unwrap_or(i32::MAX)
}
