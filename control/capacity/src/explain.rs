//! Why a claim fits or does not, for people: the answer of `reservations.explain`, and the text of a refusal.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::reservations::{Binding, ExplainReservation, Explanation, FitVerdict, NodeVerdict, VerdictGroup};
use api::{Method, Named, Word};
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::unit::{GIB, MIB};
use model::{ErrorCode, NodeId, TenantId, Timestamp};
use placer::{Hint, NoFit, Reason, Verdict};
use serde_json::{Value, json};

use crate::Capacity;
use crate::books::{Judged, Judgement};
use crate::pools::PoolRef;
use crate::state::{Ask, Subject};

/// Nodes that an answer lists one by one.
const NODES_MAX: usize = 1_000;
/// Groups that a waiting reservation tells of.
const GROUPS_TOLD: usize = 3;

/// What would have to change for the node to take the claim.
fn verdict(reason: &Reason) -> FitVerdict {
    let when_free =
        |total: u64, wanted: u64| if total >= wanted { FitVerdict::Busy } else { FitVerdict::Never };
    match reason {
        Reason::NotReady { .. }
        | Reason::Cordoned(_)
        | Reason::Draining
        | Reason::Quarantined { .. }
        | Reason::Avoided
        | Reason::GpusUnhealthy { .. } => FitVerdict::Closed,
        Reason::LacksCapability { .. }
        | Reason::LabelMismatch { .. }
        | Reason::WrongModel { .. }
        | Reason::GpuMemory { .. }
        | Reason::GpusTotal { .. } => FitVerdict::Never,
        Reason::HeldWhole | Reason::GpusFree { .. } | Reason::NotEmpty { .. } => FitVerdict::Busy,
        Reason::CpuFree { total_millis, wanted_millis, .. } => when_free(*total_millis, *wanted_millis),
        Reason::MemoryFree { total_bytes, wanted_bytes, .. }
        | Reason::DiskFree { total_bytes, wanted_bytes, .. } => when_free(*total_bytes, *wanted_bytes),
        Reason::HugepagesFree { total, wanted, .. } => when_free(*total, *wanted),
    }
}

/// The reason without what operators wrote for each other: for whoever may not see the node.
fn open(reason: &Reason) -> String {
    match reason {
        Reason::Cordoned(_) => "cordoned".to_owned(),
        Reason::Quarantined { .. } => "quarantined".to_owned(),
        Reason::LabelMismatch { key, wanted, .. } => format!("label {key}={wanted} wanted"),
        Reason::GpusUnhealthy { unhealthy, left, wanted, .. } => {
            format!("{unhealthy} GPUs unhealthy, {left} left, {wanted} wanted")
        }
        Reason::NotReady { .. }
        | Reason::Draining
        | Reason::Avoided
        | Reason::LacksCapability { .. }
        | Reason::HeldWhole
        | Reason::WrongModel { .. }
        | Reason::GpuMemory { .. }
        | Reason::GpusTotal { .. }
        | Reason::GpusFree { .. }
        | Reason::NotEmpty { .. }
        | Reason::CpuFree { .. }
        | Reason::MemoryFree { .. }
        | Reason::HugepagesFree { .. }
        | Reason::DiskFree { .. } => reason.to_string(),
    }
}

