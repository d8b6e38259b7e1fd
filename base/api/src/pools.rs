//! Pools: nodes that are booked from together, by one policy.

use model::{PoolId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::words::words;
use crate::{
    Address, Cursor, GpuTotals, Id, IdempotencyKey, Int, InvalidRequest, Limit, Many, Name, Named, Ref,
    Subnet, Text, Time, Word,
};

words! {
    /// What a pool's machines are used for.
    PoolClass, "pool class" {
        Gpu = "gpu",
        VpsHost = "vps-host",
        Metal = "metal",
    }
}

words! {
    PoolState, "pool state" {
        Active = "active",
        /// Nothing comes into it any more, and its name is free.
        Deleted = "deleted",
    }
}

words! {
    Placement, "placement" {
        /// The fullest node that fits, so that whole nodes stay free.
        Pack = "pack",
        /// The emptiest.
        Spread = "spread",
    }
}

words! {
    /// Among whom an address is one instance's alone.
    AddressScope, "address scope" {
        /// All hosts of the pool, whose bridges are one network.
        Pool = "pool",
        /// Each host, whose bridge is a network of its own.
        Host = "host",
    }
}

/// The network that instances of the pool are in.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Each instance has an address of it.
    pub subnet: Subnet,
    /// The router; no instance gets its address. None: instances reach their own network alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Address>,
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub nameservers: Many<Address, 4>,
    /// Of the hosts. `br0` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Text<1, 15>>,
    /// `pool` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Word<AddressScope>>,
}

/// What each machine keeps for itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostReserve {
    /// 0 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<Int<0, 1024>>,
    /// 0 when not given.
    #[serde(rename = "memoryGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<Int<0, 65_536>>,
    /// Of the file system that instances' disks are on: for images, and whoever else uses it. A twentieth, and no less than
    /// 2 GiB, is kept whatever this says.
    #[serde(rename = "diskGiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gib: Option<Int<0, 1_048_576>>,
}

