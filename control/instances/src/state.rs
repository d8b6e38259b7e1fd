//! An instance as its row says it is, and the moves of it that are pure.

use std::collections::BTreeSet;
use std::time::Duration;

use api::instances::NetworkPolicy;
use capacity::{Room, Seating};
use kernel::Fault;
use kernel::ports::iam::Resource;
use model::lifecycle::{DesiredPower, InstanceEvent, InstanceState, NodeState};
use model::unit::mib_to_gib_up;
use model::{AllocationId, FlavorId, ImageId, InstanceId, NodeId, PoolId, TenantId, Timestamp, UserId};
use store::{Row, RowExt, StoreError};
use wire::proto::agent::InstanceObservedState as Seen;

/// What an instance is made of, by its flavor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub vcpu: u32,
    pub memory_mib: u64,
    pub disk_gib: u64,
    pub gpus: u32,
    pub gpu_model: Option<String>,
    pub seating: Seating,
}

impl Shape {
    pub fn of_row(row: &Row) -> Self {
        let small = |column| u32::try_from(row.get::<_, i32>(column)).unwrap_or(0);
        Self {
            vcpu: small("vcpu"),
            memory_mib: whole(row.get("memory_mib")),
            disk_gib: whole(row.get("disk_gib")),
            gpus: small("gpus"),
            gpu_model: row.get("gpu_model"),
            seating: Seating {
                numa_affine: row.get("numa_affine"),
                pinned: row.get("pinned"),
                hugepages_1gi: row.get::<_, Option<&str>>("hugepages").is_some(),
            },
        }
    }
}

/// Whose it is and what was asked for: all that decisions on it are made by.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub id: InstanceId,
    pub tenant_id: TenantId,
    pub pool_id: PoolId,
    pub pool_name: String,
    pub created_by: UserId,
    pub flavor_id: FlavorId,
    pub flavor_name: String,
    pub image_id: ImageId,
    pub image_name: String,
    pub image_verified: bool,
    pub runtime: String,
    pub network_policy: NetworkPolicy,
    /// It is told something at its first boot.
    pub user_data: bool,
    pub shape: Shape,
}

impl Subject {
    pub fn resource(&self) -> Resource {
        let shape = &self.shape;
        Resource::one("compute-instance", self.id, self.tenant_id)
            .with("resource.tenantId", self.tenant_id.to_string())
            .with("resource.createdBy", self.created_by.to_string())
            .with("resource.pool", self.pool_name.clone())
            .with("resource.poolId", self.pool_id.to_string())
            .with("resource.flavor", self.flavor_name.clone())
            .with("resource.image", self.image_name.clone())
            .with("resource.imageId", self.image_id.to_string())
            .with("resource.imageVerified", self.image_verified)
            .with("resource.networkPolicy", self.network_policy.name())
            .with("resource.userData", self.user_data)
            .with("resource.vcpu", shape.vcpu)
            .with("resource.memoryGiB", mib_to_gib_up(shape.memory_mib))
            .with("resource.diskGiB", shape.disk_gib)
            .with("resource.gpus", shape.gpus)
    }

    fn capabilities(&self) -> BTreeSet<String> {
        let rules = match self.network_policy {
            NetworkPolicy::Egress => None,
            NetworkPolicy::Private | NetworkPolicy::None => Some(NETWORK_POLICY.to_owned()),
        };
        let gpus = (self.shape.gpus > 0).then(|| GPUS.to_owned());
        let seats = self.shape.seating.is_any().then(|| PLACEMENT.to_owned());
        // A daemon of before there was any would make it without.
        let user_data = self.user_data.then(|| USER_DATA.to_owned());
        let driver = [capability(&self.runtime)];
        rules.into_iter().chain(user_data).chain(seats).chain(gpus).chain(driver).collect()
    }

    /// What it needs of a host.
    pub fn room(&self) -> Room {
        let shape = &self.shape;
        Room {
            instance_id: self.id,
            tenant_id: self.tenant_id,
            pool_id: self.pool_id,
            vcpu: shape.vcpu,
            memory_mib: shape.memory_mib,
            disk_gib: shape.disk_gib,
            gpus: shape.gpus,
            gpu_model: shape.gpu_model.clone(),
            capabilities: self.capabilities(),
            seating: shape.seating,
        }
    }
}

pub(crate) fn network_policy(row: &Row) -> Result<NetworkPolicy, StoreError> {
    let policy = NetworkPolicy::parse(row.get("network_policy"));
    policy.ok_or_else(|| StoreError::decode("instances", "column \"network_policy\""))
}

