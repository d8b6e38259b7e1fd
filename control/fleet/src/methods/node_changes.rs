//! `nodes` that change: labels, cordon, drain, revocation, removal.

use std::sync::Arc;

use api::nodes::{self as api_nodes, Node, NodeChange};
use kernel::events::EventKind;
use kernel::{ApiError, Call, Fault, Module};
use model::lifecycle::{NodeEvent, NodeState};
use model::{ErrorCode, NodeId};
use serde_json::{Value, json};
use store::{Op, Tx};

use super::node_view::Seen;
use super::nodes::{read, visible};
use super::{on, sql};
use crate::DELIVERY_CHANNEL;
use crate::core::{Fleet, node_key};

const LABELS_MAX: i64 = api::LABELS_MAX as i64;

const UPDATE: Op = Op::new("node_update");
const CORDON: Op = Op::new("node_cordon");
const DRAIN: Op = Op::new("node_drain");
const REVOKE: Op = Op::new("node_revoke");
const ABANDON: Op = Op::new("node_abandon");
const REMOVE: Op = Op::new("node_remove");
/// Who was heard of so lately is not dead.
const SPEAKS_SECONDS: u64 = 30;
const HOLDS: Op = Op::new("node_holds");

pub(super) fn register(module: Module, fleet: &Fleet) -> Module {
    let module = on!(module, fleet, api_nodes::Update, update);
    let module = on!(module, fleet, api_nodes::Cordon, cordon);
    let module = on!(module, fleet, api_nodes::Uncordon, uncordon);
    let module = on!(module, fleet, api_nodes::Drain, drain);
    let module = on!(module, fleet, api_nodes::Revoke, revoke);
    let module = on!(module, fleet, api_nodes::Abandon, abandon);
    on!(module, fleet, api_nodes::Remove, remove)
}

/// Whether a person's flags mean anything on it.
fn must_live(seen: &Seen) -> Result<NodeId, Fault> {
    match seen.node.state.0 {
        NodeState::Revoked | NodeState::Removed => {
            let message = format!("node {} is {}", seen.node.name, seen.node.state.0.name());
            Err(ApiError::invalid_state(message).into())
        }
        NodeState::Joined
        | NodeState::Accepting
        | NodeState::Ready
        | NodeState::Unreachable
        | NodeState::Lost => Ok(seen.node.id.0),
    }
}

async fn update(fleet: Fleet, call: Arc<Call>, request: api_nodes::UpdateNode) -> Result<Node, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:update", &request.node).await?;
    let node_id = must_live(&seen)?;
    let changes = request.labels.map(|labels| labels.0).unwrap_or_default();
    let removed: Vec<String> =
        changes.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key.clone()).collect();
    let set: Value =
        changes.iter().filter_map(|(key, value)| Some((key.clone(), Value::from(value.clone()?)))).collect();
    let name = request.name.map(api::Name::into_string);
    let by = call.principal.name.clone();
    let (fleet, name, set, removed, by) = (&fleet, &name, &set, &removed, &by);
    call.tx(fleet.store(), UPDATE, |tx| {
        Box::pin(async move {
            match tx.query_opt(&sql::NODE_UPDATE, &[&node_id.uuid(), name, set, removed]).await {
                Ok(Some(row)) if row.get::<_, i64>("labels") > LABELS_MAX => {
                    let message = format!("a node has at most {LABELS_MAX} labels: remove some with null");
                    return Err(ApiError::invalid("/labels", message).into());
                }
                Ok(_) => {}
                Err(err) if err.is_unique("nodes_name_key") => {
                    let name = name.as_deref().unwrap_or_default();
                    return Err(ApiError::conflict(format!("there is a node named {name:?} already")).into());
                }
                Err(err) => return Err(err.into()),
            }
            if set.as_object().is_some_and(|set| !set.is_empty()) || !removed.is_empty() {
                fleet.emit(tx, EventKind::NodeLabelled, node_id, json!({ "labels": set, "by": by })).await?;
                fleet.publish_schedulable(tx, node_id).await?;
            }
            Ok::<_, Fault>(())
        })
    })
    .await?;
    Ok(read(fleet, &call, node_id).await?.node)
}

