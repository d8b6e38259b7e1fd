//! Machines that are rows and no processes: they are in the database as a fleet that joined would be, read their specs as a
//! gateway reads them, and answer as agents do, signed. Their gateway is the real one's half at the database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fleet::PgDelivery;
use kernel::ports::delivery::{
    DeliveryStore, GatewayLease, ReportedEvent, ReportedEvents, SessionKey, StoredSpec,
};
use kit::{Clock, OnEnd, OsRng, Rng, Supervisor, SystemClock, TaskKind};
use model::{GatewayId, JournalId, NodeId};
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use serde_json::json;
use store::embedded::Embedded;
use store::work::Queue;
use store::{Op, Store};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{
    AllocationBound, AllocationReleased, DesiredHold, DesiredStateBody, DeviceAssignment, NodeReport,
};

use crate::plane::Plane;

mod rows;

pub const GPUS: u32 = 10;

const ANSWERING: TaskKind = TaskKind { name: "machines", on_end: OnEnd::Fatal };
/// A gateway looks at once when it is told; this is soon enough after.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Machines whose answers are stored in one transaction, as a gateway does with what comes at the same time.
const ANSWERS_AT_ONCE: usize = 128;
const LEASE: Duration = Duration::from_secs(3600);
/// Ten thousand machines are looked at one by one before they are offered.
const MADE_WITHIN: Duration = Duration::from_secs(900);
const TRANSITION: i32 = 2;

/// Cheap to clone.
#[derive(Clone)]
pub struct Machines(Arc<Inner>);

struct Inner {
    store: Store,
    delivery: PgDelivery,
    lease: GatewayLease,
    key: SigningKey,
    machines: Mutex<BTreeMap<NodeId, Machine>>,
    supervisor: Supervisor,
}

/// What a machine knows.
struct Machine {
    session: SessionKey,
    journal_id: JournalId,
    generation: u64,
    seq: u64,
    bound: BTreeSet<String>,
    released: BTreeSet<String>,
    /// Calls that changed what it is to hold, and what it has answered.
    expected: u64,
    answered: u64,
}

impl Machines {
    /// Puts `count` machines into a pool `gpu`, and waits until the control plane offers all of their GPUs.
    pub async fn make(plane: &Plane, store: &Store, count: u32) -> anyhow::Result<Self> {
        let admin = plane.admin()?;
        admin.ok("sites.create", json!({ "name": "bench" })).await?;
        admin.ok("pools.create", json!({ "name": "gpu", "class": "gpu" })).await?;
        let (clock, rng): (Arc<dyn Clock>, Arc<dyn Rng>) = (Arc::new(SystemClock::new()), Arc::new(OsRng));
        let mut config = plane.database.store_config(Embedded::DATABASE);
        config.role = Some("bc_gateway".to_owned());
        let delivery = PgDelivery::new(Store::open(config).await?, clock.clone(), rng.clone());
        let gateway_id: GatewayId = rng.id(clock.now());
        let lease = delivery.register(gateway_id, "bench", LEASE).await?.lease;
        let key = SigningKey::generate(&OsEntropy);
        let machines = rows::insert(store, count, lease, key.verifying_key()).await?;
        let supervisor = Supervisor::new();
        let made = Self(Arc::new(Inner {
            store: store.clone(),
            delivery,
            lease,
            key,
            machines: Mutex::new(machines),
            supervisor: supervisor.clone(),
        }));
        made.wait_offered(count).await?;
        let task = made.clone();
        // The task holds us and we hold its supervisor; a benchmark ends with its process.
        supervisor.spawn(ANSWERING, move |stop| async move { task.answer(stop).await });
        Ok(made)
    }

