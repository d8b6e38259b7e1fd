//! `reservations.create`: draft, decision, admission.
//!
//! The decision is made on the draft and outside any transaction. Admission is one transaction: quota, idempotency key and
//! mostly the booking itself, so that a create usually comes back placed. A refusal deletes the draft; a draft that a crash
//! left is deleted by the sweep. Creates that come together are one transaction: see `many`. Their drafts are in memory.

use std::sync::Arc;
use std::time::Duration;

use api::Method;
use api::reservations::{Binding, CreateReservation, Reservation};
use kernel::events::EventKind;
use kernel::idempotency::Key;
use kernel::module::wake_in;
use kernel::run::PLACE_CHANNEL;
use kernel::{ApiError, Call, Fault, ResultExt};
use model::lifecycle::{ReservationEvent, ReservationState};
use model::{AllocationId, ErrorCode, ReservationId, TenantId, Timestamp};
use placer::{Claim, Placement};
use serde_json::json;
use store::Op;

use crate::explain::{never, waiting};
use crate::many::{Creating, Made};
use crate::owner::{Standing, fenced};
use crate::place::{Placing, Stop, TRIES_MAX, limits_of, quota_placed};
use crate::pools::PoolRef;
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::state::{Ask, Held, HeldDevice, Reserved, Subject, step, stored};
use crate::{Capacity, sql, view};

const RESERVATION_DRAFT: Op = Op::new("reservation_draft");
const RESERVATION_ADMIT: Op = Op::new("reservation_admit");
const RESERVATION_REFUSE: Op = Op::new("reservation_refuse");

const HOUR: Duration = Duration::from_secs(3600);
/// What waits is looked at this long after it began to: a burst of creates on a full pool is one look.
pub(crate) const FIRST_LOOK: Duration = Duration::from_millis(250);
/// What is told of a reservation that the owner of its pool has not looked at yet.
pub(crate) const HANDED: &str = "it is about to be placed";
/// An owner looks at once; a create is not held much longer than one that is placed here.
const HANDED_WAIT: Duration = Duration::from_secs(1);

const ACTION: &str = api::reservations::Create::ACTION;

pub(crate) async fn create(
    capacity: Capacity,
    call: Arc<Call>,
    request: CreateReservation,
) -> Result<Reservation, Fault> {
    let tenant_id = request.tenant.map_or(call.principal.tenant_id, |tenant| tenant.get());
    let given = request.idempotency_key.as_ref().map(|key| key.as_str());
    let key = Key::of(&call, tenant_id, given, &request)?;
    let wait = request.wait.map(|wait| Duration::from_millis(wait.timeout_ms.get()));
    if let Some(key) = &key
        && let Some(made) = key.replay(capacity.store()).await?
    {
        return replayed(&capacity, &call, &made, wait).await;
    }
    let pool = capacity.pool_to_book_from(&call, ACTION, tenant_id, &request.pool).await?;
    let subject = draft_of(&capacity, &call, tenant_id, &pool, &request)?;
    if request.dry_run {
        return dry_run(&capacity, &call, subject, &request).await;
    }
    call.about(format!("reservation/{}", subject.id));
    let id = subject.id;
    let name = request.name.as_ref().map(|name| name.as_str().to_owned());
    let what = Creating { call: call.clone(), subject, name, key };
    let (reserved, handed) = match capacity.make(what).await? {
        Made::Mine { reserved, handed } => (*reserved, handed),
        Made::Earlier(made) => return replayed(&capacity, &call, &made, wait).await,
    };
    let reserved = match (wait, handed) {
        (Some(_), _) => capacity.settled(id, wait, Reserved::is_up_or_over).await?,
        (None, true) => capacity.settled(id, Some(HANDED_WAIT), Reserved::was_looked_at).await?,
        (None, false) => reserved,
    };
    Ok(view::reservation(&reserved))
}

/// What an earlier call of the same request made, as it is now.
async fn replayed(
    capacity: &Capacity,
    call: &Call,
    made: &str,
    wait: Option<Duration>,
) -> Result<Reservation, Fault> {
    let id: ReservationId = made.parse().doing("read what an idempotency key points at")?;
    let reserved = capacity.reserved(id).await?.ok_or_else(|| ApiError::not_found("reservation", id))?;
    call.require_in(ACTION, &reserved.subject.resource()).await?;
    call.about(format!("reservation/{id}"));
    let reserved = capacity.settled(id, wait, Reserved::is_up_or_over).await?;
    Ok(view::reservation(&reserved))
}

