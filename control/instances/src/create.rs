//! `instances.create`: decision, admission, place.
//!
//! The decision is made on what is asked for and outside any transaction. Admission is one transaction: idempotency key,
//! row, quota and, when there is a host with room, its booking and the address; so that a create usually comes back placed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::images::ImageState;
use api::instances::{CreateInstance, Instance, NetworkPolicy};
use api::pools::{Network, PoolClass};
use api::{Method, Ref};
use capacity::{Place, Room};
use kernel::events::EventKind;
use kernel::idempotency::Key;
use kernel::module::wake_in;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::{DesiredPower, InstanceEvent, InstanceState};
use model::{AllocationId, ErrorCode, Id, InstanceId, PoolId, SecretId, TenantId};
use pki::ssh::SshPublicKey;
use serde_json::json;
use store::{IsRetryable, Op, RowExt, StoreError, Tx};
use uuid::Uuid;

use crate::ipam::{Leased, lease};
use crate::reconcile::{PLACE_AGAIN, QUEUE, instance_key};
use crate::state::{Shape, Subject, patience, step, stored};
use crate::user_data::Told;
use crate::{Instances, sql, view};

const INSTANCE_ADMIT: Op = Op::new("instance_admit");
const ACTION: &str = api::instances::Create::ACTION;
pub(crate) const KIND: &str = "compute-instance";

/// What runs an instance where its pool does not say.
const RUNTIME: &str = "libvirt-kvm";
/// Placements tried in a row when others are faster. Each looks anew.
pub(crate) const TRIES_MAX: u32 = 8;

/// Why a transaction that places was undone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    /// Another booking or lease was there first, or the node takes no work any more: look again.
    #[error("the place was taken")]
    Taken,
    #[error("a quota is used up")]
    OverQuota,
    #[error("the pool's network has no free address")]
    NoAddress,
    /// A call at the same time under the same idempotency key was first, and made this.
    #[error("an earlier call made {0}")]
    Earlier(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<StoreError> for Stop {
    fn from(err: StoreError) -> Self {
        let taken = capacity::is_taken(&err)
            || err.is_unique("ip_leases_in_pool")
            || err.is_unique("ip_leases_on_host")
            || err.is_unique("instance_allocations_by_node")
            || err.is_unique("instances_one_mac");
        if taken {
            Stop::Taken
        } else if capacity::is_over_quota(&err) {
            Stop::OverQuota
        } else {
            Stop::Fault(err.into())
        }
    }
}

impl IsRetryable for Stop {
    fn is_retryable(&self) -> bool {
        match self {
            Stop::Taken | Stop::OverQuota | Stop::NoAddress | Stop::Earlier(_) => false,
            Stop::Fault(fault) => fault.is_retryable(),
        }
    }
}

/// What is to be admitted.
struct Asked {
    subject: Subject,
    name: Option<String>,
    ssh_keys: Vec<String>,
    told: Told,
    desired: DesiredPower,
    network: Option<Network>,
    key: Option<Key>,
}

pub(crate) async fn create(
    instances: Instances,
    call: Arc<Call>,
    request: CreateInstance,
) -> Result<Instance, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = match given {
        Some(given) => Key::of(&call, tenant_id, Some(given), &instances.told_apart(&request)?)?,
        None => None,
    };
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    if let Some(key) = &key
        && let Some(made) = key.replay(instances.store()).await?
    {
        return replayed(&instances, &call, &made, wait).await;
    }
    let mut asked = asked(&instances, &call, tenant_id, key, &request).await?;
    call.require_in(ACTION, &asked.subject.resource()).await?;
    asked.told = instances.told(&call, tenant_id, &request).await?;
    let id = asked.subject.id;
    call.about(format!("instance/{id}"));
    match instances.admit(&call, &asked).await {
        Ok(()) => {}
        Err(Stop::Earlier(made)) => return replayed(&instances, &call, &made, wait).await,
        Err(stop) => return Err(instances.refusal(&asked, stop).await),
    }
    Ok(view::instance(&instances.settled(id, wait).await?))
}

/// What an earlier call of the same request made, as it is now.
async fn replayed(
    instances: &Instances,
    call: &Call,
    made: &str,
    wait: Option<Duration>,
) -> Result<Instance, Fault> {
    let id: InstanceId = kernel::idempotency::made(made)?;
    let found = instances.stored_or_not_found(id).await?;
    call.require_in(ACTION, &found.subject.resource()).await?;
    call.about(format!("instance/{id}"));
    Ok(view::instance(&instances.settled(id, wait).await?))
}

pub(crate) fn parts<T: Id>(reference: &Ref<T>) -> (Option<Uuid>, Option<&str>) {
    match reference {
        Ref::Id(id) => (Some(id.uuid()), None),
        Ref::Name(name) => (None, Some(name)),
    }
}