/// What a host advertises that sees to whom its instances speak with.
const NETWORK_POLICY: &str = "instance.network-policy";
/// And that tells them their user data.
const USER_DATA: &str = "instance.user-data";

/// What a host advertises that gives its instances the CPUs, memory and pages that they are to have. An older one would
/// drop that unseen.
const PLACEMENT: &str = "instance.placement";

/// What a host advertises that can hand GPUs to its instances: its IOMMU is on.
const GPUS: &str = "instance.gpus";

/// What a host advertises for each driver that it runs.
pub(crate) fn capability(runtime: &str) -> String {
    format!("runtime.{runtime}")
}

/// Where it is.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub allocation_id: AllocationId,
    pub node_id: NodeId,
    pub node_name: String,
    pub node_state: NodeState,
    pub last_heartbeat_at: Option<Timestamp>,
    /// By a person, and it was not heard of since.
    pub declared_dead: bool,
    /// It was placed before the database was restored, so later rows may be forgotten.
    pub before_restore: bool,
    pub address: Option<String>,
    pub placed_at: Timestamp,
    /// Why it does not have what its flavor asks for of the host; empty when it has.
    pub degraded: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub subject: Subject,
    pub name: Option<String>,
    pub tenant_name: String,
    pub created_by_name: String,
    pub state: InstanceState,
    pub desired: DesiredPower,
    pub waiting_reason: String,
    /// What its host said last that was not what was asked.
    pub said_reason: String,
    pub said_message: String,
    pub said_at: Option<Timestamp>,
    /// Since when its host has no room to start it, and by name all that had none.
    pub exhausted_at: Option<Timestamp>,
    pub exhausted_hosts: Vec<String>,
    /// Its pool has it made anew elsewhere when its host is lost and fenced.
    pub recreates: bool,
    /// Of its image.
    pub login_user: Option<String>,
    pub state_since: Timestamp,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub placed: Option<Placed>,
    pub now: Timestamp,
}

impl Stored {
    pub fn of_row(row: &Row) -> Result<Self, StoreError> {
        let subject = Subject {
            id: row.id("instance_id"),
            tenant_id: row.id("tenant_id"),
            pool_id: row.id("pool_id"),
            pool_name: row.get("pool_name"),
            created_by: row.id("created_by"),
            flavor_id: row.id("flavor_id"),
            flavor_name: row.get("flavor_name"),
            image_id: row.id("image_id"),
            image_name: row.get("image_name"),
            image_verified: row.get("image_verified"),
            runtime: row.get("runtime"),
            network_policy: network_policy(row)?,
            user_data: row.get("user_data"),
            shape: Shape::of_row(row),
        };
        Ok(Self {
            subject,
            name: row.get("name"),
            login_user: row.get("login_user"),
            tenant_name: row.get("tenant_name"),
            created_by_name: row.get("created_by_name"),
            state: state_of(row)?,
            desired: desired_of(row)?,
            waiting_reason: row.get("waiting_reason"),
            said_reason: row.get("said_reason"),
            said_message: row.get("said_message"),
            said_at: row.opt_ts("said_at"),
            exhausted_at: row.opt_ts("exhausted_at"),
            exhausted_hosts: row.get("exhausted_hosts"),
            recreates: row.get::<_, Option<bool>>("recreates").unwrap_or(false),
            state_since: row.ts("state_since"),
            created_at: row.ts("created_at"),
            updated_at: row.ts("updated_at"),
            ended_at: row.opt_ts("ended_at"),
            placed: placed_of(row)?,
            now: row.ts("now"),
        })
    }

    /// Nothing is under way any more.
    pub fn is_settled(&self) -> bool {
        !self.state.transitional()
    }
}

fn undecodable(column: &'static str) -> StoreError {
    StoreError::decode("instance", format!("column {column:?}"))
}

pub(crate) fn state_of(row: &Row) -> Result<InstanceState, StoreError> {
    InstanceState::parse(row.get("state")).ok_or_else(|| undecodable("state"))
}

pub(crate) fn desired_of(row: &Row) -> Result<DesiredPower, StoreError> {
    DesiredPower::parse(row.get("desired")).ok_or_else(|| undecodable("desired"))
}

