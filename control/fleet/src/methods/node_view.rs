//! A node as the API shows it, computed in one place from stored facts.

use api::nodes::{Node, NodeCordon, NodeSession, SectionStatus};
use api::{Amount, Condition, GpuTotals, Id, Labels, Named, Word};
use kernel::Fault;
use model::condition::Severity;
use model::lifecycle::NodeState;
use model::unit::bytes_to_gib;
use model::{GatewayId, NodeId, PoolId, Role, SiteId, TenantId, Timestamp};
use serde_json::Value;
use store::{Row, RowExt, StoreError};

use crate::observe::commands::{UNSIGNED, refusal_of};

/// A node with whose it is, for decisions about it.
pub(super) struct Seen {
    pub node: Node,
    pub tenant_id: TenantId,
    /// The diagnosis it was adopted with has ended, however.
    pub acceptance_over: bool,
}

pub(super) fn view(row: &Row, now: Timestamp) -> Result<Seen, Fault> {
    let state = NodeState::parse(row.get("state")).ok_or_else(|| StoreError::decode("node", "state"))?;
    let role = Role::parse(row.get("role")).ok_or_else(|| StoreError::decode("node", "role"))?;
    let created_at = row.ts("created_at");
    let draining = row.opt_ts("draining_at");
    let quarantined = row.opt_ts("quarantined_at");
    let cordon = cordon(row, now);
    let node_id: NodeId = row.id("node_id");
    let site_id: SiteId = row.id("site_id");
    let schedulable =
        state == NodeState::Ready && cordon.is_none() && draining.is_none() && quarantined.is_none();
    let node = Node {
        id: Id(node_id),
        name: row.get("name"),
        hostname: row.get("hostname"),
        role: Word(role),
        state: Word(state),
        schedulable,
        cordon,
        draining_since: draining.map(Into::into),
        quarantine_reason: quarantined
            .map(|_| row.get::<_, Option<String>>("quarantine_reason").unwrap_or_default()),
        site: Named::new(site_id, row.get::<_, String>("site_name")),
        pool: row.opt_id::<PoolId>("pool_id").map(|id| Named::new(id, row.get::<_, String>("pool_name"))),
        labels: labels(&row.get::<_, Value>("labels")),
        gpus: GpuTotals {
            total: count(row, "gpus_total"),
            free: count(row, "gpus_free"),
            unhealthy: count(row, "gpus_unhealthy"),
            model: row.get("gpu_model"),
        },
        vcpu: amount(row, "cpu_millis_total", "cpu_millis_free", |millis| millis / 1000),
        memory_gib: amount(row, "memory_bytes_total", "memory_bytes_free", bytes_to_gib),
        hugepages_1gi: amount(row, "hugepages_total", "hugepages_free", |pages| pages),
        disk_gib: row
            .get::<_, Option<i64>>("disk_bytes_total")
            .map(|_| amount(row, "disk_bytes_total", "disk_bytes_free", bytes_to_gib)),
        conditions: all_conditions(row, now),
        generation: unsigned(row, "generation"),
        applied_generation: unsigned(row, "applied_generation"),
        observed_generation: unsigned(row, "observed_generation"),
        sections: sections(&row.get::<_, Value>("sections")),
        agent_version: row.get("agent_version"),
        session: session(row),
        last_seen_seconds: row.opt_ts("last_heartbeat_at").map(|at| now.since(at).as_secs()),
        declared_dead_since: row.opt_ts("dead_at").map(Into::into),
        revoke_reason: row.get("revoke_reason"),
        created_at: created_at.into(),
        adopted_at: row.opt_ts("adopted_at").map(Into::into),
        age_seconds: now.since(created_at).as_secs(),
    };
    Ok(Seen { node, tenant_id: row.id("tenant_id"), acceptance_over: row.get("acceptance_over") })
}

fn cordon(row: &Row, now: Timestamp) -> Option<NodeCordon> {
    let since = row.opt_ts("cordoned_at")?;
    Some(NodeCordon {
        by: row.get::<_, Option<String>>("cordoned_by").unwrap_or_default(),
        reason: row.get::<_, Option<String>>("cordon_reason").unwrap_or_default(),
        since: since.into(),
        since_seconds: now.since(since).as_secs(),
        ends_when: row.get("cordon_exit"),
    })
}

fn session(row: &Row) -> Option<NodeSession> {
    let gateway: GatewayId = row.opt_id("gateway_id")?;
    Some(NodeSession {
        connected: row.opt_ts("closed_at").is_none(),
        gateway: gateway.to_string(),
        epoch: unsigned(row, "session_epoch"),
        connected_at: row.ts("connected_at").into(),
        boot_id: row.get("boot_id"),
    })
}

fn labels(value: &Value) -> Labels {
    let pairs = value.as_object().into_iter().flatten();
    Labels(pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect())
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// What the node said of itself, after what keeps it from taking work at all.
fn all_conditions(row: &Row, now: Timestamp) -> Vec<Condition> {
    let said = conditions(&row.get::<_, Value>("conditions"), now);
    not_accepted(row, now).into_iter().chain(said).collect()
}

/// The diagnosis that was to let the node in did not.
fn not_accepted(row: &Row, now: Timestamp) -> Option<Condition> {
    let since = row.opt_ts("diagnosis_at")?;
    let text = |column| row.get::<_, Option<&str>>(column).unwrap_or_default();
    let result = row.get::<_, Option<&[u8]>>("diagnosis_result").unwrap_or_default();
    let (kind, state) = (text("diagnosis_kind"), text("diagnosis_state"));
    let refusal = refusal_of(kind, state, text("diagnosis_message"), result);
    Some(Condition {
        kind: "DiagnosisFailed".to_owned(),
        severity: Word(Severity::Blocking),
        device: None,
        reason: "diagnosis-failed".to_owned(),
        message: refusal.unwrap_or_else(|| UNSIGNED.to_owned()),
        since: since.into(),
        since_seconds: now.since(since).as_secs(),
    })
}

fn conditions(value: &Value, now: Timestamp) -> Vec<Condition> {
    let one = |condition: &Value| {
        let since: Timestamp = text(condition, "since").parse().ok()?;
        Some(Condition {
            kind: text(condition, "kind"),
            severity: Word(Severity::parse(&text(condition, "severity"))?),
            device: Some(text(condition, "device")).filter(|device| !device.is_empty()),
            reason: text(condition, "reason"),
            message: text(condition, "message"),
            since: since.into(),
            since_seconds: now.since(since).as_secs(),
        })
    };
    value.as_array().into_iter().flatten().filter_map(one).collect()
}

fn sections(value: &Value) -> Vec<SectionStatus> {
    let one = |section: &Value| SectionStatus {
        section: text(section, "section"),
        state: text(section, "state"),
        message: text(section, "message"),
    };
    value.as_array().into_iter().flatten().map(one).collect()
}

fn unsigned(row: &Row, column: &str) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or(0)
}

fn count(row: &Row, column: &str) -> u32 {
    u32::try_from(row.get::<_, i64>(column)).unwrap_or(0)
}

fn amount(row: &Row, total: &str, free: &str, unit: fn(u64) -> u64) -> Amount {
    // A node that shrank under its bookings has nothing free, not less than nothing.
    Amount { total: unit(unsigned(row, total)), free: unit(unsigned(row, free)) }
}
