//! Tunnels: ways into an instance, or onto a node's console, without a port that anybody outside could reach.
//!
//! Opening one gives a ticket for one connection. What goes through it is sealed between whoever opened it and the node.

use model::{InstanceId, NodeId, TenantId, TunnelId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, Int, InvalidRequest, Limit, Named, Ref, Text, Time, Word};

words! {
    TunnelOp, "tunnel operation" {
        /// To the SSH server of an instance, or of a node.
        Ssh = "ssh",
        /// To a TCP port of an instance.
        Tcp = "tcp",
        /// To the serial console of an instance, or to a shell on a node.
        Console = "console",
    }
}

words! {
    TunnelState, "tunnel state" {
        /// Its ticket was not used yet.
        Issued = "issued",
        Open = "open",
        /// It was closed, or its ticket was not used in time.
        Closed = "closed",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tunnel {
    pub id: Id<TunnelId>,
    /// Whose the instance is, or the node.
    pub tenant: Named<TenantId>,
    pub state: Word<TunnelState>,
    pub op: Word<TunnelOp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Absent for a node's own console, and its SSH server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Id<InstanceId>>,
    pub node: Named<NodeId>,
    pub opened_by: Named<UserId>,
    pub source_ip: String,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Time>,
    /// It is closed then at the latest.
    pub ends_at: Time,
    /// Why it was closed: one stable word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// As they came through, sealed, once it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_node_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_client_bytes: Option<u64>,
    pub age_seconds: u64,
}

/// Where the connection is made.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TunnelGateway {
    /// `host:port`.
    pub address: String,
    /// In its certificate.
    pub server_name: String,
    /// SHA-256 of the key of the authority that its chain ends in, 64 hexadecimal digits.
    pub serving_ca_pin: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenedTunnel {
    pub tunnel: Tunnel,
    /// For one connection, by the holder of the key that was given, within a minute. Base64url.
    pub ticket: String,
    pub gateway: TunnelGateway,
    /// SHA-256 of the keys by which the node is known inside the tunnel, 64 hexadecimal digits each.
    pub node_keys: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpenTunnel {
    /// One that runs. Either this or `node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Id<InstanceId>>,
    /// For the node's own console, or its SSH server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    pub op: Word<TunnelOp>,
    /// Of `tcp`; of `ssh` when it is not 22.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Int<1, 65_535>>,
    /// The public key by which the caller is known inside the tunnel: SubjectPublicKeyInfo of a P-256 key, base64url. Make one
    /// for each tunnel.
    pub client_key: Text<1, 256>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetTunnel {
    pub id: Id<TunnelId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTunnels {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Id<InstanceId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    /// Also those that are closed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_closed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

fn check_open(request: &OpenTunnel) -> Result<(), InvalidRequest> {
    let (op, port) = (request.op.0, request.port.is_some());
    match (&request.instance, &request.node) {
        (Some(_), Some(_)) => Err(InvalidRequest::new("/node", "give an instance or a node, not both")),
        (None, None) => Err(InvalidRequest::new("/instance", "give an instance, or a node")),
        (None, Some(_)) if op == TunnelOp::Tcp => Err(InvalidRequest::new(
            "/op",
            "onto a node there are its console and its SSH server, and nothing else",
        )),
        _ if op == TunnelOp::Tcp && !port => Err(InvalidRequest::new("/port", "tcp needs a port")),
        _ if op == TunnelOp::Console && port => Err(InvalidRequest::new("/port", "a console has no port")),
        _ => Ok(()),
    }
}

method!(Open, "tunnels"."open", Natural, "compute-tunnel", OpenTunnel => OpenedTunnel, [NotFound, InvalidState, Unsupported], "Gives a ticket for one connection into an instance, or onto a node's console.", check = check_open);
method!(Get, "tunnels"."get", Read, "compute-tunnel", GetTunnel => Tunnel, [NotFound], "Shows a tunnel.");
method!(List, "tunnels"."list", Read, "compute-tunnel", ListTunnels => crate::List<Tunnel>, [NotFound], "Lists tunnels.");
method!(Close, "tunnels"."close", Natural, "compute-tunnel", GetTunnel => Tunnel, [NotFound], "Closes a tunnel, or takes its ticket back.");