async fn cordon(fleet: Fleet, call: Arc<Call>, request: api_nodes::CordonNode) -> Result<Node, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:cordon", &request.node).await?;
    let node_id = must_live(&seen)?;
    let reason = request.reason.map(api::Text::into_string);
    // A repeated call finds the work done. One over an automatic cordon makes it the caller's, which nothing ends by itself.
    let same = |cordon: &api::nodes::NodeCordon| {
        cordon.ends_when.is_none() && reason.as_ref().is_none_or(|reason| *reason == cordon.reason)
    };
    if seen.node.cordon.as_ref().is_some_and(same) {
        return Ok(seen.node);
    }
    let by = call.principal.name.clone();
    let (fleet, reason, by) = (&fleet, &reason, &by);
    call.tx(fleet.store(), CORDON, |tx| {
        Box::pin(async move {
            tx.execute(&sql::NODE_CORDON, &[&node_id.uuid(), by, reason]).await?;
            fleet.emit(tx, EventKind::NodeCordoned, node_id, json!({ "reason": reason, "by": by })).await?;
            fleet.publish_schedulable(tx, node_id).await
        })
    })
    .await?;
    Ok(read(fleet, &call, node_id).await?.node)
}

/// Ends a cordon and a drain, and a quarantine too: opening the node is a person's word that somebody looked.
async fn uncordon(fleet: Fleet, call: Arc<Call>, request: api_nodes::UncordonNode) -> Result<Node, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:uncordon", &request.node).await?;
    let node_id = must_live(&seen)?;
    let by = call.principal.name.clone();
    let (fleet, by) = (&fleet, &by);
    call.tx(fleet.store(), CORDON, |tx| {
        Box::pin(async move {
            fleet.release_quarantine(tx, node_id, by).await?;
            if tx.execute(&sql::NODE_UNCORDON, &[&node_id.uuid()]).await? == 0 {
                return Ok(());
            }
            fleet.emit(tx, EventKind::NodeUncordoned, node_id, json!({ "by": by })).await?;
            fleet.publish_schedulable(tx, node_id).await
        })
    })
    .await?;
    Ok(read(fleet, &call, node_id).await?.node)
}

async fn drain(fleet: Fleet, call: Arc<Call>, request: api_nodes::DrainNode) -> Result<NodeChange, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:drain", &request.node).await?;
    let node_id = must_live(&seen)?;
    let holds = fleet.holds(node_id).await?;
    if request.dry_run {
        return Ok(NodeChange { node: seen.node, holds, dry_run: true });
    }
    if seen.node.draining_since.is_some() {
        return Ok(NodeChange { node: seen.node, holds, dry_run: false });
    }
    let reason = request.reason.map(api::Text::into_string);
    let by = call.principal.name.clone();
    let fleet_ref = &fleet;
    let (reason, by) = (&reason, &by);
    call.tx(fleet_ref.store(), DRAIN, |tx| {
        Box::pin(async move {
            tx.execute(&sql::NODE_CORDON, &[&node_id.uuid(), by, reason]).await?;
            tx.execute(&sql::NODE_DRAIN, &[&node_id.uuid()]).await?;
            let data = json!({ "draining": true, "reason": reason, "by": by });
            fleet_ref.emit(tx, EventKind::NodeDraining, node_id, data).await?;
            fleet_ref.publish_schedulable(tx, node_id).await
        })
    })
    .await?;
    Ok(NodeChange { node: read(&fleet, &call, node_id).await?.node, holds, dry_run: false })
}