async fn asked(
    instances: &Instances,
    call: &Call,
    tenant_id: TenantId,
    key: Option<Key>,
    request: &CreateInstance,
) -> Result<Asked, Fault> {
    let pool = instances.capacity().pool_of_instances(call, ACTION, KIND, tenant_id, &request.pool).await?;
    if pool.class != PoolClass::VpsHost.name() {
        let message = format!(
            "pool {:?} is of class {}: instances go into pools of class vps-host",
            pool.name, pool.class
        );
        return Err(ApiError::invalid("/pool", message).into());
    }
    let (flavor_id, flavor_name) = parts(&request.flavor);
    let values: [&(dyn store::Param + Sync); 3] = [&pool.id.uuid(), &flavor_id, &flavor_name];
    let flavor = instances.store().read_opt(&sql::FLAVOR_FIND, &values).await?;
    let (image_id, image_name) = parts(&request.image);
    let values: [&(dyn store::Param + Sync); 3] = [&tenant_id.uuid(), &image_id, &image_name];
    let image = instances.store().read_opt(&sql::IMAGE_FIND, &values).await?;
    let (Some(flavor), Some(image)) = (&flavor, &image) else {
        // Who may make nothing in this tenant is told nothing of what there is.
        call.require_in(ACTION, &kernel::ports::iam::Resource::any(KIND, tenant_id)).await?;
        return Err(match &flavor {
            None => ApiError::not_found("flavor", &request.flavor).detail("pool", pool.name),
            Some(_) => ApiError::not_found("image", &request.image),
        }
        .into());
    };
    if crate::images::state_of(image) == ImageState::Awaited {
        let message =
            format!("image {:?} has not come yet: send its bytes first", image.get::<_, &str>("name"));
        return Err(ApiError::new(ErrorCode::InvalidState, message).into());
    }
    let network_policy = request.network_policy.map_or(NetworkPolicy::Egress, |policy| policy.0);
    if network_policy != NetworkPolicy::Egress && pool.policy.network.is_none() {
        let message = format!(
            "pool {:?} has no network, by whose addresses instances are told from each other: only egress is possible",
            pool.name
        );
        return Err(ApiError::invalid("/networkPolicy", message).into());
    }
    Ok(Asked {
        subject: Subject {
            id: instances.id(),
            tenant_id,
            pool_id: pool.id,
            pool_name: pool.name,
            created_by: call.principal.user_id,
            flavor_id: flavor.id("flavor_id"),
            flavor_name: flavor.get("name"),
            image_id: image.id("image_id"),
            image_name: image.get("name"),
            image_verified: image.get("verified"),
            runtime: RUNTIME.to_owned(),
            network_policy,
            user_data: request.user_data.is_some(),
            shape: Shape::of_row(flavor),
        },
        name: request.name.as_ref().map(|name| name.as_str().to_owned()),
        ssh_keys: ssh_keys(request)?,
        told: Told::Nothing,
        desired: if request.stopped { DesiredPower::Stopped } else { DesiredPower::Running },
        network: pool.policy.network,
        key,
    })
}

fn ssh_keys(request: &CreateInstance) -> Result<Vec<String>, ApiError> {
    let given = request.ssh_keys.as_slice().iter().enumerate();
    given
        .map(|(at, key)| {
            let parsed: Result<SshPublicKey, _> = key.as_str().trim().parse();
            parsed
                .map(|key| key.line().to_owned())
                .map_err(|err| ApiError::invalid(&format!("/sshKeys/{at}"), err.to_string()))
        })
        .collect()
}

impl Instances {
    /// Admits it, placed if there is a place.
    async fn admit(&self, call: &Call, asked: &Asked) -> Result<(), Stop> {
        let room = &asked.subject.room();
        let nowhere = BTreeSet::new();
        for tried in 1..=TRIES_MAX + 1 {
            // The last try goes without a place: the queue looks for one.
            let place = match tried <= TRIES_MAX {
                true => self.capacity().room_find(room, &nowhere).await?,
                false => None,
            };
            let reason = match &place {
                Some(_) => String::new(),
                None => self.capacity().room_reason(room, &asked.subject.pool_name).map_err(Fault::from)?,
            };
            let (chosen, reason) = (place.as_ref(), reason.as_str());
            let done = call
                .tx(self.store(), INSTANCE_ADMIT, |tx| {
                    Box::pin(async move { self.admit_in(tx, asked, room, chosen, reason).await })
                })
                .await;
            match done {
                Ok(version) => {
                    if let (Some(place), Some(version)) = (place, version) {
                        place.confirm(version);
                    }
                    return Ok(());
                }
                Err(Stop::Taken) => tracing::debug!(instance_id = %asked.subject.id, "the place was taken"),
                Err(stop) => return Err(stop),
            }
        }
        Err(Stop::Taken)
    }

