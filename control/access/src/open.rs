//! `tunnels.open`: who may, whether there is something to reach, and the ticket for it.

use std::sync::Arc;
use std::time::Duration;

use api::Ref;
use api::tunnels::{OpenTunnel, OpenedTunnel, TunnelGateway, TunnelOp};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use kernel::module::wake_in;
use kernel::ports::tunnels::NodeDoor;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::InstanceState;
use model::{ErrorCode, InstanceId, NodeId, TenantId, Timestamp, TunnelId};
use pki::{Pin, VerifyingKey};
use prost::Message;
use store::{Op, Tx};
use wire::proto::agent::{ExecTicket, SignedTicket, TunnelOp as WireOp};
use wire::proto::common::IntentSignature;

use crate::watch::{LOOK_EVERY, QUEUE, tunnel_key};
use crate::{Access, read, sql};

const TUNNEL_OPEN: Op = Op::new("tunnel_open");
/// What it takes to be let into an instance, or onto a node's console; and to know that it is there.
pub(crate) const EXEC: &str = "compute:instances:exec";
pub(crate) const NODE_EXEC: &str = "compute:nodes:exec";
const SEE: &str = "compute:instances:get";
const SEE_NODE: &str = "compute:nodes:get";
/// What a daemon advertises that lets anybody in.
const INSTANCE_DIAL: &str = "tunnel.instance-dial";
const NODE_CONSOLE: &str = "tunnel.node-console";
const NODE_SSH: &str = "tunnel.node-ssh";
/// A ticket is used at once, or by whoever stole it.
const OPEN_WITHIN: Duration = Duration::from_secs(60);
/// A working day; who works longer opens another.
const LASTS_MAX: Duration = Duration::from_secs(12 * 3600);
/// What a ticket's time may differ by from the node's, which knows the database's to within a round trip.
const CLOCK_ALLOWANCE: Duration = Duration::from_secs(60);
const SSH_PORT: u16 = 22;
/// Of one tenant into instances of one node, while others have instances there: half of what there is room for.
const OF_TENANT_MAX: i64 = 8;

/// What is to be reached, which the caller may.
struct Target {
    tenant_id: TenantId,
    instance: Option<InstanceId>,
    node: NodeDoor,
}

pub(crate) async fn open(
    access: Access,
    call: Arc<Call>,
    request: OpenTunnel,
) -> Result<OpenedTunnel, Fault> {
    let target = match request.instance {
        Some(id) => access.at_instance(&call, id.get()).await?,
        None => access.at_node(&call, request.node.as_ref()).await?,
    };
    let (op, needed) = match (request.op.0, target.instance) {
        (TunnelOp::Console, None) => (WireOp::Console, NODE_CONSOLE),
        (TunnelOp::Console, Some(_)) => (WireOp::Console, INSTANCE_DIAL),
        (TunnelOp::Ssh, None) => (WireOp::Ssh, NODE_SSH),
        (TunnelOp::Ssh, Some(_)) => (WireOp::Ssh, INSTANCE_DIAL),
        (TunnelOp::Tcp, _) => (WireOp::Tcp, INSTANCE_DIAL),
    };
    let node = &target.node;
    if !node.capabilities.iter().any(|has| has == needed) {
        let message = format!("the daemon of node {} lets nobody in this way: update it", node.name);
        let refusal = ApiError::new(ErrorCode::Unsupported, message).detail("reason", "daemon-capability");
        return Err(refusal.detail("capability", needed).into());
    }
    let away = || {
        let message =
            format!("node {} is not connected now; see: better-compute nodes get {}", node.name, node.name);
        ApiError { retry_after: Some(5), ..ApiError::new(ErrorCode::Unavailable, message) }
    };
    let address = node.gateway.as_deref().ok_or_else(away)?;
    let address = address.strip_prefix("https://").unwrap_or(address).trim_end_matches('/').to_owned();
    if node.keys.is_empty() {
        return Err(away().into());
    }
    let client_key = client_key(request.client_key.as_str())?;
    let port = match request.op.0 {
        TunnelOp::Console => None,
        TunnelOp::Ssh | TunnelOp::Tcp => {
            Some(request.port.map_or(SSH_PORT, |port| u16::try_from(port.get()).unwrap_or(SSH_PORT)))
        }
    };
    let id: TunnelId = access.id();
    let (now, open_until) = (call.now, call.now.saturating_add(OPEN_WITHIN));
    let ends_at = now.saturating_add(LASTS_MAX);
    let ticket = ExecTicket {
        tunnel_id: id.to_string(),
        node_id: node.node_id.to_string(),
        deployment_epoch: node.deployment_epoch,
        instance_id: target.instance.map(|id| id.to_string()).unwrap_or_default(),
        op: op.into(),
        port: port.map_or(0, u32::from),
        client_key_sha256: client_key.as_bytes().to_vec().into(),
        not_before_ms: millis(now.saturating_sub(CLOCK_ALLOWANCE)),
        open_until_ms: millis(open_until),
        ends_at_ms: millis(ends_at),
        user: call.principal.name.clone(),
    };
    let ticket = access.signed(&ticket, now)?;
    call.about(format!("tunnel/{id}"));
    let (call_ref, target_ref, op) = (&*call, &target, request.op.0);
    call.tx(access.store(), TUNNEL_OPEN, |tx| {
        Box::pin(async move {
            if target_ref.instance.is_some() {
                room(tx, target_ref).await?;
            }
            let (principal, source) = (&call_ref.principal, call_ref.source_ip.to_string());
            let instance = target_ref.instance.map(|id| id.uuid());
            let (open_until, ends_at) =
                (std::time::SystemTime::from(open_until), std::time::SystemTime::from(ends_at));
            let values: [&(dyn store::Param + Sync); 11] = [
                &id.uuid(),
                &target_ref.tenant_id.uuid(),
                &target_ref.node.node_id.uuid(),
                &instance,
                &api::Vocabulary::word(op),
                &port.map(i32::from),
                &principal.user_id.uuid(),
                &principal.token_id.uuid(),
                &source,
                &open_until,
                &ends_at,
            ];
            tx.execute(&sql::TUNNEL_INSERT, &values).await?;
            Ok::<_, Fault>(wake_in(tx, QUEUE, &tunnel_key(id), LOOK_EVERY).await?)
        })
    })
    .await?;
    let facts = &access.0.gateway;
    Ok(OpenedTunnel {
        tunnel: read::one(&access, id).await?,
        ticket,
        gateway: TunnelGateway {
            address,
            server_name: facts.server_name.clone(),
            serving_ca_pin: facts.serving_ca_pin.clone(),
        },
        node_keys: node.keys.iter().map(hex::encode).collect(),
    })
}

