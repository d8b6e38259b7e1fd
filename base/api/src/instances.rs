//! Instances: virtual machines on hosts of a pool.

use model::lifecycle::{DesiredPower, InstanceState};
use model::{AllocationId, FlavorId, ImageId, InstanceId, NodeId, PoolId, TenantId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::secrets::{Hidden, SECRET_BYTES_MAX};
use crate::words::words;
use crate::{
    Condition, Cursor, Id, IdempotencyKey, InvalidRequest, Limit, Many, Name, Named, Ref, Text, Time, Wait,
    Word,
};

words! {
    /// With whom an instance may speak. Whatever it is, none speaks as another.
    NetworkPolicy, "network policy" {
        /// With everybody.
        Egress = "egress",
        /// With its own network and its host.
        Private = "private",
        /// With its host alone.
        None = "none",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub id: Id<InstanceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub tenant: Named<TenantId>,
    pub pool: Named<PoolId>,
    pub created_by: Named<UserId>,
    pub state: Word<InstanceState>,
    /// What it is to be.
    pub desired_state: Word<DesiredPower>,
    /// What its host says of it, and that it takes longer than it should.
    pub conditions: Vec<Condition>,
    pub flavor: Named<FlavorId>,
    pub image: Named<ImageId>,
    pub vcpu: u32,
    #[serde(rename = "memoryGiB")]
    pub memory_gib: u64,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    #[serde(rename = "diskGiB")]
    pub disk_gib: u64,
    pub gpus: u32,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Named<NodeId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Id<AllocationId>>,
    /// In its pool's network.
    pub addresses: Vec<String>,
    pub network_policy: Word<NetworkPolicy>,
    /// Whom its image lets its SSH keys log in as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_user: Option<String>,
    /// Why it is not placed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
    pub created_at: Time,
    pub updated_at: Time,
    /// Since when it is in its state.
    pub state_since: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateInstance {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Of class `vps-host`.
    pub pool: Ref<PoolId>,
    /// One that the pool offers.
    pub flavor: Ref<FlavorId>,
    /// One that the tenant may use.
    pub image: Ref<ImageId>,
    /// Its host name, and shown in lists; need not be unique. Made of its id when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// OpenSSH public keys of those who may log in as the image's user, one line each.
    #[serde(default, skip_serializing_if = "Many::is_empty")]
    pub ssh_keys: Many<Text<1, 8192>, 16>,
    /// What the guest is told at its first boot, as cloud-init takes it; or `secret://NAME`, for what `secrets put` keeps. At most
    /// 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<Hidden>,
    /// `egress` when not given; another one only in a pool with a network, whose addresses instances are told by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<Word<NetworkPolicy>>,
    /// Makes it and does not start it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stopped: bool,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
    /// Until it runs, or cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetInstance {
    /// Its id, or its name when no other that is there has it.
    pub id: Ref<InstanceId>,
    /// Whose instance has the name. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Until nothing is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListInstances {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Ref<PoolId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref<NodeId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<InstanceState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Also those that were deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

/// Of a start, a stop, a start anew, a deletion, or a way out of where it is stuck.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeInstance {
    /// Its id, or its name when no other that is there has it.
    pub id: Ref<InstanceId>,
    /// Whose instance has the name. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Until it is as asked, or cannot be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

/// Onto another flavor of its pool, on the host where it is.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResizeInstance {
    /// One that is stopped: its id, or its name when no other that is there has it.
    pub id: Ref<InstanceId>,
    /// Whose instance has the name. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// With as many GPUs, and no less of a disk.
    pub flavor: Ref<FlavorId>,
    /// Until its host has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

fn check_create(request: &CreateInstance) -> Result<(), InvalidRequest> {
    for (at, key) in request.ssh_keys.as_slice().iter().enumerate() {
        if key.as_str().contains("PRIVATE KEY") {
            let message = "this is a private key: give the public one, the file that ends in .pub, and replace this one";
            return Err(InvalidRequest::new(format!("/sshKeys/{at}"), message));
        }
    }
    request.user_data.as_ref().map_or(Ok(()), check_user_data)
}

fn check_user_data(given: &Hidden) -> Result<(), InvalidRequest> {
    let invalid = |message: String| Err(InvalidRequest::new("/userData", message));
    match user_data(given) {
        UserData::Secret(name) if name.parse::<Name>().is_err() => {
            invalid("after secret:// comes the name that better-compute secrets put NAME gave".to_owned())
        }
        UserData::Own(text) if text.len() > SECRET_BYTES_MAX => invalid(format!(
            "it has {} bytes, and at most {SECRET_BYTES_MAX} are possible. Cloud-init takes it compressed: gzip the file, then \
             better-compute secrets put NAME --file FILE.gz, and give secret://NAME",
            text.len()
        )),
        UserData::Secret(_) | UserData::Own(_) => Ok(()),
    }
}

/// What user data is given as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UserData<'a> {
    /// By the name of a secret of the tenant.
    Secret(&'a str),
    /// Itself.
    Own(&'a str),
}

pub fn user_data(given: &Hidden) -> UserData<'_> {
    let text = given.expose();
    text.strip_prefix("secret://").map_or(UserData::Own(text), UserData::Secret)
}

method!(Create, "instances"."create", Key, "compute-instance", CreateInstance => Instance, [NotFound, Conflict, QuotaExceeded, CapacityUnavailable, Unsupported], "Makes a virtual machine.", check = check_create);
method!(Get, "instances"."get", Read, "compute-instance", GetInstance => Instance, [NotFound], "Shows an instance.");
method!(List, "instances"."list", Read, "compute-instance", ListInstances => crate::List<Instance>, [NotFound], "Lists instances.");
method!(Start, "instances"."start", Natural, "compute-instance", ChangeInstance => Instance, [NotFound, InvalidState], "Starts an instance.");
method!(Stop, "instances"."stop", Natural, "compute-instance", ChangeInstance => Instance, [NotFound, InvalidState], "Stops an instance, and keeps its disk and its place.");
method!(Reboot, "instances"."reboot", Natural, "compute-instance", ChangeInstance => Instance, [NotFound, InvalidState], "Stops an instance that runs and starts it again.");
method!(Resize, "instances"."resize", Natural, "compute-instance", ResizeInstance => Instance, [NotFound, InvalidState, QuotaExceeded, CapacityUnavailable, Unsupported], "Gives a stopped instance another size, where it is.");
method!(Recover, "instances"."recover", Natural, "compute-instance", ChangeInstance => Instance, [NotFound, InvalidState], "Asks the host of an instance once more for what is wanted of it, when it failed, is stuck or is lost.");
method!(ForceRelease, "instances"."forceRelease", Natural, "compute-instance", ChangeInstance => Instance, [NotFound, InvalidState], "Takes an instance off a host that was declared dead: it is made anew from its image on another, or ends if it is being deleted.");
method!(Delete, "instances"."delete", Natural, "compute-instance", ChangeInstance => Instance, [NotFound], "Deletes an instance with its disk.");
