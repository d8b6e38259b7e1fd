//! `joinRequests`: a person's word on machines that wait.

use std::sync::Arc;

use api::join_requests::{self as api_requests, JoinRequest, JoinRequestState};
use api::{Id, List, Named, Word};
use kernel::events::{self, EventKind};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Module};
use model::{JoinRequestId, Role, Timestamp};
use store::{Op, Row, RowExt};

use super::{on, refs, sql};
use crate::core::Fleet;

const KIND: &str = "compute-join-request";
const DECIDE: Op = Op::new("join_request_decide");

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, api_requests::List, list);
    let module = on!(module, fleet, api_requests::Approve, approve);
    on!(module, fleet, api_requests::Reject, reject)
}

async fn list(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_requests::ListJoinRequests,
) -> Result<List<JoinRequest>, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    let site = match &request.site {
        None => None,
        Some(site) => Some(refs::visible_site(fleet.store(), &call, site).await?.uuid()),
    };
    let state = request.state.map(|state| state.0.name());
    let limit = api::limit_or_default(request.limit);
    let after = refs::after::<JoinRequestId>(request.cursor.as_ref())?;
    let one: Option<uuid::Uuid> = None;
    let rows = fleet
        .store()
        .read(&sql::JOIN_REQUESTS, &[&one, &after, &site, &state, &refs::sql_limit(limit)])
        .await?;
    let cursor = refs::next::<JoinRequestId>(&rows, limit, "join_request_id");
    let items = rows.iter().map(|row| view(row, call.now)).collect();
    let on = |request: &JoinRequest| Resource::one(KIND, request.id.0, root);
    Ok(List::new(call.filter("compute:joinRequests:list", items, on).await?, cursor))
}

async fn approve(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_requests::ApproveJoinRequest,
) -> Result<JoinRequest, Fault> {
    decide(fleet, call, request.id.0, "compute:joinRequests:approve", JoinRequestState::Approved).await
}

async fn reject(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_requests::RejectJoinRequest,
) -> Result<JoinRequest, Fault> {
    decide(fleet, call, request.id.0, "compute:joinRequests:reject", JoinRequestState::Rejected).await
}

async fn decide(
    fleet: Fleet,
    call: Arc<Call>,
    id: JoinRequestId,
    action: &'static str,
    to: JoinRequestState,
) -> Result<JoinRequest, Fault> {
    let root = refs::root_tenant(fleet.store()).await?;
    let on = Resource::one(KIND, id, root);
    call.require_on(action, "compute:joinRequests:list", &on, "join request", id).await?;
    let before = read(&fleet, &call, id).await?;
    // A repeated call finds the work done, also when the machine has its certificate by now.
    let issued = to == JoinRequestState::Approved && before.state.0 == JoinRequestState::Issued;
    if before.state.0 == to || issued {
        return Ok(before);
    }
    call.about(format!("join-request/{id}"));
    let (user, rng, hostname) = (call.principal.user_id.uuid(), fleet.rng(), before.hostname.as_str());
    call.tx(fleet.store(), DECIDE, |tx| {
        Box::pin(async move {
            if tx.execute(&sql::JOIN_REQUEST_DECIDE, &[&id.uuid(), &to.name(), &user]).await? == 0 {
                let message = format!("join request {id} was decided already, or its time is over");
                return Err(ApiError::invalid_state(message).into());
            }
            if to == JoinRequestState::Rejected {
                let data = serde_json::json!({ "name": hostname, "reason": "rejected" });
                events::append(tx, rng, EventKind::NodeRefused, id, Some(root), data).await?;
            }
            Ok::<_, Fault>(())
        })
    })
    .await?;
    read(&fleet, &call, id).await
}

async fn read(fleet: &Fleet, call: &Call, id: JoinRequestId) -> Result<JoinRequest, Fault> {
    let (none, state): (Option<uuid::Uuid>, Option<&str>) = (None, None);
    let row = fleet
        .store()
        .read_opt(&sql::JOIN_REQUESTS, &[&Some(id.uuid()), &none, &none, &state, &1i64])
        .await?
        .ok_or_else(|| ApiError::not_found("join request", id))?;
    Ok(view(&row, call.now))
}

fn view(row: &Row, now: Timestamp) -> JoinRequest {
    let (created_at, last_seen_at) = (row.ts("created_at"), row.ts("last_seen_at"));
    let name = |column: &str| row.get::<_, Option<String>>(column).unwrap_or_default();
    JoinRequest {
        id: Id(row.id("join_request_id")),
        join_token: Id(row.id("join_token_id")),
        site: Named::new(row.id("site_id"), row.get::<_, String>("site_name")),
        role: Word(Role::parse(row.get("role")).unwrap_or(Role::Node)),
        state: Word(JoinRequestState::parse(row.get("state")).unwrap_or(JoinRequestState::Pending)),
        hostname: row.get("hostname"),
        agent_version: row.get("agent_version"),
        source_ip: row.get("source_ip"),
        fingerprint: row.get::<_, &[u8]>("csr_sha256").iter().map(|byte| format!("{byte:02x}")).collect(),
        decided_by: row.opt_id("decided_by").map(|id| Named::new(id, name("user_name"))),
        decided_at: row.opt_ts("decided_at").map(Into::into),
        node: row.opt_id("node_id").map(|id| Named::new(id, name("node_name"))),
        created_at: created_at.into(),
        last_seen_at: last_seen_at.into(),
        expires_at: row.ts("expires_at").into(),
        age_seconds: now.since(created_at).as_secs(),
        last_seen_seconds: now.since(last_seen_at).as_secs(),
    }
}