async fn revoke(fleet: Fleet, call: Arc<Call>, request: api_nodes::RevokeNode) -> Result<NodeChange, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:revoke", &request.node).await?;
    let node_id = seen.node.id.0;
    let holds = fleet.holds(node_id).await?;
    if request.dry_run {
        return Ok(NodeChange { node: seen.node, holds, dry_run: true });
    }
    if matches!(seen.node.state.0, NodeState::Revoked | NodeState::Removed) {
        return Ok(NodeChange { node: seen.node, holds, dry_run: false });
    }
    confirmed(
        &seen,
        request.confirm.as_ref(),
        "revoking it ends its certificates and its session for good",
        &holds,
    )?;
    let reason = request.reason.map_or_else(String::new, api::Text::into_string);
    let (fleet_ref, reason, by) = (&fleet, &reason, call.principal.name.as_str());
    call.tx(fleet_ref.store(), REVOKE, |tx| {
        Box::pin(async move {
            tx.execute(&sql::NODE_REVOKE, &[&node_id.uuid(), reason]).await?;
            tx.execute(&sql::NODE_CERTS_REVOKE, &[&node_id.uuid()]).await?;
            let said = json!({ "reason": reason, "by": by });
            fleet_ref.move_node_by(tx, node_id, NodeEvent::Revoked, said).await?;
            tx.notify(DELIVERY_CHANNEL, node_key(node_id));
            Ok::<_, Fault>(())
        })
    })
    .await?;
    Ok(NodeChange { node: read(&fleet, &call, node_id).await?.node, holds, dry_run: false })
}

async fn abandon(
    fleet: Fleet,
    call: Arc<Call>,
    request: api_nodes::AbandonNode,
) -> Result<NodeChange, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:abandon", &request.node).await?;
    let node_id = seen.node.id.0;
    let holds = fleet.holds(node_id).await?;
    if request.dry_run {
        return Ok(NodeChange { node: seen.node, holds, dry_run: true });
    }
    must_be_silent(&seen)?;
    let what = "giving up what it holds lets others have it while it may still run there";
    confirmed(&seen, request.confirm.as_ref(), what, &holds)?;
    let (fleet_ref, by) = (&fleet, call.principal.name.as_str());
    call.tx(fleet_ref.store(), ABANDON, |tx| Box::pin(fleet_ref.declare_dead(tx, node_id, by))).await?;
    Ok(NodeChange { node: read(&fleet, &call, node_id).await?.node, holds, dry_run: false })
}

/// Whether the node may be declared dead: one that speaks is not.
fn must_be_silent(seen: &Seen) -> Result<(), Fault> {
    let (name, state) = (&seen.node.name, seen.node.state.0);
    let speaks = seen.node.session.as_ref().is_some_and(|session| session.connected)
        && seen.node.last_seen_seconds.is_some_and(|seconds| seconds < SPEAKS_SECONDS);
    match state {
        NodeState::Revoked => Ok(()),
        NodeState::Unreachable | NodeState::Lost if !speaks => Ok(()),
        NodeState::Removed => Err(ApiError::invalid_state(format!("node {name} is removed")).into()),
        NodeState::Unreachable
        | NodeState::Lost
        | NodeState::Joined
        | NodeState::Accepting
        | NodeState::Ready => {
            let message = format!(
                "node {name} is {} and was heard of: only what is unreachable, lost or revoked can be declared dead \
                 (better-compute nodes revoke {name})",
                state.name()
            );
            Err(ApiError::invalid_state(message).into())
        }
    }
}

fn must_be_revoked(seen: &Seen) -> Result<(), Fault> {
    match seen.node.state.0 {
        NodeState::Revoked => Ok(()),
        NodeState::Removed => {
            Err(ApiError::invalid_state(format!("node {} is removed", seen.node.name)).into())
        }
        NodeState::Joined
        | NodeState::Accepting
        | NodeState::Ready
        | NodeState::Unreachable
        | NodeState::Lost => {
            let message = format!(
                "node {0} is {1}: revoke it first (better-compute nodes revoke {0})",
                seen.node.name,
                seen.node.state.0.name()
            );
            Err(ApiError::invalid_state(message).into())
        }
    }
}

