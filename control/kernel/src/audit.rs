//! One entry for each call that may change something: who, from where, what, what was decided, and how it ended.
//!
//! The entry of a change is written by [`Call::tx`](crate::Call::tx) inside the change's own transaction, so no committed
//! change lacks one. The pipeline writes it for calls that changed nothing (a refusal, a failure) and corrects it when a
//! call ended otherwise than its last transaction said. It is one row per call, keyed by the call's audit id.
//!
//! Not entered: reads, and callers that are not known (a bad token, a limited rate), whose number nobody bounds; those
//! are counted and logged. No entry holds a request's body or an error's text, since either may quote a secret.

use std::time::SystemTime;

use model::{AuditId, ErrorCode, TenantId};
use serde_json::{Map, Value, json};
use store::{Op, Store, StoreError, Tx};
use uuid::Uuid;

use crate::call::Call;
use crate::sql;

const OP_AUDIT_OUTCOME: Op = Op::new("audit_outcome");

/// Decisions kept of one call. A call makes a handful; a loop over many resources is summed up by its first ones.
const DECISIONS_MAX: usize = 16;

/// What an entry says beside what a call is from its start.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    tenant_id: Uuid,
    resource: String,
    decision: &'static str,
    /// `ok`, `draft` (something was stored before the decision was made), or an error code.
    outcome: &'static str,
    detail: Map<String, Value>,
}

impl Entry {
    /// Of a transaction that is about to commit.
    pub(crate) fn committed(call: &Call) -> Self {
        let entry = Self::of(call, "ok");
        Self { outcome: if entry.decision == "allowed" { "ok" } else { "draft" }, ..entry }
    }

    /// Of a call that has ended.
    pub(crate) fn ended(call: &Call, error: Option<ErrorCode>) -> Self {
        Self::of(call, error.map_or("ok", ErrorCode::name))
    }

    fn of(call: &Call, outcome: &'static str) -> Self {
        let decided = call.decided();
        let decision = match (decided.iter().any(|one| !one.allowed), decided.is_empty()) {
            (true, _) => "denied",
            (false, false) => "allowed",
            (false, true) => "none",
        };
        // The resource's own tenant reads its entries; what is about no resource belongs to the caller's.
        let tenant_id =
            decided.iter().rev().find_map(|one| one.tenant_id).unwrap_or(call.principal.tenant_id);
        let resource = call
            .subject()
            .or_else(|| decided.last().map(|one| one.resource.clone()))
            .unwrap_or_else(|| "-".to_owned());
        let decisions: Vec<Value> = decided
            .iter()
            .take(DECISIONS_MAX)
            .map(|one| json!({"action": one.action, "resource": one.resource, "allowed": one.allowed, "by": one.by}))
            .collect();
        let mut detail = Map::new();
        detail.insert("decisions".to_owned(), decisions.into());
        detail.insert("tokenId".to_owned(), call.principal.token_id.to_string().into());
        Self { tenant_id: tenant_id.uuid(), resource, decision, outcome, detail }
    }
}

/// Writes the call's entry, or over it, in a transaction that changes something.
pub(crate) fn write(tx: &mut Tx<'_>, call: &Call, entry: &Entry) {
    let mut detail = entry.detail.clone();
    detail.insert("committed".to_owned(), true.into());
    upsert(tx, call, entry, detail);
}

/// Entries of calls whose changes one transaction makes together.
#[must_use = "say that they are committed once they are"]
pub struct Entries<'c>(Vec<(&'c Call, Entry)>);

impl Entries<'_> {
    /// The transaction they were written in has committed.
    pub fn committed(self) {
        for (call, entry) in self.0 {
            *call.written.lock().expect("no holder of this lock panics") = Some(entry);
        }
    }
}

