//! `audit.list`. Entries are shown by tenant: whoever may list a tenant's audit log sees all of it.

use std::sync::Arc;
use std::time::SystemTime;

use api::Cursor;
use api::audit::{AuditEntry, ListAudit};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{AuditId, RequestId, TenantId, Timestamp, UserId};
use serde_json::{Map, Value};
use store::{Row, RowExt};
use uuid::Uuid;

use crate::{Ledger, sql};

/// Later than any entry, and within what PostgreSQL's timestamps hold.
const END_OF_TIME: Timestamp = Timestamp::from_millis(253_402_300_799_000);

fn view(row: &Row, now: Timestamp) -> AuditEntry {
    let at = row.ts("at");
    AuditEntry {
        id: row.id::<AuditId>("audit_id").into(),
        at: at.into(),
        tenant: row.opt_id::<TenantId>("tenant_id").map(Into::into),
        principal: row.get("principal"),
        principal_id: row.opt_id::<UserId>("principal_id").map(|id| id.to_string()),
        action: row.get("action"),
        resource: row.get("resource"),
        decision: row.get("decision"),
        outcome: row.get("outcome"),
        request_id: row.opt_id::<RequestId>("request_id").map(Into::into),
        source_ip: row.get("source_ip"),
        detail: match row.get::<_, Value>("detail") {
            Value::Object(detail) => detail,
            _ => Map::new(),
        },
        age_seconds: now.since(at).as_secs(),
    }
}

/// The last entry of the page before: its time in microseconds and its id.
fn place(cursor: Option<&Cursor>) -> Result<(Timestamp, Uuid), ApiError> {
    let Some(cursor) = cursor else { return Ok((END_OF_TIME, Uuid::max())) };
    let parsed = cursor.as_str().split_once('/').and_then(|(micros, id)| {
        let at = Timestamp::from_micros(micros.parse().ok()?);
        let id: AuditId = id.parse().ok()?;
        (at <= END_OF_TIME && at >= Timestamp::from_micros(0)).then_some((at, id.uuid()))
    });
    parsed.ok_or_else(|| ApiError::invalid("/cursor", "the cursor is not one that this list gave"))
}

pub(crate) async fn list(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    request: ListAudit,
) -> Result<api::List<AuditEntry>, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, api::Id::get);
    call.require_in("compute:audit:list", &Resource::any("compute-audit", tenant_id)).await?;
    let limit = api::limit_or_default(request.limit) as usize;
    let (at, id) = place(request.cursor.as_ref())?;

    let principal = request.principal.as_ref().map(api::Text::as_str);
    let principal_id = principal.and_then(|text| text.parse::<UserId>().ok()).map(UserId::uuid);
    let principal_name = principal.filter(|_| principal_id.is_none());
    let action = request.action.as_ref().map(api::Text::as_str);
    let beginning = action.and_then(|action| action.strip_suffix('*'));
    let exact = action.filter(|_| beginning.is_none());
    let resource = request.resource.as_ref().map(api::Text::as_str);
    let decision = request.decision.map(|decision| api::Vocabulary::word(decision.0));
    let request_id = request.request_id.map(|id| id.get().uuid());
    let time = |time: Option<api::Time>| time.map(|time| SystemTime::from(time.0));
    let (since, until) = (time(request.since), time(request.until));
    let (at, fetch) = (SystemTime::from(at), limit as i64 + 1);
    let tenant = tenant_id.uuid();
    let params: [&(dyn store::Param + Sync); 13] = [
        &tenant,
        &principal_name,
        &principal_id,
        &beginning,
        &exact,
        &resource,
        &decision,
        &request_id,
        &at,
        &id,
        &since,
        &until,
        &fetch,
    ];
    let rows = ledger.store.read(&sql::AUDIT_LIST, &params).await?;
    let cursor = if rows.len() > limit { rows.get(limit - 1).and_then(next) } else { None };
    let items = rows.iter().take(limit).map(|row| view(row, call.now)).collect();
    Ok(api::List::new(items, cursor))
}

fn next(last: &Row) -> Option<Cursor> {
    let id: AuditId = last.id("audit_id");
    Cursor::parse(&format!("{}/{id}", last.ts("at").micros())).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cursor(text: &str) -> Cursor {
        Cursor::parse(text).expect("a cursor of the test")
    }

    #[test]
    fn a_cursor_of_another_list_or_time_is_refused() {
        let id = "aud_01k5w000000000000000000000";
        assert!(place(Some(&cursor(&format!("1767225600000000/{id}")))).is_ok());
        for wrong in [
            id.to_owned(),
            format!("x/{id}"),
            format!("-1/{id}"),
            format!("9223372036854775807/{id}"),
            "1/2".to_owned(),
        ] {
            assert!(place(Some(&cursor(&wrong))).is_err(), "{wrong}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_cursor_is_read_or_refused(text in "[ -~]{1,60}") {
            let _ = place(Some(&cursor(&text)));
        }
    }
}
