//! Many creates in one transaction: each admitted, and placed where this process may place and there is a place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use kernel::audit::{self, Entries};
use kernel::events::{self, EventKind, News};
use kernel::module::wake_in;
use kernel::run::PLACE_CHANNEL;
use kernel::{ApiError, Call, Fault};
use model::lifecycle::{NodeState, ReservationState};
use model::{AllocationId, NodeId, PoolId, ReservationId, Timestamp};
use serde_json::{Value, json};
use store::{Op, Row, RowExt, StoreError, Tx};
use uuid::Uuid;

use super::book::{Booked, Counted};
use super::{Asked, AskedCreate, Creating, Made};
use crate::books::Pick;
use crate::create::{FIRST_LOOK, HANDED};
use crate::owner::{Standing, fenced};
use crate::place::{Stop, quota_placed};
use crate::reconcile::{PLACE_QUEUE, pool_key};
use crate::sql::many as sql;
use crate::state::{Held, Reserved, Subject, stored};
use crate::{Capacity, sql as one};

const ADMIT_MANY: Op = Op::new("reservations_admit");

/// A batch in which somebody was faster is decided again this often before its creates are done one by one.
const TRIES_MAX: u32 = 3;
/// How old a picture may be that nothing is placed by.
const PICTURE_KEPT: Duration = Duration::from_secs(1);

/// What is to be done about a create, before the transaction.
struct Decided<'b> {
    standing: Standing,
    pick: Option<Pick<'b>>,
    /// Why it waits, when it does.
    reason: String,
    allocation_id: AllocationId,
    counted: Counted,
}

impl Decided<'_> {
    fn state(&self) -> ReservationState {
        if self.pick.is_some() { ReservationState::Placed } else { ReservationState::Scheduling }
    }
}

/// What only the database knows of a reservation that it has just made.
struct Admitted {
    at: Timestamp,
    tenant_name: String,
}

/// What the transaction made of them.
struct Written<'c> {
    admitted: HashMap<ReservationId, Admitted>,
    earlier: BTreeMap<usize, String>,
    over_quota: BTreeMap<usize, ApiError>,
    versions: HashMap<NodeId, i64>,
    entries: Entries<'c>,
}

impl Capacity {
    /// Answers every one of them.
    pub(super) async fn admit_all(&self, asked: Vec<AskedCreate>) {
        let mut left: Vec<AskedCreate> = asked.into_iter().filter(|one| !one.is_abandoned()).collect();
        let mut tried = 0;
        while !left.is_empty() && tried < TRIES_MAX {
            let (now, later) = of_one_key_each(left);
            let whats: Vec<&Creating> = now.iter().map(|one| &one.what).collect();
            match self.admit_batch(&whats).await {
                Ok(answers) => {
                    now.into_iter().zip(answers).for_each(|(one, answer)| one.answer(answer));
                    left = later;
                }
                Err(stop) => {
                    tried += 1;
                    tracing::debug!(creates = now.len(), err = %stop, "batch of creates was undone");
                    left = now.into_iter().chain(later).collect();
                    // Anything but a lost race is about one of them, and each is told by itself.
                    if !matches!(stop, Stop::Taken | Stop::Fenced) {
                        break;
                    }
                }
            }
        }
        for Asked { what, reply } in left {
            let answer = self.make_after_all(&what).await;
            let _ = reply.send(answer);
        }
    }

    /// One whose batch was undone, or nobody knows. It was decided on before it came here.
    async fn make_after_all(&self, what: &Creating) -> Result<Made, Fault> {
        // The connection may have been lost while the batch committed.
        if let Some(reserved) = self.reserved_alone(what.subject.id).await? {
            return Ok(Made::Mine { reserved: Box::new(reserved), handed: false });
        }
        self.make_alone(what, std::future::ready(Ok(()))).await
    }