fn placed_of(row: &Row) -> Result<Option<Placed>, StoreError> {
    let Some(allocation_id) = row.opt_id("allocation_id") else { return Ok(None) };
    let node_state = NodeState::parse(row.get("node_state")).ok_or_else(|| undecodable("node_state"))?;
    Ok(Some(Placed {
        allocation_id,
        node_id: row.id("node_id"),
        node_name: row.get("node_name"),
        node_state,
        last_heartbeat_at: row.opt_ts("last_heartbeat_at"),
        declared_dead: row.get("declared_dead"),
        before_restore: row.get::<_, Option<bool>>("before_restore").unwrap_or(false),
        address: row.get("address"),
        placed_at: row.ts("placed_at"),
        degraded: row.get("degraded"),
    }))
}

/// A move that its caller has made sure of.
pub(crate) fn step(state: InstanceState, event: InstanceEvent) -> Result<InstanceState, Fault> {
    state
        .next(event)
        .map_err(|refused| Fault::Internal { doing: "move an instance", source: Box::new(refused) })
}

/// What a host's word on the present revision comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is as was asked, or cannot be.
    Moves(InstanceEvent),
    /// Nothing of it is left, as was asked.
    Gone,
    /// It is on its way, and the host says what it waits for.
    Waits,
    /// Nothing to act on.
    Nothing,
}

pub(crate) fn heard(desired: DesiredPower, seen: Seen) -> Heard {
    match (desired, seen) {
        (DesiredPower::Running, Seen::Running) => Heard::Moves(InstanceEvent::SeenRunning),
        (DesiredPower::Stopped, Seen::Stopped) => Heard::Moves(InstanceEvent::SeenStopped),
        (DesiredPower::Deleted, Seen::Absent) => Heard::Gone,
        (_, Seen::Error) => Heard::Moves(InstanceEvent::SeenError),
        (_, Seen::Pending) => Heard::Waits,
        // The host is not where it was asked to be yet, and says so again when it is.
        (DesiredPower::Running, Seen::Stopped | Seen::Paused | Seen::Absent)
        | (DesiredPower::Stopped, Seen::Running | Seen::Paused | Seen::Absent)
        | (DesiredPower::Deleted, Seen::Running | Seen::Stopped | Seen::Paused)
        | (_, Seen::Unspecified) => Heard::Nothing,
    }
}

/// How long a state may last before somebody should look.
pub(crate) fn patience(state: InstanceState) -> Option<Duration> {
    const MINUTE: Duration = Duration::from_secs(60);
    match state {
        // For a host that has room; and then a large image over a slow line is among it.
        InstanceState::Scheduling | InstanceState::Provisioning => Some(30 * MINUTE),
        InstanceState::Starting | InstanceState::Stopping => Some(10 * MINUTE),
        InstanceState::Deleting => Some(15 * MINUTE),
        InstanceState::Pending
        | InstanceState::Running
        | InstanceState::Stopped
        | InstanceState::Deleted
        | InstanceState::Error
        | InstanceState::Lost => None,
    }
}

/// A number of a bigint column.
pub(crate) fn whole(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A number on its way into a bigint column.
pub(crate) fn stored(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_settles_an_instance_only_when_it_is_what_was_asked() {
        use DesiredPower as D;
        let cases = [
            (D::Running, Seen::Running, Heard::Moves(InstanceEvent::SeenRunning)),
            (D::Running, Seen::Stopped, Heard::Nothing),
            (D::Running, Seen::Absent, Heard::Nothing),
            (D::Stopped, Seen::Running, Heard::Nothing),
            (D::Stopped, Seen::Stopped, Heard::Moves(InstanceEvent::SeenStopped)),
            (D::Stopped, Seen::Absent, Heard::Nothing),
            (D::Deleted, Seen::Absent, Heard::Gone),
            (D::Deleted, Seen::Stopped, Heard::Nothing),
            (D::Deleted, Seen::Error, Heard::Moves(InstanceEvent::SeenError)),
            (D::Running, Seen::Pending, Heard::Waits),
            (D::Running, Seen::Unspecified, Heard::Nothing),
        ];
        for (desired, seen, expected) in cases {
            assert_eq!(heard(desired, seen), expected, "{desired:?} {seen:?}");
        }
    }

    #[test]
    fn whatever_is_under_way_has_a_time_to_be_done_in() {
        // A draft is its call's to end.
        let under_way = |state: &InstanceState| state.transitional() && *state != InstanceState::Pending;
        for state in InstanceState::ALL {
            assert_eq!(patience(state).is_some(), under_way(&state), "{state:?}");
        }
    }
}
