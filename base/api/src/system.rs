//! The deployment itself.

use std::collections::BTreeMap;

use model::DeploymentId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::method;
use crate::{Id, Int, Text, Time};

/// The database may be an older one restored: nothing is sent to nodes until somebody confirms.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObserveOnly {
    pub reason: String,
    pub since: Time,
    pub since_seconds: u64,
}

/// What a machine needs to join, beside a join token.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinFacts {
    /// `https://gw.example.com:8443`.
    pub gateway_url: String,
    /// The name in the gateway's certificate, when it is reached by another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// SHA-256 pins of the three keys an agent is installed with, as `bcd` takes them.
    pub serving_ca_pin: String,
    pub join_signing_pin: String,
    pub join_encryption_pin: String,
    /// The key that join tokens are sealed to, as the text of a JWK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join_encryption_key: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayInfo {
    /// `gw_…`.
    pub id: String,
    pub address: String,
    pub sessions: u32,
    pub started_at: Time,
    pub draining: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SystemInfo {
    /// Of the server that answered.
    pub version: String,
    pub deployment_id: Id<DeploymentId>,
    /// Goes up when a restored database is confirmed; nodes refuse intent of an older one.
    pub epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observe_only: Option<ObserveOnly>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored_at: Option<Time>,
    /// The database's.
    pub server_time: Time,
    /// Nodes by state.
    pub nodes: BTreeMap<String, u32>,
    /// Reservations by state, of those that have not ended.
    pub reservations: BTreeMap<String, u32>,
    pub gateways: Vec<GatewayInfo>,
    /// Work that failed too often and waits for a person: see `work.listParked`.
    pub work_parked: u64,
    /// Absent when the deployment publishes no gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<JoinFacts>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetSystemInfo {}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestoreConfirmation {
    /// The deployment's id, to show that this one is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<Id<DeploymentId>>,
    /// The epoch that `system.info` shows: a second call finds another one and changes nothing.
    pub epoch: Int<1, 9_007_199_254_740_991>,
    /// For the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Text<0, 200>>,
}

method!(Info, "system"."info", Read, "compute-system", GetSystemInfo => SystemInfo, [], "Shows the deployment: version, epoch, gateways, counts.");
method!(ConfirmRestore, "system"."confirmRestore", Natural, "compute-system", RestoreConfirmation => SystemInfo, [ConfirmationRequired, Conflict, InvalidState], "Confirms that the database was restored on purpose, and lets intent flow again.");
