//! One process of the control plane: the real modules, their queues and passes as tasks, and the pipeline that clients call.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capacity::Capacity;
use fleet::Fleet;
use futures::FutureExt;
use iam::{Authorizer, Iam};
use instances::Instances;
use kernel::module::{Pass, QueueHandler};
use kernel::ports::node::{NodeObserver, SpecContributor};
use kernel::ports::tenants::Belongings;
use kernel::run::Running;
use kernel::run::drive::{DrivenPass, DrivenQueue, DrivenRelay};
use kernel::{CallLimits, Module, Pipeline};
use kit::{Clock, Rng, Supervisor};
use ledger::Ledger;
use secrets::{Broker, Secrets};
use store::Store;

use super::exec::ProcessId;
use super::keys::AsEntropy;
use super::plant::Plant;
use super::schedule::ProcessSchedule;
use super::time::Bell;

/// As production has it: keys of one queue handled at once in one process.
const QUEUE_CONCURRENCY: usize = 8;
const BATCH_MAX: usize = 32;
const LOOK_EVERY: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const RELAY_EVERY: Duration = Duration::from_secs(2);
/// How often to try for a singleton that another process has.
const LEASE_TRIED_EVERY: Duration = Duration::from_secs(5);
const RESTORE_CHECK_EVERY: Duration = Duration::from_secs(30);

