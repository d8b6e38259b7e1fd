//! Tenants with instances: each one is made, changed and deleted by a plan of its own, through the API.
//!
//! A tenant asks for one thing at a time and asks again when nobody answers, or when the answer says that later may be
//! better: a create under its idempotency key, so that it makes one instance however often it is sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use kernel::{Incoming, Pipeline};
use kit::{Rng, SeededRng};
use model::ErrorCode;
use serde_json::{Value, json};

use super::event::Event;
use super::exec::ProcessId;
use super::setup::{FLAVORS, HOSTS, IMAGE, SOURCE};
use super::time::Core;

const DEADLINE: Duration = Duration::from_secs(30);
/// A call that is not answered by then is made again.
const PATIENCE: Duration = Duration::from_secs(35);
/// After an answer that says that later may be better.
const AGAIN: Duration = Duration::from_secs(15);
/// What is refused so often as not possible now is not asked for any more.
const REFUSED_MAX: u32 = 3;
/// The first one asks when hosts may be ready, and the last one when half of the time is over.
const FIRST_AFTER: Duration = Duration::from_secs(15);
/// What guests are told.
pub const TOLD: &str = "told-to-guests-and-to-nobody-else";
const POLICIES: [&str; 4] = ["egress", "egress", "private", "none"];

#[derive(Debug, Clone)]
enum Step {
    Create(Value),
    Change(&'static str),
    Resize(&'static str),
    Delete,
}

/// One instance, as its tenant sees it.
struct Life {
    /// What comes next, and how long after the one before.
    plan: VecDeque<(Duration, Step)>,
    id: Option<String>,
    /// Counts what was asked: what was meant for an earlier one is stale.
    turn: u64,
    /// What made it, or would have.
    request: Value,
    begun: bool,
    /// Whether the first of the plan was sent, and may have been carried out.
    asked: bool,
    refused: u32,
}

/// What is said to a tenant.
struct Answer {
    code: Option<ErrorCode>,
    id: Option<String>,
}

#[derive(Default)]
pub struct Tenants(Mutex<Known>);

#[derive(Default)]
struct Known {
    token: String,
    lives: Vec<Life>,
    /// Nothing new is asked for.
    hushed: bool,
    answers: BTreeMap<String, u64>,
}

impl Tenants {
    /// With so many instances to come within the time.
    pub fn new(token: String, instances: usize, seed: u64, time: Duration) -> Arc<Self> {
        // Of its own: what tenants do must not depend on what else the simulation draws.
        let rng: &dyn Rng = &SeededRng::new(seed ^ 0x0001_45fa_0000_0000);
        let lives = (0..instances).map(|number| life(rng, number, time)).collect();
        Arc::new(Self(Mutex::new(Known { token, lives, ..Known::default() })))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Has every tenant begin at its time.
    pub fn begin(&self, core: &Core) {
        for (life, known) in self.known().lives.iter().enumerate() {
            if let Some((after, _)) = known.plan.front() {
                core.post(*after, Event::Tenant { life, turn: 0 });
            }
        }
    }

    pub fn answers(&self) -> BTreeMap<String, u64> {
        self.known().answers.clone()
    }

    /// Instances that somebody still wants something of.
    pub fn unfinished(&self) -> usize {
        self.known().lives.iter().filter(|life| !life.plan.is_empty()).count()
    }

    /// Nobody asks for anything new from now on; what was asked for is still asked again until it is answered.
    pub fn hush(&self) {
        let mut known = self.known();
        known.hushed = true;
        for life in &mut known.lives {
            life.plan.truncate(usize::from(life.asked));
        }
    }

    /// Everybody deletes what there is. Whoever was told that nothing was made asks once more: a process that was stopped may
    /// have made it since.
    pub fn end(&self, core: &Core) {
        for (number, life) in self.known().lives.iter_mut().enumerate().filter(|(_, life)| life.begun) {
            life.plan = VecDeque::from([(Duration::ZERO, Step::Delete)]);
            if life.id.is_none() {
                life.plan.push_front((Duration::ZERO, Step::Create(life.request.clone())));
            }
            life.turn += 1;
            core.post(core.up_to(AGAIN), Event::Tenant { life: number, turn: life.turn });
        }
    }

    /// The tenant of a life makes its next call, or makes it again. `serving` is who takes calls, if anybody does.
    pub fn act(
        self: &Arc<Self>,
        core: &Arc<Core>,
        serving: Option<(ProcessId, Arc<Pipeline>)>,
        life: usize,
        turn: u64,
    ) {
        let mut known = self.known();
        let Some(one) = known.lives.get_mut(life).filter(|one| one.turn == turn) else { return };
        let Some((_, step)) = one.plan.front() else { return };
        one.turn += 1;
        let turn = one.turn;
        let Some((process, pipeline)) = serving else {
            return core.post(core.up_to(AGAIN), Event::Tenant { life, turn });
        };
        let (method, body) = call(step, one.id.as_deref());
        (one.begun, one.asked) = (true, true);
        core.post(PATIENCE, Event::Tenant { life, turn });
        let (tenants, token, own) = (self.clone(), known.token.clone(), core.clone());
        let asking = async move {
            let incoming = Incoming {
                method,
                body: Bytes::from(body.to_string()),
                bearer: Some(&token),
                source_ip: SOURCE,
                deadline: DEADLINE,
                request_id: None,
            };
            let answer = pipeline.call(incoming).await;
            let id = serde_json::from_slice::<Value>(&answer.body).ok();
            let id = id.as_ref().and_then(|answer| answer["id"].as_str()).map(str::to_owned);
            tenants.told(&own, life, turn, method, Answer { code: answer.code, id });
        };
        core.spawn(process, "tenant", Box::pin(asking));
    }

    fn told(&self, core: &Core, life: usize, turn: u64, method: &'static str, answer: Answer) {
        let mut known = self.known();
        let code = answer.code.map_or("ok", ErrorCode::name);
        *known.answers.entry(format!("{method} {code}")).or_default() += 1;
        let hushed = known.hushed;
        let Some(one) = known.lives.get_mut(life).filter(|one| one.turn == turn) else { return };
        one.turn += 1;
        let after = one.take(&answer, hushed).unwrap_or_else(|| core.up_to(AGAIN));
        core.post(after, Event::Tenant { life, turn: one.turn });
    }
}

impl Life {
    /// How long until the next call; none for the same one again.
    fn take(&mut self, answer: &Answer, hushed: bool) -> Option<Duration> {
        let step = &self.plan.front()?.1;
        let again = match (answer.code, step) {
            (None, _) => false,
            // As long as anybody wants it, until an address is free.
            (Some(ErrorCode::CapacityUnavailable), Step::Create(_)) => !hushed,
            (Some(ErrorCode::InvalidState | ErrorCode::CapacityUnavailable), _) => {
                self.refused += 1;
                self.refused < REFUSED_MAX && !hushed
            }
            (Some(code), _) if code.retryable() => true,
            (Some(_), _) => false,
        };
        if again {
            return None;
        }
        if let (Step::Create(_), None) = (step, answer.code) {
            self.id.clone_from(&answer.id);
        }
        self.plan.pop_front();
        (self.asked, self.refused) = (false, 0);
        // What was never made is not changed either.
        if self.id.is_none() {
            self.plan.clear();
        }
        Some(self.plan.front().map_or(Duration::ZERO, |(after, _)| *after))
    }
}

fn call(step: &Step, id: Option<&str>) -> (&'static str, Value) {
    match step {
        Step::Create(request) => ("instances.create", request.clone()),
        Step::Change(method) => (method, json!({ "id": id })),
        Step::Resize(flavor) => ("instances.resize", json!({ "id": id, "flavor": flavor })),
        Step::Delete => ("instances.delete", json!({ "id": id })),
    }
}

fn life(rng: &dyn Rng, number: usize, time: Duration) -> Life {
    let up_to = |most: Duration| {
        Duration::from_millis(rng.below(u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1)))
    };
    let flavor = || FLAVORS[usize::try_from(rng.below(FLAVORS.len() as u64)).unwrap_or(0)].0;
    let policy = POLICIES[usize::try_from(rng.below(POLICIES.len() as u64)).unwrap_or(0)];
    let mut request = json!({
        "pool": HOSTS, "flavor": flavor(), "image": IMAGE, "name": format!("once-{number}"),
        "networkPolicy": policy, "stopped": rng.below(8) == 0, "idempotencyKey": format!("once-{number}"),
    });
    // To be told by a host's daemon, and to be seen nowhere on the way.
    if number.is_multiple_of(3) {
        request["userData"] = format!("#cloud-config\npassword: {TOLD}\n").into();
    }
    let mut plan = VecDeque::from([(FIRST_AFTER + up_to(time / 2), Step::Create(request.clone()))]);
    for _ in 0..1 + rng.below(4) {
        // Now and then at once: the host has not done what was asked before.
        let hasty = || up_to(Duration::from_millis(300));
        let pause = if rng.below(3) == 0 { hasty() } else { up_to(time / 5) };
        let step = match rng.below(12) {
            0..2 => Step::Change("instances.start"),
            2..4 => Step::Change("instances.stop"),
            4..6 => Step::Change("instances.reboot"),
            6..9 => {
                plan.push_back((pause, Step::Change("instances.stop")));
                plan.push_back((hasty(), Step::Change("instances.start")));
                continue;
            }
            9..11 => {
                // Only what is stopped takes another size.
                plan.push_back((pause, Step::Change("instances.stop")));
                plan.push_back((up_to(time / 10), Step::Resize(flavor())));
                Step::Change("instances.start")
            }
            _ => Step::Resize(flavor()),
        };
        plan.push_back((pause, step));
    }
    // The others are deleted when all else is over.
    if rng.below(3) > 0 {
        plan.push_back((up_to(time / 4), Step::Delete));
    }
    Life { plan, id: None, turn: 0, request, begun: false, asked: false, refused: 0 }
}