fn draft_of(
    capacity: &Capacity,
    call: &Call,
    tenant_id: TenantId,
    pool: &PoolRef,
    request: &CreateReservation,
) -> Result<Subject, Fault> {
    let hours = request.hours.map(|hours| hours.get());
    let expires_at = match (hours, request.expires_at) {
        (Some(hours), _) => Some(call.now.saturating_add(HOUR * u32::try_from(hours).unwrap_or(u32::MAX))),
        (None, Some(end)) => Some(end_within(call.now, call.now, end.0)?),
        (None, None) => None,
    };
    let ask = Ask {
        gpus: request.gpus.map_or(0, |gpus| gpus.get_u32()),
        gpu_model: request.gpu_model.as_ref().map(|model| model.as_str().to_owned()),
        vcpu: request.vcpu.map_or(0, |vcpu| vcpu.get_u32()),
        memory_mib: request.memory_mib(),
        hugepages_1gi: request.hugepages_1gi.map_or(0, |pages| pages.get()),
        whole_node: request.whole_node,
        binding: request.binding.map_or(Binding::Hold, |binding| binding.0),
        selector: request.selector.clone().map(|selector| selector.into_map()).unwrap_or_default(),
    };
    Ok(Subject {
        id: capacity.id(),
        tenant_id,
        pool_id: pool.id,
        pool_name: pool.name.clone(),
        pool_class: pool.class.clone(),
        created_by: call.principal.user_id,
        ask,
        starts_at: call.now,
        expires_at,
    })
}

/// An end that is yet to come and not beyond what a reservation may last.
pub(crate) fn end_within(
    now: Timestamp,
    starts_at: Timestamp,
    end: Timestamp,
) -> Result<Timestamp, ApiError> {
    let latest = starts_at.saturating_add(HOUR * api::reservations::RESERVATION_HOURS_MAX as u32);
    if end <= now {
        return Err(ApiError::invalid(
            "/expiresAt",
            format!("the end {end} is not in the future: it is {now}"),
        ));
    }
    if end > latest {
        return Err(ApiError::invalid("/expiresAt", format!("a reservation ends by {latest} at the latest")));
    }
    Ok(end)
}

fn unavailable(message: &str) -> ApiError {
    ApiError { retry_after: Some(1), ..ApiError::new(ErrorCode::Unavailable, message) }
}

pub(crate) enum Admitted {
    Mine,
    /// A call at the same time under the same key was first, and made this.
    Earlier(String),
}

impl Capacity {
    /// Decides on a create and does it: together with others, when this process does so.
    async fn make(&self, what: Creating) -> Result<Made, Fault> {
        if self.is_started() {
            what.call.require_in(ACTION, &what.subject.resource()).await?;
            return self.create_with_others(what).await;
        }
        let resource = what.subject.resource();
        self.make_alone(&what, what.call.require_in(ACTION, &resource)).await
    }

    /// Draft, decision, admission, by itself.
    pub(crate) async fn make_alone(
        &self,
        what: &Creating,
        decision: impl Future<Output = Result<(), Fault>>,
    ) -> Result<Made, Fault> {
        let Creating { call, subject, name, key } = what;
        self.draft(subject, name.as_deref()).await?;
        let admitted = match decision.await {
            Ok(()) => self.admit(call, subject, key.as_ref()).await,
            Err(fault) => Err(fault),
        };
        match admitted {
            Ok(Admitted::Mine) => {
                let reserved = Box::new(self.reserved_or_not_found(subject.id).await?);
                Ok(Made::Mine { reserved, handed: self.standing(subject.pool_id) == Standing::Theirs })
            }
            Ok(Admitted::Earlier(made)) => {
                self.refuse(subject.id).await?;
                Ok(Made::Earlier(made))
            }
            Err(fault) => {
                // What the caller is told is the refusal; a draft that stays is the sweep's.
                if let Err(err) = self.refuse(subject.id).await {
                    tracing::warn!(reservation_id = %subject.id, err = kit::chain(&err), "draft was not deleted");
                }
                Err(fault)
            }
        }
    }