type Ear = Arc<Mutex<Option<Running>>>;
/// Of each queue.
type Bells = Arc<Mutex<Vec<(&'static str, Bell)>>>;

pub struct SimControl {
    pub index: usize,
    pub process: ProcessId,
    pub schedule: Arc<ProcessSchedule>,
    pub up: bool,
    /// There once it takes calls.
    pub pipeline: Arc<Mutex<Option<Arc<Pipeline>>>>,
    work: Bells,
    outbox: Bell,
    ear: Ear,
}

impl SimControl {
    pub fn new(plant: &Plant, index: usize, process: ProcessId) -> Self {
        Self {
            index,
            process,
            schedule: plant.schedule(process),
            up: false,
            pipeline: Arc::default(),
            work: Arc::default(),
            outbox: Bell::default(),
            ear: Ear::default(),
        }
    }

    pub fn pipeline(&self) -> Option<Arc<Pipeline>> {
        self.pipeline.lock().expect("no holder of this lock panics").clone()
    }

    /// A new process in the place of the last one.
    pub fn start(&mut self, plant: &Arc<Plant>, process: ProcessId) {
        *self = Self { up: true, ..Self::new(plant, self.index, process) };
        let process = Process {
            plant: plant.clone(),
            id: process,
            schedule: self.schedule.clone(),
            pipeline: self.pipeline.clone(),
            work: self.work.clone(),
            outbox: self.outbox.clone(),
            ear: self.ear.clone(),
            index: self.index,
        };
        plant.core.spawn(self.process, "control plane", Box::pin(process.run()));
    }

    /// The database told a channel.
    pub fn told(&self, channel: &'static str, payload: &str) {
        match channel {
            store::work::CHANNEL => {
                // Named by the queue, or of any.
                let bells = self.work.lock().expect("no holder of this lock panics");
                let named = bells.iter().filter(|(queue, _)| payload.is_empty() || payload == *queue);
                named.for_each(|(_, bell)| bell.ring());
            }
            store::outbox::OUTBOX_CHANNEL => self.outbox.ring(),
            other => {
                if let Some(running) = &*self.ear.lock().expect("no holder of this lock panics") {
                    running.signals.told(other);
                }
            }
        }
    }
}

/// The modules of one process.
pub struct Modules {
    pub fleet: Fleet,
    pub modules: Vec<Module>,
    pub worker: Module,
    pub iam: Arc<Iam>,
    pub capacity: Capacity,
}

pub fn modules(plant: &Plant, store: &Store, rng: &Arc<dyn Rng>) -> anyhow::Result<Modules> {
    let clock: Arc<dyn Clock> = plant.clock.clone();
    let capacity = Capacity::new(store.clone(), clock.clone(), rng.clone());
    let instances =
        plant.instances.then(|| Instances::new(store.clone(), capacity.clone(), clock.clone(), rng.clone()));
    let mut contributors: Vec<Arc<dyn SpecContributor>> = vec![Arc::new(capacity.clone())];
    let mut observers: Vec<Arc<dyn NodeObserver>> = vec![Arc::new(capacity.clone())];
    if let Some(instances) = &instances {
        contributors.push(Arc::new(instances.clone()));
        observers.push(Arc::new(instances.clone()));
    }
    let fleet = Fleet::new(
        store.clone(),
        Some(plant.keys.worker()?),
        contributors,
        observers,
        clock.clone(),
        rng.clone(),
    );
    let secrets = Secrets::new(
        store.clone(),
        Some(plant.keys.secrets_ring()?),
        clock.clone(),
        rng.clone(),
        Arc::new(AsEntropy(rng.clone())),
    );
    let iam = Iam::new(store.clone(), clock, rng.clone(), Arc::new(AsEntropy(rng.clone())));
    let mut belongings: Vec<Arc<dyn Belongings>> =
        vec![Arc::new(capacity.clone()), Arc::new(secrets.clone())];
    let ledger = Ledger::with_join(store.clone(), rng.clone(), None);
    let mut modules = vec![
        iam::module(&iam),
        ledger::module(&ledger),
        fleet::methods::module(&fleet),
        capacity::module(&capacity),
    ];
    if let Some(instances) = instances {
        belongings.insert(0, Arc::new(instances.clone()));
        instances.set_keeper(Arc::new(secrets.clone()));
        fleet.set_broker(Arc::new(Broker::new(secrets.clone(), Arc::new(instances.clone()))));
        modules.extend([instances::module(&instances, None), secrets::module(&secrets)]);
    }
    iam.set_belongings(belongings);
    let worker = fleet::methods::worker(&fleet);
    Ok(Modules { fleet, modules, worker, iam, capacity })
}

struct Process {
    plant: Arc<Plant>,
    id: ProcessId,
    schedule: Arc<ProcessSchedule>,
    pipeline: Arc<Mutex<Option<Arc<Pipeline>>>>,
    work: Bells,
    outbox: Bell,
    ear: Ear,
    index: usize,
}

impl Process {
    async fn run(self) {
        loop {
            match self.serve().await {
                Ok(()) => return,
                // As a supervisor of processes does.
                Err(_) => self.plant.clock.sleep(Duration::from_secs(1)).await,
            }
        }
    }

    async fn serve(&self) -> anyhow::Result<()> {
        let store = self.plant.connect(&self.schedule, false).await?;
        let rng = self.plant.rng();
        let modules = modules(&self.plant, &store, &rng)?;
        modules.fleet.claim_database().await?;
        store::restore::check(&store, &self.plant.record_dir).await?;
        modules.fleet.publish_trust().await?;
        let clock: Arc<dyn Clock> = self.plant.clock.clone();
        let name = format!("serve-{}", self.index);
        let running = Running::driven(&name, store.clone(), Supervisor::new(), clock.clone(), rng.clone());
        let pipeline = Pipeline::new(
            &modules.modules,
            modules.iam.clone(),
            Authorizer::new(store.clone()),
            store.clone(),
            clock,
            rng.clone(),
            CallLimits::default(),
        )?;
        for module in modules.modules.iter().chain([&modules.worker]) {
            module.queues.iter().for_each(|queue| self.queue(&running, queue.clone()));
            module.passes.iter().for_each(|pass| self.pass(&running, pass.clone()));
        }
        if let Some((admitting, releasing)) = modules.capacity.loops(&running) {
            for run in [admitting, releasing] {
                let run = run(running.supervisor.token()).map(drop);
                self.plant.core.spawn(self.id, "reservations", run.boxed());
            }
        }
        *self.ear.lock().expect("no holder of this lock panics") = Some(running.clone());
        self.relay(&running);
        self.restore_check(store);
        *self.pipeline.lock().expect("no holder of this lock panics") = Some(Arc::new(pipeline));
        Ok(())
    }

    /// Claims by a signal and a period, and handles each key in a task of its own.
    fn queue(&self, running: &Running, handler: Arc<dyn QueueHandler>) {
        let (bell, freed) = (Bell::default(), Bell::default());
        let rung = (handler.queue(), bell.clone());
        self.work.lock().expect("no holder of this lock panics").push(rung);
        let queue = Arc::new(DrivenQueue::new(running, handler));
        let (core, clock, id, rng) =
            (self.plant.core.clone(), self.plant.clock.clone(), self.id, running.rng.clone());
        let busy = Arc::new(AtomicUsize::new(0));
        let dispatch = async move {
            loop {
                let room = QUEUE_CONCURRENCY.saturating_sub(busy.load(Ordering::Relaxed)).min(BATCH_MAX);
                if room == 0 {
                    freed.wait(&clock, LOOK_EVERY).await;
                    continue;
                }
                let claimed = queue.claim(u32::try_from(room).unwrap_or(1)).await;
                let (items, pause) = claimed.unwrap_or((Vec::new(), LOOK_EVERY));
                for item in items {
                    busy.fetch_add(1, Ordering::Relaxed);
                    let (queue, busy, freed, bell) =
                        (queue.clone(), busy.clone(), freed.clone(), bell.clone());
                    let work = async move {
                        // What is not settled is claimed again when the claim lapses.
                        let _ = queue.run(&item).await;
                        busy.fetch_sub(1, Ordering::Relaxed);
                        freed.ring();
                        bell.ring();
                    };
                    core.spawn(id, "queue item", Box::pin(work));
                }
                // Handled together, some may be left that are due now.
                if !pause.is_zero() {
                    bell.wait(&clock, jittered(&*rng, pause.clamp(PAUSE_MIN, LOOK_EVERY))).await;
                }
            }
        };
        self.plant.core.spawn(self.id, "queue", Box::pin(dispatch));
    }

    fn pass(&self, running: &Running, pass: Arc<dyn Pass>) {
        let mut pass = DrivenPass::new(running, pass);
        let (clock, rng) = (self.plant.clock.clone(), running.rng.clone());
        let repeat = async move {
            loop {
                let pause = match pass.once().await {
                    Ok(true) => pass.period(),
                    Ok(false) | Err(_) => pass.period().min(LEASE_TRIED_EVERY),
                };
                clock.sleep(jittered(&*rng, pause)).await;
            }
        };
        self.plant.core.spawn(self.id, "pass", Box::pin(repeat));
    }

    fn relay(&self, running: &Running) {
        let mut relay = DrivenRelay::new(running);
        let (clock, rng, bell) = (self.plant.clock.clone(), running.rng.clone(), self.outbox.clone());
        let repeat = async move {
            loop {
                let _ = relay.once().await;
                bell.wait(&clock, jittered(&*rng, RELAY_EVERY)).await;
            }
        };
        self.plant.core.spawn(self.id, "relay", Box::pin(repeat));
    }

    fn restore_check(&self, store: Store) {
        let (plant, clock) = (self.plant.clone(), self.plant.clock.clone());
        let repeat = async move {
            loop {
                clock.sleep(RESTORE_CHECK_EVERY).await;
                let _ = store::restore::check(&store, &plant.record_dir).await;
            }
        };
        self.plant.core.spawn(self.id, "restore check", Box::pin(repeat));
    }
}

/// The period, shortened at random by up to a fifth, as production has it.
fn jittered(rng: &dyn Rng, period: Duration) -> Duration {
    let fifth = u64::try_from(period.as_micros() / 5).unwrap_or(u64::MAX);
    period.saturating_sub(Duration::from_micros(rng.below(fifth)))
}