    async fn admit_batch(&self, whats: &[&Creating]) -> Result<Vec<Result<Made, Fault>>, Stop> {
        let places = whats.iter().any(|what| self.standing(what.subject.pool_id) != Standing::Theirs);
        // Whoever places nothing only wants to know what could ever fit.
        self.books().refresh_within(if places { Duration::ZERO } else { PICTURE_KEPT }).await?;
        let mut answers: Vec<Option<Result<Made, Fault>>> = whats.iter().map(|_| None).collect();
        let mut decided = Vec::with_capacity(whats.len());
        let mut refused: HashMap<String, Result<String, ApiError>> = HashMap::new();
        for (place, what) in whats.iter().enumerate() {
            match self.decide_one(&what.subject, &mut refused) {
                Ok(one) => decided.push((place, one)),
                Err(error) => answers[place] = Some(Err(error.into())),
            }
        }
        let Written { mut admitted, earlier, over_quota, versions, entries } =
            self.write_batch(whats, &decided).await?;
        entries.committed();
        let mut picks = Vec::with_capacity(decided.len());
        let mut unread = Vec::new();
        for (at, (place, one)) in decided.into_iter().enumerate() {
            if let Some(earlier) = earlier.get(&at) {
                answers[place] = Some(Ok(Made::Earlier(earlier.clone())));
            } else if let Some(refused) = over_quota.get(&at) {
                answers[place] = Some(Err(refused.clone().into()));
            } else {
                let what = whats[place];
                let admitted = admitted.remove(&what.subject.id);
                let handed = one.standing == Standing::Theirs;
                match admitted.and_then(|admitted| self.as_written(what, &one, admitted)) {
                    Some(reserved) => {
                        answers[place] = Some(Ok(Made::Mine { reserved: Box::new(reserved), handed }));
                    }
                    None => unread.push((place, handed)),
                }
                picks.extend(one.pick);
            }
        }
        self.books().confirm_all(picks, &versions);
        self.answer_unread(whats, &unread, &mut answers).await;
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unreadable()))).collect())
    }

    /// The reservation as its transaction wrote it, which reading it would give until somebody changes it. None when that
    /// takes more than is known here.
    fn as_written(&self, what: &Creating, one: &Decided<'_>, admitted: Admitted) -> Option<Reserved> {
        let Admitted { at, tenant_name } = admitted;
        let placed = one.pick.is_some();
        let held = match &one.pick {
            // Of a whole node what is ill is booked too, and the books do not know since when.
            Some(_) if what.subject.ask.whole_node => return None,
            Some(pick) => {
                let held = self.would_hold(&what.subject, &pick.placement, one.allocation_id)?;
                // The transaction has booked nothing on a node that is not.
                Some(Held { node_state: NodeState::Ready, ..held })
            }
            None => None,
        };
        Some(Reserved {
            subject: what.subject.clone(),
            name: what.name.clone(),
            tenant_name,
            created_by_name: what.call.principal.name.clone(),
            state: one.state(),
            attempts: placed.into(),
            waiting_reason: one.reason.clone(),
            failure: String::new(),
            created_at: at,
            updated_at: at,
            placed_at: placed.then_some(at),
            active_at: None,
            ended_at: None,
            held,
            now: at,
        })
    }

    async fn answer_unread(
        &self,
        whats: &[&Creating],
        unread: &[(usize, bool)],
        answers: &mut [Option<Result<Made, Fault>>],
    ) {
        if unread.is_empty() {
            return;
        }
        let ids: Vec<Uuid> = unread.iter().map(|(place, _)| whats[*place].subject.id.uuid()).collect();
        // They are made, whatever comes of reading them.
        let mut read = self.reserved_all(&ids).await.unwrap_or_else(|err| {
            tracing::warn!(err = kit::chain(&err), "failed to read what was just made");
            HashMap::new()
        });
        for (place, handed) in unread {
            if let Some(reserved) = read.remove(&whats[*place].subject.id) {
                answers[*place] = Some(Ok(Made::Mine { reserved: Box::new(reserved), handed: *handed }));
            }
        }
    }

    /// A place for it where this process may place, or why there is none. What is refused once is refused for all of its
    /// shape: a batch only fills the books.
    fn decide_one(
        &self,
        subject: &Subject,
        refused: &mut HashMap<String, Result<String, ApiError>>,
    ) -> Result<Decided<'_>, ApiError> {
        let Subject { id, pool_id, tenant_id, ref ask, .. } = *subject;
        let claim = ask.claim([]);
        let standing = self.standing(pool_id);
        let shape = || format!("{pool_id} {claim:?}");
        let pick = match standing {
            Standing::Theirs => None,
            Standing::Shared | Standing::Ours(_) if refused.contains_key(&shape()) => None,
            Standing::Shared | Standing::Ours(_) => self.books().pick(pool_id, id, &claim),
        };
        let reason = match (&pick, &standing) {
            (Some(_), _) => String::new(),
            (None, Standing::Theirs) if self.books().find(pool_id, &claim).is_some() => HANDED.to_owned(),
            (None, _) => {
                let why = refused.entry(shape()).or_insert_with(|| self.waiting_reason(subject, &claim));
                why.clone()?
            }
        };
        let holds = match &pick {
            Some(pick) => quota_placed(ask, &pick.placement),
            None => ask.quota_asked(),
        };
        let counted = Counted { tenant_id, holds };
        Ok(Decided { standing, pick, reason, allocation_id: self.id(), counted })
    }

    async fn write_batch<'w, 'd>(
        &'d self,
        whats: &'d [&'w Creating],
        decided: &'d [(usize, Decided<'d>)],
    ) -> Result<Written<'w>, Stop> {
        let ours = decided.iter().filter(|(_, one)| matches!(one.standing, Standing::Ours(_)));
        let fences: &BTreeMap<PoolId, &Standing> =
            &ours.map(|(place, one)| (whats[*place].subject.pool_id, &one.standing)).collect();
        let written = self
            .store()
            .tx(ADMIT_MANY, |tx| {
                Box::pin(async move {
                    for (pool_id, standing) in fences {
                        if !fenced(tx, standing).await? {
                            self.lost_pool(*pool_id);
                            return Err(Stop::Fenced);
                        }
                    }
                    self.write_in(tx, whats, decided).await
                })
            })
            .await?;
        Ok(written)
    }

    async fn write_in<'w>(
        &self,
        tx: &mut Tx<'_>,
        whats: &[&'w Creating],
        decided: &[(usize, Decided<'_>)],
    ) -> Result<Written<'w>, Stop> {
        let of = |at: usize| whats[decided[at].0];
        let mut earlier = BTreeMap::new();
        for at in 0..decided.len() {
            if let Some(key) = &of(at).key
                && let Some(made) = key.claim(tx, &of(at).subject.id.to_string()).await?
            {
                earlier.insert(at, made);
            }
        }
        let mine: Vec<usize> = (0..decided.len()).filter(|at| !earlier.contains_key(at)).collect();
        let counted: Vec<&Counted> = mine.iter().map(|at| &decided[*at].1.counted).collect();
        let over = self.over_quota(tx, &counted).await?;
        let over_quota: BTreeMap<usize, ApiError> =
            over.into_iter().map(|(place, refused)| (mine[place], refused)).collect();
        for at in over_quota.keys() {
            if let Some(key) = &of(*at).key {
                key.release(tx, &of(*at).subject.id.to_string()).await?;
            }
        }
        let mine: Vec<(&'w Creating, &Decided<'_>)> = mine
            .into_iter()
            .filter(|at| !over_quota.contains_key(at))
            .map(|at| (of(at), &decided[at].1))
            .collect();
        let admitted = insert(tx, &mine).await?;
        let counted: Vec<(ReservationId, &Counted)> =
            mine.iter().map(|(what, one)| (what.subject.id, &one.counted)).collect();
        self.hold_quotas(tx, &counted).await?;
        self.line_up(tx, &mine).await?;
        let calls: Vec<&'w Call> = mine.iter().map(|(what, _)| &*what.call).collect();
        let entries = audit::enter_all(tx, calls).await?;
        let booked: Vec<Booked<'_>> = mine.iter().filter_map(|(what, one)| booked(what, one)).collect();
        let versions = self.book_all(tx, &booked).await?;
        Ok(Written { admitted, earlier, over_quota, versions, entries })
    }

    /// Says of those without a place that they wait, and wakes who places them.
    async fn line_up(&self, tx: &mut Tx<'_>, mine: &[(&Creating, &Decided<'_>)]) -> Result<(), StoreError> {
        let waiting = || mine.iter().filter(|(_, one)| one.pick.is_none());
        let news: Vec<News> = waiting().map(|(what, one)| scheduling(&what.subject, &one.reason)).collect();
        events::append_all(tx, self.rng(), &news).await?;
        let pools: BTreeSet<PoolId> = waiting().map(|(what, _)| what.subject.pool_id).collect();
        for pool_id in pools {
            wake_in(tx, PLACE_QUEUE, &pool_key(pool_id), FIRST_LOOK).await?;
        }
        if waiting().any(|(_, one)| one.standing == Standing::Theirs) {
            tx.notify(PLACE_CHANNEL, "");
        }
        Ok(())
    }

    pub(crate) async fn reserved_all(
        &self,
        ids: &[Uuid],
    ) -> Result<HashMap<ReservationId, Reserved>, StoreError> {
        let rows = self.store().read(&one::RESERVATIONS_GET, &[&ids]).await?;
        rows.iter().map(|row| Ok((row.id("reservation_id"), Reserved::of_row(row)?))).collect()
    }
}