async fn remove(fleet: Fleet, call: Arc<Call>, request: api_nodes::RemoveNode) -> Result<NodeChange, Fault> {
    let seen = visible(&fleet, &call, "compute:nodes:remove", &request.node).await?;
    let node_id = seen.node.id.0;
    let holds = fleet.holds(node_id).await?;
    if request.dry_run {
        return Ok(NodeChange { node: seen.node, holds, dry_run: true });
    }
    if seen.node.state.0 == NodeState::Removed {
        return Ok(NodeChange { node: seen.node, holds, dry_run: false });
    }
    must_be_revoked(&seen)?;
    confirmed(&seen, request.confirm.as_ref(), "removing it closes its record", &holds)?;
    let (fleet_ref, by) = (&fleet, call.principal.name.as_str());
    call.tx(fleet_ref.store(), REMOVE, |tx| {
        Box::pin(async move {
            // Asked again under the lock: something may have been placed since.
            let holds = fleet_ref.holds_in(tx, node_id).await?;
            if !holds.is_empty() {
                let message = format!(
                    "{} things are still on the node: {}; if the machine is gone, give them up with nodes abandon",
                    holds.len(),
                    holds.join(", ")
                );
                return Err(ApiError::conflict(message).detail("holds", holds).into());
            }
            fleet_ref.move_node_by(tx, node_id, NodeEvent::Removed, json!({ "by": by })).await?;
            tx.execute(&sql::NODE_REMOVE, &[&node_id.uuid()]).await?;
            fleet_ref.publish_facts(tx, node_id).await
        })
    })
    .await?;
    Ok(NodeChange { node: read(&fleet, &call, node_id).await?.node, holds, dry_run: false })
}

/// The node's name, given back, shows that this one is meant.
fn confirmed(seen: &Seen, given: Option<&api::Name>, what: &str, holds: &[String]) -> Result<(), Fault> {
    if given.is_some_and(|given| given.as_str() == seen.node.name) {
        return Ok(());
    }
    let message = format!("{what}; to confirm, give its name: {:?}", seen.node.name);
    let refusal = ApiError::new(ErrorCode::ConfirmationRequired, message)
        .detail("confirm", seen.node.name.clone())
        .detail("holds", holds.to_vec());
    Err(refusal.into())
}

impl Fleet {
    /// A person's word that nothing runs on the node any more, which everything may go on by that waits for the node. It
    /// counts until the node is heard of again.
    async fn declare_dead(&self, tx: &mut Tx<'_>, node_id: NodeId, by: &str) -> Result<(), Fault> {
        // Under the lock, for it may be back, or joined again, since.
        let node = tx.query_opt(&crate::sql::NODE_LOCK, &[&node_id.uuid()]).await?;
        let state = node.as_ref().and_then(|row| NodeState::parse(row.get("state")));
        let state = match state {
            Some(state @ (NodeState::Unreachable | NodeState::Lost | NodeState::Revoked)) => state,
            Some(NodeState::Joined | NodeState::Accepting | NodeState::Ready | NodeState::Removed) | None => {
                return Err(ApiError::invalid_state("the node is not silent any more").into());
            }
        };
        if tx.execute(&sql::NODE_DEAD, &[&node_id.uuid(), &by]).await? > 0 {
            let data = json!({ "state": state.name(), "by": by });
            self.emit(tx, EventKind::NodeDeclaredDead, node_id, data).await?;
        }
        if state == NodeState::Unreachable {
            let said = json!({ "reason": "it was declared dead" });
            self.move_node_by(tx, node_id, NodeEvent::GivenUp, said).await?;
        }
        for observer in &self.0.observers {
            observer.abandoned(tx, node_id).await?;
        }
        Ok(())
    }

    /// What the modules have on the node.
    async fn holds(&self, node_id: NodeId) -> Result<Vec<String>, Fault> {
        self.store().tx(HOLDS, |tx| Box::pin(self.holds_in(tx, node_id))).await
    }

    async fn holds_in(&self, tx: &mut Tx<'_>, node_id: NodeId) -> Result<Vec<String>, Fault> {
        tx.query_opt(&crate::sql::NODE_LOCK, &[&node_id.uuid()]).await?;
        let mut holds = Vec::new();
        for observer in &self.0.observers {
            holds.extend(observer.holds(tx, node_id).await?);
        }
        Ok(holds)
    }
}