/// The reason whole. When a node was cordoned is kept as a number; it is shown as an age.
fn full(reason: &Reason, now: Timestamp) -> String {
    let Reason::Cordoned(cordon) = reason else { return reason.to_string() };
    let since = cordon.when.parse().map_or(now, Timestamp::from_micros);
    let (by, why) = (&cordon.by, &cordon.why);
    format!("cordoned by {by}, {} ({why:?})", age(now.since(since).as_secs()))
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

fn amount(count: u64, one: &str, many: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
}

/// What is wanted, in words: `16 GPUs together`.
fn wanted(ask: &Ask) -> String {
    let gpu = match &ask.gpu_model {
        Some(model) => format!("{model} GPU"),
        None => "GPU".to_owned(),
    };
    let gpus = amount(ask.gpus.into(), &gpu, &format!("{gpu}s"))
        .map(|text| if ask.gpus > 1 { text + " together" } else { text });
    let (memory, unit) = shortest(ask.memory_mib);
    let memory = (memory > 0).then(|| format!("{memory} {unit} of memory"));
    let pages = amount(ask.hugepages_1gi, "page of 1 GiB", "pages of 1 GiB");
    let parts = [gpus, amount(ask.vcpu.into(), "CPU", "CPUs"), memory, pages];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let text = parts.join(" and ");
    match (ask.whole_node, text.is_empty()) {
        (true, true) => "a whole node".to_owned(),
        (true, false) => format!("a whole node with {text}"),
        (false, _) => text,
    }
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{} {value}", api::flag(name))
}

/// Whole GiB where they are, for those are what most people write.
fn shortest(memory_mib: u64) -> (u64, &'static str) {
    if memory_mib.is_multiple_of(GIB / MIB) { (memory_mib / (GIB / MIB), "GiB") } else { (memory_mib, "MiB") }
}

fn memory_flag(memory_mib: u64) -> String {
    let (amount, unit) = shortest(memory_mib);
    flag(&format!("memory{unit}"), amount)
}

/// What would fit, as what to write instead.
fn hint(hint: &Hint) -> String {
    match hint {
        Hint::Gpus { gpus } => flag("gpus", gpus),
        Hint::Split { nodes, gpus } => format!("{nodes} reservations with {}", flag("gpus", gpus)),
        Hint::Model { model } => flag("gpuModel", format_args!("{model:?}")),
        Hint::CpuMillis { cpu_millis } => flag("vcpu", cpu_millis / 1000),
        Hint::MemoryBytes { memory_bytes } if *memory_bytes >= GIB => flag("memoryGiB", memory_bytes / GIB),
        Hint::MemoryBytes { memory_bytes } => flag("memoryMiB", memory_bytes / MIB),
        Hint::Hugepages1gi { hugepages_1gi } => flag("hugepages1Gi", hugepages_1gi),
        Hint::WithoutSelector => "without --selector".to_owned(),
        // No reservation asks for disk.
        Hint::WithoutAvoid | Hint::DiskBytes { .. } | Hint::Wait { .. } => hint.to_string(),
    }
}

/// The claim as the command that explains it.
fn command(pool: &str, ask: &Ask) -> String {
    let mut words = vec!["better-compute reservations explain".to_owned(), flag("pool", pool)];
    words.extend((ask.gpus > 0).then(|| flag("gpus", ask.gpus)));
    words.extend((ask.vcpu > 0).then(|| flag("vcpu", ask.vcpu)));
    words.extend((ask.memory_mib > 0).then(|| memory_flag(ask.memory_mib)));
    words.extend((ask.hugepages_1gi > 0).then(|| flag("hugepages1Gi", ask.hugepages_1gi)));
    words.extend(ask.gpu_model.as_ref().map(|model| flag("gpuModel", format_args!("{model:?}"))));
    words.extend(ask.whole_node.then(|| format!("--{}", api::flag("wholeNode"))));
    words.join(" ")
}

fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// The refusal of what no node of the pool could ever hold. Nodes are counted, not named: the caller may not see them.
pub(crate) fn never(subject: &Subject, refused: &NoFit) -> ApiError {
    let (pool, ask) = (&subject.pool_name, &subject.ask);
    let groups: Vec<Value> = refused
        .groups
        .iter()
        .map(|group| {
            json!({
                "nodes": group.count, "verdict": verdict(&group.reason).name(), "reason": open(&group.reason),
            })
        })
        .collect();
    let hints: Vec<String> = refused.hints.iter().map(hint).collect();
    let message = if refused.nodes.is_empty() {
        format!("pool {pool:?} has no nodes yet")
    } else {
        format!("no node in pool {pool:?} can hold {}", wanted(ask))
    };
    ApiError::new(ErrorCode::CapacityUnavailable, message)
        .detail("pool", pool.clone())
        .detail("groups", groups)
        .detail("hints", hints)
        .detail("explain", command(pool, ask))
}

/// Why a reservation waits, in one line.
pub(crate) fn waiting(refused: &NoFit) -> String {
    let told: Vec<String> = refused
        .groups
        .iter()
        .take(GROUPS_TOLD)
        .map(|group| format!("{}: {}", nodes(group.count), open(&group.reason)))
        .collect();
    if told.is_empty() { "no node is open".to_owned() } else { told.join("; ") }
}

pub(crate) async fn explain(
    capacity: Capacity,
    call: Arc<Call>,
    request: ExplainReservation,
) -> Result<Explanation, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let action = api::reservations::Explain::ACTION;
    let pool = capacity.pool_to_book_from(&call, action, tenant_id, &request.pool).await?;
    let subject = subject_of(&capacity, &call, tenant_id, &pool, &request);
    // Who may create there may ask what would come of it.
    let create = call.decide(api::reservations::Create::ACTION, &subject.resource()).await?;
    if !create.allowed {
        call.require_in(action, &subject.resource()).await?;
    }
    capacity.books().refresh().await?;
    let judgement = capacity.books().judge(pool.id, &subject.ask.claim([]));
    let seen = visible(&call, pool.tenant_id, &judgement).await?;
    Ok(render(&pool, &subject.ask, &judgement, &seen, call.now))
}