/// Of those under one key only the first: the others are answered by what becomes of it.
fn of_one_key_each(asked: Vec<AskedCreate>) -> (Vec<AskedCreate>, Vec<AskedCreate>) {
    let mut seen = Vec::new();
    asked.into_iter().partition(|one| {
        let Some(key) = &one.what.key else { return true };
        let fresh = !seen.contains(key);
        if fresh {
            seen.push(key.clone());
        }
        fresh
    })
}

fn unreadable() -> Fault {
    let message = "the reservation was made and cannot be read now: read it again";
    ApiError::new(model::ErrorCode::Unavailable, message).into()
}

fn booked<'a>(what: &'a Creating, one: &'a Decided<'_>) -> Option<Booked<'a>> {
    let Subject { id, tenant_id, pool_id, ref ask, .. } = what.subject;
    let placement = &one.pick.as_ref()?.placement;
    Some(Booked { id, tenant_id, pool_id, ask, placement, allocation_id: one.allocation_id })
}

fn scheduling(subject: &Subject, reason: &str) -> News {
    let data = json!({
        "state": ReservationState::Scheduling.name(), "poolId": subject.pool_id.to_string(), "gpus": subject.ask.gpus,
        "reason": reason,
    });
    let tenant_id = Some(subject.tenant_id);
    News { kind: EventKind::ReservationScheduling, id: subject.id.to_string(), tenant_id, data }
}