/// How much of it is booked more than once. Memory never is: a guest that uses what it was promised must have it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Overcommit {
    /// vCPUs for each CPU of a host that its reserve leaves; 1 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<Int<1, 32>>,
    /// GiB of disks for each that the reserve leaves; 1 when not given. Disks hold what was written on them and no more: with
    /// 2, hosts make sure that half of each could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Int<1, 32>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolPolicy {
    /// `pack` when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Word<Placement>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_reserve: Option<HostReserve>,
    /// For a pool of class `vps-host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<Overcommit>,
    /// How long an unreachable node is waited for before it is lost and its work is placed again. Never when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_after_minutes: Option<Int<5, 43_200>>,
    /// For a pool of class `vps-host`: an instance whose host is lost, and was declared dead, is made anew from its image on
    /// another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recreate_on_host_loss: Option<bool>,
    /// For a pool of class `vps-host`: without it instances ask for their address by DHCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Local accounts that SSH certificates may be for (`nodes.issueSshCert`). None when not given, and the sshd of its nodes is
    /// left alone.
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub ssh_accounts: Many<Text<1, 32>, 16>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    pub id: Id<PoolId>,
    pub tenant: Named<TenantId>,
    pub name: String,
    pub class: Word<PoolClass>,
    pub state: Word<PoolState>,
    pub policy: PoolPolicy,
    /// Goes up with each update.
    pub version: u64,
    pub nodes: u32,
    /// Of them, those that take new work.
    pub nodes_ready: u32,
    pub gpus: GpuTotals,
    /// Sizes that it offers to instances: they go with it.
    pub flavors: u32,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Time>,
    pub age_seconds: u64,
    /// Nothing was changed; this is what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePool {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Unique in its tenant.
    pub name: Name,
    pub class: Word<PoolClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PoolPolicy>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetPool {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub pool: Ref<PoolId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListPools {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Word<PoolClass>>,
    /// Also those that were deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdatePool {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub pool: Ref<PoolId>,
    /// The new name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Replaces the whole policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PoolPolicy>,
    /// Refuses with CONFLICT when the stored version is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_version: Option<Int<1, 9_007_199_254_740_991>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeletePool {
    /// Whose pool has the name. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// One that nothing is in: no node, no join token for one, nothing that has not ended. A message says what there is.
    pub pool: Ref<PoolId>,
    /// Decides and looks, and changes nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// As a node takes them: a local account, which also names a file.
fn check_accounts(policy: &PoolPolicy) -> Result<(), InvalidRequest> {
    for (at, account) in policy.ssh_accounts.as_slice().iter().enumerate() {
        let pointer = format!("/policy/sshAccounts/{at}");
        let account = account.as_str();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
        let starts = account.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if !starts || !account.bytes().all(plain) {
            let message = "an account is 1 to 32 of a-z, 0-9, '_', '-', '.', the first a letter or '_'";
            return Err(InvalidRequest::new(pointer, message));
        }
        if policy.ssh_accounts.as_slice()[..at].iter().any(|before| before.as_str() == account) {
            return Err(InvalidRequest::new(pointer, "this account is named twice"));
        }
    }
    Ok(())
}

fn check_policy(policy: Option<&PoolPolicy>) -> Result<(), InvalidRequest> {
    if let Some(policy) = policy {
        check_accounts(policy)?;
    }
    let Some(network) = policy.and_then(|policy| policy.network.as_ref()) else { return Ok(()) };
    if network.gateway.is_some_and(|gateway| !network.subnet.has_host(gateway)) {
        let message = format!("the gateway is no machine's address in {}", network.subnet);
        return Err(InvalidRequest::new("/policy/network/gateway", message));
    }
    let bridge = network.bridge.as_ref().map_or("br0", |bridge| bridge.as_str());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !bridge.bytes().all(plain) || !bridge.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
    {
        let message = "a bridge is 1 to 15 of A-Z, a-z, 0-9, '_', '-', '.', the first a letter or digit";
        return Err(InvalidRequest::new("/policy/network/bridge", message));
    }
    if bridge.starts_with("bc") {
        let message = "names that begin with \"bc\" are those of instances' own interfaces";
        return Err(InvalidRequest::new("/policy/network/bridge", message));
    }
    Ok(())
}

fn check_create(request: &CreatePool) -> Result<(), InvalidRequest> {
    let network = request.policy.as_ref().is_some_and(|policy| policy.network.is_some());
    if network && request.class.0 != PoolClass::VpsHost {
        return Err(InvalidRequest::new("/policy/network", "only a pool of class vps-host has a network"));
    }
    let recreates = request.policy.as_ref().is_some_and(|policy| policy.recreate_on_host_loss.is_some());
    if recreates && request.class.0 != PoolClass::VpsHost {
        let message = "only a pool of class vps-host has instances to be made anew";
        return Err(InvalidRequest::new("/policy/recreateOnHostLoss", message));
    }
    let overcommit = request.policy.as_ref().is_some_and(|policy| policy.overcommit.is_some());
    if overcommit && request.class.0 != PoolClass::VpsHost {
        return Err(InvalidRequest::new("/policy/overcommit", "only a pool of class vps-host overcommits"));
    }
    check_policy(request.policy.as_ref())
}

fn check_update(request: &UpdatePool) -> Result<(), InvalidRequest> {
    if request.name.is_none() && request.policy.is_none() {
        return Err(InvalidRequest::new("", "nothing to change: give name or policy"));
    }
    check_policy(request.policy.as_ref())
}

method!(Create, "pools"."create", Key, "compute-pool", CreatePool => Pool, [NotFound, Conflict], "Creates a pool.", check = check_create);
method!(Get, "pools"."get", Read, "compute-pool", GetPool => Pool, [NotFound], "Shows a pool and what of it is free.");
method!(List, "pools"."list", Read, "compute-pool", ListPools => crate::List<Pool>, [NotFound], "Lists pools.");
method!(Update, "pools"."update", Natural, "compute-pool", UpdatePool => Pool, [NotFound, Conflict, InvalidState], "Renames a pool or replaces its policy.", check = check_update);
method!(Delete, "pools"."delete", Natural, "compute-pool", DeletePool => Pool, [NotFound, InvalidState], "Deletes a pool that nothing is in, with its flavors.");