fn subject_of(
    capacity: &Capacity,
    call: &Call,
    tenant_id: TenantId,
    pool: &PoolRef,
    request: &ExplainReservation,
) -> Subject {
    Subject {
        id: capacity.id(),
        tenant_id,
        pool_id: pool.id,
        pool_name: pool.name.clone(),
        pool_class: pool.class.clone(),
        created_by: call.principal.user_id,
        ask: Ask {
            gpus: request.gpus.map_or(0, |gpus| gpus.get_u32()),
            gpu_model: request.gpu_model.as_ref().map(|model| model.as_str().to_owned()),
            vcpu: request.vcpu.map_or(0, |vcpu| vcpu.get_u32()),
            memory_mib: request.memory_mib(),
            hugepages_1gi: request.hugepages_1gi.map_or(0, |pages| pages.get()),
            whole_node: request.whole_node,
            binding: request.binding.map_or(Binding::Hold, |binding| binding.0),
            selector: request.selector.clone().map(|selector| selector.into_map()).unwrap_or_default(),
        },
        starts_at: call.now,
        expires_at: None,
    }
}

/// Of the nodes that would be listed, those the caller may see.
async fn visible(call: &Call, tenant_id: TenantId, judgement: &Judgement) -> Result<BTreeSet<NodeId>, Fault> {
    let listed: Vec<NodeId> = judgement.nodes.iter().take(NODES_MAX).map(|node| node.node_id).collect();
    let resource = |node_id: &NodeId| Resource::one("compute-node", node_id, tenant_id);
    Ok(call.filter(api::nodes::Get::ACTION, listed, resource).await?.into_iter().collect())
}

fn render(
    pool: &PoolRef,
    ask: &Ask,
    judgement: &Judgement,
    seen: &BTreeSet<NodeId>,
    now: Timestamp,
) -> Explanation {
    let best = judgement.nodes.first().filter(|node| matches!(node.verdict, Verdict::Fits { .. }));
    let fitting = judgement.nodes.iter().filter(|node| matches!(node.verdict, Verdict::Fits { .. })).count();
    let summary = match (best, judgement.ever) {
        (Some(_), _) => {
            format!("{} of {} in pool {:?} can hold it now", fitting, nodes(judgement.nodes.len()), pool.name)
        }
        (None, _) if judgement.nodes.is_empty() => format!("pool {:?} has no nodes yet", pool.name),
        (None, true) => format!("no node in pool {:?} can hold {} now", pool.name, wanted(ask)),
        (None, false) => format!("no node in pool {:?} can hold {}", pool.name, wanted(ask)),
    };
    let named = |node: &Judged| Named::new(node.node_id, &node.name);
    Explanation {
        pool: Named::new(pool.id, &pool.name),
        fits: best.is_some(),
        node: best.filter(|node| seen.contains(&node.node_id)).map(named),
        summary,
        groups: groups(&judgement.nodes),
        nodes: judgement
            .nodes
            .iter()
            .filter(|node| seen.contains(&node.node_id))
            .map(|node| NodeVerdict {
                node: named(node),
                verdict: Word(match &node.verdict {
                    Verdict::Fits { .. } => FitVerdict::Fits,
                    Verdict::Refused(reason) => verdict(reason),
                }),
                reasons: match &node.verdict {
                    Verdict::Fits { rank, .. } => vec![format!("rank {rank}")],
                    Verdict::Refused(reason) => vec![full(reason, now)],
                },
            })
            .collect(),
        hints: judgement.hints.iter().map(hint).collect(),
    }
}

/// Nodes by what they say to everybody, the most common first.
fn groups(judged: &[Judged]) -> Vec<VerdictGroup> {
    let mut groups: Vec<VerdictGroup> = Vec::new();
    for node in judged {
        let (verdict, reason) = match &node.verdict {
            Verdict::Fits { .. } => (FitVerdict::Fits, "fits".to_owned()),
            Verdict::Refused(reason) => (verdict(reason), open(reason)),
        };
        match groups.iter_mut().find(|group| group.verdict.0 == verdict && group.reason == reason) {
            Some(group) => group.nodes += 1,
            None => groups.push(VerdictGroup { nodes: 1, verdict: Word(verdict), reason }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes));
    groups
}

#[cfg(test)]
mod tests;