async fn insert(
    tx: &mut Tx<'_>,
    mine: &[(&Creating, &Decided<'_>)],
) -> Result<HashMap<ReservationId, Admitted>, Stop> {
    if mine.is_empty() {
        return Ok(HashMap::new());
    }
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let subjects = || mine.iter().map(|(what, _)| &what.subject);
    let asks = || subjects().map(|subject| &subject.ask);
    let uuids = |of: fn(&Subject) -> Uuid| -> Vec<Uuid> { subjects().map(of).collect() };
    let selectors: Vec<Value> = asks()
        .map(|ask| serde_json::to_value(&ask.selector).expect("a selector holds nothing that JSON cannot"))
        .collect();
    let values: [&(dyn store::Param + Sync); 17] = [
        &uuids(|subject| subject.id.uuid()),
        &uuids(|subject| subject.tenant_id.uuid()),
        &uuids(|subject| subject.pool_id.uuid()),
        &uuids(|subject| subject.created_by.uuid()),
        &mine.iter().map(|(what, _)| what.name.as_deref()).collect::<Vec<_>>(),
        &mine.iter().map(|(_, one)| one.state().name()).collect::<Vec<_>>(),
        &asks().map(|ask| number(ask.gpus)).collect::<Vec<_>>(),
        &asks().map(|ask| ask.gpu_model.as_deref()).collect::<Vec<_>>(),
        &asks().map(|ask| number(ask.vcpu)).collect::<Vec<_>>(),
        &asks().map(|ask| stored(ask.memory_mib)).collect::<Vec<_>>(),
        &asks().map(|ask| stored(ask.hugepages_1gi)).collect::<Vec<_>>(),
        &asks().map(|ask| ask.whole_node).collect::<Vec<_>>(),
        &asks().map(|ask| ask.binding.name()).collect::<Vec<_>>(),
        &selectors,
        &subjects().map(|subject| SystemTime::from(subject.starts_at)).collect::<Vec<_>>(),
        &subjects().map(|subject| subject.expires_at.map(SystemTime::from)).collect::<Vec<_>>(),
        &mine.iter().map(|(_, one)| one.reason.as_str()).collect::<Vec<_>>(),
    ];
    let rows = tx.query(&sql::RESERVATIONS_ADMIT, &values).await?;
    let admitted = |row: &Row| {
        let (at, tenant_name) = (row.ts("created_at"), row.get("tenant_name"));
        (row.id("reservation_id"), Admitted { at, tenant_name })
    };
    Ok(rows.iter().map(admitted).collect())
}