/// Writes the entries of these calls by one statement, with the commit: what [`Call::tx`] does for a call with a transaction of its own.
pub async fn enter_all<'c>(
    tx: &mut Tx<'_>,
    calls: impl IntoIterator<Item = &'c Call>,
) -> Result<Entries<'c>, StoreError> {
    let entries: Vec<(&Call, Entry)> = calls.into_iter().map(|call| (call, Entry::committed(call))).collect();
    if entries.is_empty() {
        return Ok(Entries(entries));
    }
    let calls = || entries.iter().map(|(call, _)| *call);
    let told = || entries.iter().map(|(_, entry)| entry);
    let ids: Vec<Uuid> = calls().map(|call| call.audit_id.uuid()).collect();
    let at: Vec<SystemTime> = calls().map(|call| SystemTime::from(call.now)).collect();
    let tenants: Vec<Uuid> = told().map(|entry| entry.tenant_id).collect();
    let names: Vec<String> = calls().map(|call| call.principal.name.clone()).collect();
    let users: Vec<Uuid> = calls().map(|call| call.principal.user_id.uuid()).collect();
    let actions: Vec<&'static str> = calls().map(action_of).collect();
    let resources: Vec<String> = told().map(|entry| entry.resource.clone()).collect();
    let decisions: Vec<&'static str> = told().map(|entry| entry.decision).collect();
    let outcomes: Vec<&'static str> = told().map(|entry| entry.outcome).collect();
    let requests: Vec<Uuid> = calls().map(|call| call.request_id.uuid()).collect();
    let sources: Vec<String> = calls().map(|call| call.source_ip.to_string()).collect();
    let details: Vec<Value> = told()
        .map(|entry| {
            let mut detail = entry.detail.clone();
            detail.insert("committed".to_owned(), true.into());
            Value::Object(detail)
        })
        .collect();
    tx.later(
        &sql::AUDIT_UPSERT_ALL,
        vec![
            Box::new(ids),
            Box::new(at),
            Box::new(tenants),
            Box::new(names),
            Box::new(users),
            Box::new(actions),
            Box::new(resources),
            Box::new(decisions),
            Box::new(outcomes),
            Box::new(requests),
            Box::new(sources),
            Box::new(details),
        ],
    );
    Ok(Entries(entries))
}

fn action_of(call: &Call) -> &'static str {
    api::find(call.method).map_or(call.method, |row| row.action)
}

/// Writes how a call ended, unless its entry says so already.
pub(crate) async fn finish(store: &Store, call: &Call, error: Option<ErrorCode>) -> Result<(), StoreError> {
    let entry = Entry::ended(call, error);
    if call.written.lock().expect("no holder of this lock panics").as_ref() == Some(&entry) {
        return Ok(());
    }
    let entry = &entry;
    store
        .tx(OP_AUDIT_OUTCOME, |tx| {
            // The database merges details, so `committed` stays where a transaction of the call had set it.
            Box::pin(async move {
                upsert(tx, call, entry, entry.detail.clone());
                Ok(())
            })
        })
        .await
}

/// With the commit: nothing else in the transaction looks at it.
fn upsert(tx: &mut Tx<'_>, call: &Call, entry: &Entry, detail: Map<String, Value>) {
    let principal = &call.principal;
    tx.later(
        &sql::AUDIT_UPSERT,
        vec![
            Box::new(call.audit_id.uuid()),
            Box::new(SystemTime::from(call.now)),
            Box::new(entry.tenant_id),
            Box::new(principal.name.clone()),
            Box::new(principal.user_id.uuid()),
            Box::new(action_of(call)),
            Box::new(entry.resource.clone()),
            Box::new(entry.decision),
            Box::new(entry.outcome),
            Box::new(call.request_id.uuid()),
            Box::new(call.source_ip.to_string()),
            Box::new(Value::Object(detail)),
        ],
    );
}

/// An entry of the system itself, like the making of the first administrator, in the transaction of what it did.
pub async fn write_system(
    tx: &mut Tx<'_>,
    audit_id: AuditId,
    tenant_id: Option<TenantId>,
    action: &str,
    resource: &str,
    detail: Value,
) -> Result<(), StoreError> {
    let tenant_id = tenant_id.map(TenantId::uuid);
    tx.execute(&sql::AUDIT_SYSTEM, &[&audit_id.uuid(), &tenant_id, &action, &resource, &detail]).await?;
    Ok(())
}