/// Whether the tenant may have one more into instances of the node, where others are: a node has room for
/// sixteen, and nobody keeps the others out.
async fn room(tx: &mut Tx<'_>, target: &Target) -> Result<(), Fault> {
    let (node, tenant) = (target.node.node_id.uuid(), target.tenant_id.uuid());
    // Those that are opened to it at once are counted one after the other.
    tx.query(&sql::TUNNELS_NODE_HOLD, &[&node]).await?;
    let counted = tx.query_one(&sql::TUNNELS_OF_TENANT, &[&node, &tenant]).await?;
    if counted.get::<_, i64>("open") < OF_TENANT_MAX || !counted.get::<_, bool>("shared") {
        return Ok(());
    }
    let message = format!(
        "there are {OF_TENANT_MAX} tunnels of the tenant into instances on node {}, which is the most while others have some there; see: better-compute tunnels list",
        target.node.name
    );
    let refusal = ApiError::new(ErrorCode::RateLimited, message).detail("limit", OF_TENANT_MAX);
    Err(ApiError { retry_after: Some(10), ..refusal }.into())
}

impl Access {
    async fn at_instance(&self, call: &Call, id: InstanceId) -> Result<Target, Fault> {
        let not_there = || Fault::from(ApiError::not_found("instance", id));
        let Some(door) = self.0.instances.instance(id).await? else {
            call.decide(
                EXEC,
                &kernel::ports::iam::Resource::one("compute-instance", id, call.principal.tenant_id),
            )
            .await?;
            return Err(not_there());
        };
        call.require_on(EXEC, SEE, &door.resource, "instance", id).await?;
        if door.state != InstanceState::Running {
            let state = door.state.name();
            let message = format!(
                "the instance is {state}: nobody can be let into it; see: better-compute instances get {id}"
            );
            return Err(ApiError::invalid_state(message).detail("state", state).into());
        }
        let node_id = door.node_id.ok_or_else(not_there)?;
        let node = self.0.nodes.node(&Ref::Id(node_id)).await?.ok_or_else(not_there)?;
        Ok(Target { tenant_id: door.resource.tenant_id, instance: Some(id), node })
    }

    async fn at_node(&self, call: &Call, node: Option<&Ref<NodeId>>) -> Result<Target, Fault> {
        let node = node.ok_or_else(|| ApiError::invalid("/node", "give a node, or an instance"))?;
        let shown = match node {
            Ref::Id(id) => id.to_string(),
            Ref::Name(name) => name.clone(),
        };
        let Some(door) = self.0.nodes.node(node).await? else {
            let any = kernel::ports::iam::Resource::any("compute-node", call.principal.tenant_id);
            call.decide(NODE_EXEC, &any).await?;
            return Err(ApiError::not_found("node", shown).into());
        };
        call.require_on(NODE_EXEC, SEE_NODE, &door.resource, "node", &shown).await?;
        Ok(Target { tenant_id: door.tenant_id, instance: None, node: door })
    }

    fn signed(&self, ticket: &ExecTicket, at: Timestamp) -> Result<String, Fault> {
        let bytes = ticket.encode_to_vec();
        let value = self.0.nodes.sign_ticket(&bytes, at)?.into();
        let signed = SignedTicket { ticket: bytes.into(), signature: Some(IntentSignature { value }) };
        Ok(BASE64URL.encode(signed.encode_to_vec()))
    }
}

fn client_key(text: &str) -> Result<Pin, ApiError> {
    let key = BASE64URL.decode(text).ok().and_then(|der| VerifyingKey::from_spki_der(&der).ok());
    key.map(|key| key.pin()).ok_or_else(|| {
        ApiError::invalid(
            "/clientKey",
            "this is no P-256 public key: SubjectPublicKeyInfo in DER, base64url without padding",
        )
    })
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0)
}