    async fn admit_in(
        &self,
        tx: &mut Tx<'_>,
        asked: &Asked,
        room: &Room,
        place: Option<&Place<'_>>,
        reason: &str,
    ) -> Result<Option<i64>, Stop> {
        let subject = &asked.subject;
        if let Some(key) = &asked.key
            && let Some(made) = key.claim(tx, &subject.id.to_string()).await?
        {
            return Err(Stop::Earlier(made));
        }
        let admitted = step(InstanceState::Pending, InstanceEvent::Admitted)?;
        let state = match place {
            Some(_) => step(admitted, InstanceEvent::Placed)?,
            None => admitted,
        };
        let told = self.keep_in(tx, subject, &asked.told).await?;
        self.insert(tx, asked, state, reason, told).await?;
        self.capacity().room_hold(tx, room).await?;
        let data = json!({
            "state": state.name(), "desiredState": asked.desired.name(), "poolId": subject.pool_id.to_string(),
            "name": asked.name,
        });
        self.tell(tx, EventKind::InstanceCreated, subject.id, subject.tenant_id, data).await?;
        match place {
            Some(place) => {
                self.place_in(tx, room, place, asked.network.as_ref(), asked.desired, state).await.map(Some)
            }
            None => {
                wake_in(tx, QUEUE, &instance_key(subject.id), PLACE_AGAIN).await?;
                Ok(None)
            }
        }
    }

    async fn insert(
        &self,
        tx: &mut Tx<'_>,
        asked: &Asked,
        state: InstanceState,
        reason: &str,
        user_data: Option<SecretId>,
    ) -> Result<(), StoreError> {
        let Asked { subject, name, ssh_keys, desired, .. } = asked;
        let shape = &subject.shape;
        let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        tx.execute(
            &sql::INSTANCE_INSERT,
            &[
                &subject.id.uuid(),
                &subject.tenant_id.uuid(),
                &subject.pool_id.uuid(),
                &subject.flavor_id.uuid(),
                &subject.image_id.uuid(),
                &subject.created_by.uuid(),
                name,
                &state.name(),
                &desired.name(),
                &subject.runtime,
                &small(shape.vcpu),
                &stored(shape.memory_mib),
                &stored(shape.disk_gib),
                &small(shape.gpus),
                &shape.gpu_model,
                ssh_keys,
                &subject.network_policy.name(),
                &reason,
                &user_data.map(SecretId::uuid),
            ],
        )
        .await?;
        Ok(())
    }

    /// Books the place and leases the address, for an instance whose row says already that it is placed. Gives the version
    /// that the node's books have when this commits.
    pub(crate) async fn place_in(
        &self,
        tx: &mut Tx<'_>,
        room: &Room,
        place: &Place<'_>,
        network: Option<&Network>,
        desired: DesiredPower,
        state: InstanceState,
    ) -> Result<i64, Stop> {
        let (id, pool_id, node_id): (_, PoolId, _) = (room.instance_id, room.pool_id, place.node_id());
        let allocation_id: AllocationId = self.id();
        let version = self.capacity().room_book(tx, room, place, allocation_id).await?.ok_or(Stop::Taken)?;
        let addresses: Vec<String> = match lease(tx, network, pool_id, node_id, allocation_id).await? {
            Leased::None => Vec::new(),
            Leased::Address(address) => vec![address],
            Leased::Exhausted => return Err(Stop::NoAddress),
        };
        let data = json!({
            "state": state.name(), "desiredState": desired.name(), "poolId": pool_id.to_string(),
            "nodeId": node_id.to_string(), "allocationId": allocation_id.to_string(), "addresses": addresses,
        });
        self.tell(tx, EventKind::InstanceScheduled, id, room.tenant_id, data).await?;
        if let Some(patience) = patience(state) {
            wake_in(tx, QUEUE, &instance_key(id), patience).await?;
        }
        Ok(version)
    }

    /// What the caller is told of an admission that was undone.
    async fn refusal(&self, asked: &Asked, stop: Stop) -> Fault {
        let busy = |message: &str| {
            Fault::from(ApiError { retry_after: Some(1), ..ApiError::new(ErrorCode::Unavailable, message) })
        };
        match stop {
            Stop::Fault(Fault::Store(err)) if err.is_check("instances_image_is_there") => {
                ApiError::not_found("image", &asked.subject.image_name).into()
            }
            Stop::Fault(fault) => fault,
            Stop::NoAddress => no_address(&asked.subject.pool_name).into(),
            Stop::OverQuota => match self.capacity().room_refusal(&asked.subject.room()).await {
                Ok(Some(refusal)) => refusal.into(),
                Ok(None) => busy("a quota was used up and is not any more: try again"),
                Err(err) => err.into(),
            },
            Stop::Taken | Stop::Earlier(_) => busy("too many admissions at once: try again"),
        }
    }
}

fn no_address(pool_name: &str) -> ApiError {
    let message =
        format!("the network of pool {pool_name:?} has no free address: delete an instance, or widen it");
    ApiError::new(ErrorCode::CapacityUnavailable, message).detail("pool", pool_name)
}