    async fn wait_offered(&self, count: u32) -> anyhow::Result<()> {
        let started = Instant::now();
        let keys: Vec<String> =
            self.machines().keys().map(|node| node.uuid().hyphenated().to_string()).collect();
        let keys = &keys;
        self.0
            .store
            .tx(Op::new("bench_observe"), |tx| {
                Box::pin(async move {
                    store::work::enqueue_all(tx, Queue::new(fleet::OBSERVE_QUEUE, 100), keys).await
                })
            })
            .await?;
        loop {
            let offered: i64 = self.0.store.read_one(&rows::OFFERED, &[]).await?.get("gpus");
            if offered == i64::from(count * GPUS) {
                return Ok(());
            }
            if started.elapsed() > MADE_WITHIN {
                bail!("{offered} GPUs are offered after {MADE_WITHIN:?}, not {}", count * GPUS);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A call has changed what this machine is to hold.
    pub fn expect(&self, node_id: &str) -> anyhow::Result<()> {
        let node_id: NodeId = node_id.parse()?;
        self.machines().get_mut(&node_id).context("a machine that nobody made")?.expected += 1;
        Ok(())
    }

    /// Waits until every machine has answered everything and every answer was handled. Says how long that was.
    pub async fn settled(&self, within: Duration) -> anyhow::Result<Duration> {
        let started = Instant::now();
        loop {
            if let Some(why) = self.0.supervisor.fatal() {
                bail!("the machines stopped answering: {why}");
            }
            let owed: u64 = self
                .machines()
                .values()
                .map(|machine| machine.expected.saturating_sub(machine.answered))
                .sum();
            let open: i64 = match owed {
                0 => self.0.store.read_one(&rows::OPEN, &[]).await?.get("open"),
                _ => i64::MAX,
            };
            if open == 0 {
                return Ok(started.elapsed());
            }
            if started.elapsed() > within {
                bail!("after {within:?} machines owe {owed} answers, and {open} are not handled");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn machines(&self) -> std::sync::MutexGuard<'_, BTreeMap<NodeId, Machine>> {
        self.0.machines.lock().expect("no holder of this lock panics")
    }

    async fn answer(self, stop: CancellationToken) -> Result<(), MachinesError> {
        while !stop.is_cancelled() {
            tokio::time::sleep(LOOK_EVERY).await;
            self.pass().await.map_err(MachinesError)?;
        }
        Ok(())
    }

    async fn pass(&self) -> anyhow::Result<()> {
        let owing: Vec<(SessionKey, u64)> = self
            .machines()
            .values()
            .filter(|machine| machine.answered < machine.expected)
            .map(|machine| (machine.session, machine.generation))
            .collect();
        if owing.is_empty() {
            return Ok(());
        }
        let specs = self.0.delivery.specs_behind(self.0.lease, owing).await?;
        let mut reported = Vec::new();
        for spec in specs {
            reported.extend(self.take(&spec)?);
        }
        for reported in reported.chunks(ANSWERS_AT_ONCE) {
            let stored = self.0.delivery.put_events_of(self.0.lease, reported.to_vec()).await?;
            if stored.iter().any(Option::is_none) {
                bail!("a session was refused");
            }
        }
        Ok(())
    }

    /// What a machine does with its spec: it holds what is new and lets go of what is to be released, and says so.
    fn take(&self, spec: &StoredSpec) -> anyhow::Result<Option<ReportedEvents>> {
        let body = DesiredStateBody::decode(spec.body.as_slice())?;
        let assignments = body.spec.and_then(|spec| spec.devices).unwrap_or_default().assignments;
        let mut machines = self.machines();
        let machine = machines.get_mut(&spec.node_id).context("a spec of no machine")?;
        machine.generation = spec.generation;
        let reports = machine.converge(&assignments);
        let events = reports.into_iter().map(|report| self.event(machine, report)).collect::<Vec<_>>();
        machine.answered += events.len() as u64;
        let (session, journal_id) = (machine.session, machine.journal_id);
        Ok((!events.is_empty()).then_some(ReportedEvents { session, journal_id, events }))
    }

    fn event(&self, machine: &mut Machine, report: Report) -> ReportedEvent {
        machine.seq += 1;
        let report = NodeReport { node_id: machine.session.node_id.to_string(), report: Some(report) };
        let report = report.encode_to_vec();
        let signature = self.0.key.sign(Purpose::AttestedReport, &report);
        ReportedEvent {
            seq: machine.seq,
            class: TRANSITION,
            signature: Some(signature.to_bytes().to_vec()),
            key_sha256: Some(self.0.key.verifying_key().pin().as_bytes().to_vec()),
            report,
            observed_at: SystemClock::new().now(),
        }
    }
}

impl Machine {
    fn new(node_id: NodeId, session_epoch: u64, journal_id: JournalId) -> Self {
        Self {
            session: SessionKey { node_id, epoch: session_epoch },
            journal_id,
            generation: 0,
            seq: 0,
            bound: BTreeSet::new(),
            released: BTreeSet::new(),
            expected: 0,
            answered: 0,
        }
    }

    fn converge(&mut self, assignments: &[DeviceAssignment]) -> Vec<Report> {
        let mut reports = Vec::new();
        let generation = self.generation;
        for one in assignments {
            let allocation_id = one.allocation_id.clone();
            // One that was released before this machine saw it was never held, and both answers are owed.
            if self.bound.insert(allocation_id.clone()) {
                let cdi_devices = one.atoms.iter().map(|atom| format!("bcd.dev/gpu={atom}")).collect();
                let (atoms, allocation_id) = (one.atoms.clone(), allocation_id.clone());
                reports.push(Report::AllocationBound(AllocationBound {
                    allocation_id,
                    generation,
                    cdi_devices,
                    atoms,
                }));
            }
            if one.desired() == DesiredHold::Released && self.released.insert(allocation_id.clone()) {
                reports.push(Report::AllocationReleased(AllocationReleased { allocation_id, generation }));
            }
        }
        reports
    }
}

/// Why the machines stopped answering.
#[derive(Debug)]
struct MachinesError(anyhow::Error);

impl std::fmt::Display for MachinesError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for MachinesError {}

fn uuid<I: model::Id>(row: &store::Row, column: &str) -> I {
    I::from_uuid(row.get::<_, Uuid>(column))
}