    async fn draft(&self, subject: &Subject, name: Option<&str>) -> Result<(), Fault> {
        let ask = &subject.ask;
        let selector = &serde_json::to_value(&ask.selector).doing("encode a selector")?;
        let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        self.store()
            .tx(RESERVATION_DRAFT, |tx| {
                Box::pin(async move {
                    let (starts_at, expires_at) = (
                        std::time::SystemTime::from(subject.starts_at),
                        subject.expires_at.map(std::time::SystemTime::from),
                    );
                    tx.execute(
                        &sql::RESERVATION_INSERT,
                        &[
                            &subject.id.uuid(),
                            &subject.tenant_id.uuid(),
                            &subject.pool_id.uuid(),
                            &subject.created_by.uuid(),
                            &name,
                            &number(ask.gpus),
                            &ask.gpu_model,
                            &number(ask.vcpu),
                            &stored(ask.memory_mib),
                            &stored(ask.hugepages_1gi),
                            &ask.whole_node,
                            &ask.binding.name(),
                            selector,
                            &starts_at,
                            &expires_at,
                        ],
                    )
                    .await?;
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    async fn refuse(&self, id: ReservationId) -> Result<(), Fault> {
        self.store()
            .tx(RESERVATION_REFUSE, |tx| {
                Box::pin(async move {
                    tx.execute(&sql::RESERVATION_DRAFT_DELETE, &[&id.uuid()]).await?;
                    Ok::<_, Fault>(())
                })
            })
            .await
    }

    /// Admits a draft that was decided on, placed if there is a place.
    async fn admit(&self, call: &Call, subject: &Subject, key: Option<&Key>) -> Result<Admitted, Fault> {
        let claim = subject.ask.claim([]);
        let placing = &Placing {
            id: subject.id,
            tenant_id: subject.tenant_id,
            pool_id: subject.pool_id,
            ask: subject.ask.clone(),
        };
        self.books().refresh().await?;
        for tried in 1..=TRIES_MAX + 1 {
            let standing = &self.standing(subject.pool_id);
            // The last try goes without a place: then it waits in line, where races are settled one after another.
            let pick = match standing {
                Standing::Shared | Standing::Ours(_) if tried <= TRIES_MAX => {
                    self.books().pick(subject.pool_id, subject.id, &claim)
                }
                Standing::Shared | Standing::Ours(_) | Standing::Theirs => None,
            };
            let reason = match (&pick, standing) {
                (Some(_), _) => String::new(),
                (None, Standing::Theirs) if self.books().find(subject.pool_id, &claim).is_some() => {
                    HANDED.to_owned()
                }
                (None, _) => self.waiting_reason(subject, &claim)?,
            };
            let (placement, reason) = (pick.as_ref().map(|pick| &pick.placement), reason.as_str());
            let done = call
                .tx(self.store(), RESERVATION_ADMIT, |tx| {
                    Box::pin(async move {
                        if placement.is_some() && !fenced(tx, standing).await? {
                            return Err(Stop::Fenced);
                        }
                        self.admit_in(tx, placing, key, placement, reason).await
                    })
                })
                .await;
            match done {
                Ok(version) => {
                    if let (Some(pick), Some(version)) = (pick, version) {
                        pick.confirm(version);
                    }
                    return Ok(Admitted::Mine);
                }
                Err(Stop::Earlier(made)) => return Ok(Admitted::Earlier(made)),
                Err(Stop::Fault(fault)) => return Err(fault),
                // The sweep took it for one that a crash left.
                Err(Stop::Gone) => return Err(unavailable("the decision took too long: try again").into()),
                Err(Stop::OverQuota) => {
                    let wanted = match placement {
                        Some(placement) => quota_placed(&subject.ask, placement),
                        None => subject.ask.quota_asked(),
                    };
                    if let Some(refusal) = self.quota_refusal(subject.tenant_id, &wanted).await? {
                        return Err(refusal.into());
                    }
                }
                Err(Stop::Fenced) => self.lost_pool(subject.pool_id),
                Err(Stop::Taken) => {}
            }
            drop(pick);
            self.look_again(tried).await?;
        }
        Err(unavailable("too many admissions at once: try again").into())
    }

    async fn admit_in(
        &self,
        tx: &mut store::Tx<'_>,
        placing: &Placing,
        key: Option<&Key>,
        placement: Option<&Placement>,
        reason: &str,
    ) -> Result<Option<i64>, Stop> {
        if let Some(key) = key
            && let Some(made) = key.claim(tx, &placing.id.to_string()).await?
        {
            return Err(Stop::Earlier(made));
        }
        let Some(placement) = placement else {
            let state = step(ReservationState::Draft, ReservationEvent::Admitted)?;
            if tx.execute(&sql::RESERVATION_ADMIT, &[&placing.id.uuid(), &reason]).await? == 0 {
                return Err(Stop::Gone);
            }
            self.hold_quota(tx, placing, &placing.ask.quota_asked()).await?;
            let data = json!({
                "state": state.name(), "poolId": placing.pool_id.to_string(), "gpus": placing.ask.gpus, "reason": reason,
            });
            self.tell(tx, EventKind::ReservationScheduling, placing.id, placing.tenant_id, data).await?;
            wake_in(tx, PLACE_QUEUE, &pool_key(placing.pool_id), FIRST_LOOK).await?;
            if reason == HANDED {
                tx.notify(PLACE_CHANNEL, "");
            }
            return Ok(None);
        };
        self.hold_quota(tx, placing, &quota_placed(&placing.ask, placement)).await?;
        self.book(tx, placing, ReservationState::Draft, placement).await.map(Some)
    }

    /// What a reservation that fits nowhere now is told; CAPACITY_UNAVAILABLE when it never could fit.
    pub(crate) fn waiting_reason(&self, subject: &Subject, claim: &Claim) -> Result<String, ApiError> {
        let Some(refused) = self.books().refusal(subject.pool_id, claim) else {
            return Ok("a place was taken just now".to_owned());
        };
        if self.books().could_ever(subject.pool_id, claim) {
            return Ok(waiting(&refused));
        }
        Err(never(subject, &refused))
    }
}

/// Decides and looks as a create does, and writes nothing.
async fn dry_run(
    capacity: &Capacity,
    call: &Call,
    subject: Subject,
    request: &CreateReservation,
) -> Result<Reservation, Fault> {
    call.require_in(ACTION, &subject.resource()).await?;
    let claim = subject.ask.claim([]);
    capacity.books().refresh().await?;
    let placement = capacity.books().find(subject.pool_id, &claim);
    let (state, waiting_reason) = match &placement {
        Some(_) => (ReservationState::Placed, String::new()),
        None => (ReservationState::Scheduling, capacity.waiting_reason(&subject, &claim)?),
    };
    let wanted = match &placement {
        Some(placement) => quota_placed(&subject.ask, placement),
        None => subject.ask.quota_asked(),
    };
    if let Some(refusal) = capacity.quota_refusal(subject.tenant_id, &wanted).await? {
        return Err(refusal.into());
    }
    let tenant = capacity.store().read_opt(&sql::TENANT_GET, &[&subject.tenant_id.uuid()]).await?;
    let tenant_name = tenant.map(|row| row.get("name")).unwrap_or_default();
    let held = placement.and_then(|placement| capacity.would_hold(&subject, &placement, capacity.id()));
    let reserved = Reserved {
        name: request.name.as_ref().map(|name| name.as_str().to_owned()),
        tenant_name,
        created_by_name: call.principal.name.clone(),
        state,
        attempts: 0,
        waiting_reason,
        failure: String::new(),
        created_at: call.now,
        updated_at: call.now,
        placed_at: None,
        active_at: None,
        ended_at: None,
        held,
        now: call.now,
        subject,
    };
    let mut shown = view::reservation(&reserved);
    // There is no such allocation, and there will be none of this id.
    shown.allocation = None;
    shown.dry_run = true;
    Ok(shown)
}

impl Capacity {
    /// What a placement comes to, with its healthy devices. None when the books have lost sight of any of it.
    pub(crate) fn would_hold(
        &self,
        subject: &Subject,
        placement: &Placement,
        allocation_id: AllocationId,
    ) -> Option<Held> {
        let booking = &placement.booking;
        let node = self.books().node(subject.pool_id, booking.node)?;
        let taken = node.devices.iter().filter(|device| booking.atoms.contains(&device.atom));
        let mut devices: Vec<HeldDevice> = taken
            .map(|device| HeldDevice {
                uuid: device.atom.to_string(),
                index: device.index.into(),
                model: device.model.to_string(),
                health: "healthy".to_owned(),
                reason: String::new(),
                since_ms: 0,
            })
            .collect();
        devices.sort_by(|one, other| (one.index, &one.uuid).cmp(&(other.index, &other.uuid)));
        (devices.len() == booking.atoms.len()).then(|| Held {
            allocation_id,
            node_id: node.id,
            node_name: node.name.to_string(),
            node_state: node.standing.state,
            quarantined_at: None,
            last_heartbeat_at: None,
            limits: limits_of(&subject.ask, placement),
            cdi_devices: Vec::new(),
            devices,
        })
    }
}
