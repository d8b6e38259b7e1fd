//! The machine as the agent hears of it: the last collected inventory, the facts of its health, its pressure.
//!
//! [`Machine::pass`] looks and remembers; everything the agent asks is answered from memory at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent::converge::Fact;
use agent::hardware::InventorySection;
use agent::run::AgentHandle;
use bytes::Bytes;
use futures::future::BoxFuture;
use kit::{Clock, Wake, Waker};
use model::condition::Severity;
use tokio_util::sync::CancellationToken;
use wire::inventory::{NodeInventory, SectionName};
use wire::proto::agent::Pressure;

use crate::conditions::faults::Faults;
use crate::conditions::presence::Presence;
use crate::conditions::pressure::{self, Judge};

/// Pressure and the kernel log are read this often.
pub const PASS_PERIOD: Duration = Duration::from_secs(30);
/// The inventory is collected this often: `nvidia-smi` takes seconds, and what it tells changes rarely.
pub const INVENTORY_PERIOD: Duration = Duration::from_secs(5 * 60);

pub struct Machine {
    hardware: Arc<dyn hw::Hardware>,
    clock: Arc<dyn Clock>,
    capabilities: Vec<String>,
    /// What is looked after between two passes; its files are written under this lock.
    health: Mutex<Health>,
    readings: Mutex<Readings>,
    changed: Waker,
}

struct Health {
    faults: Faults,
    presence: Presence,
    judge: Judge,
    log_problem: Option<String>,
}

#[derive(Default)]
struct Readings {
    inventory: Arc<NodeInventory>,
    hashes: BTreeMap<String, String>,
    collected_at: Option<Duration>,
    pressure: Option<Pressure>,
    facts: Vec<Fact>,
    facts_at: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the last readings behind, which the next pass replaces.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Machine {
    /// With what is to be told when readings change outside of [`Watch::run`]'s passes.
    pub fn new(
        hardware: Arc<dyn hw::Hardware>,
        clock: Arc<dyn Clock>,
        capabilities: Vec<String>,
        faults: Faults,
        presence: Presence,
    ) -> (Arc<Self>, Watch) {
        let (wake, changed) = Wake::new();
        let machine = Arc::new(Self {
            hardware,
            clock,
            capabilities,
            health: Mutex::new(Health { faults, presence, judge: Judge::default(), log_problem: None }),
            readings: Mutex::default(),
            changed,
        });
        (machine.clone(), Watch { machine, wake })
    }

    pub fn hardware(&self) -> &dyn hw::Hardware {
        &*self.hardware
    }

    /// Collects the inventory now, remembers it, and lets the agent know when it changed.
    pub async fn collect(&self) -> Arc<NodeInventory> {
        let inventory = Arc::new(self.hardware.inventory().await);
        let hashes: BTreeMap<String, String> =
            inventory.hashes().into_iter().map(|(name, hash)| (name.to_string(), hash.to_string())).collect();
        if let Err(err) = lock(&self.health).presence.take(&inventory.gpus) {
            tracing::warn!(err = %kit::chain(&err), "known GPUs not written");
        }
        let changed = {
            let mut readings = lock(&self.readings);
            let changed = readings.hashes != hashes;
            readings.inventory = inventory.clone();
            readings.hashes = hashes;
            readings.collected_at = Some(self.clock.monotonic());
            changed
        };
        if self.judge_facts() || changed {
            self.changed.wake();
        }
        inventory
    }

    /// Has [`Watch::run`] make a whole pass soon: something happened that may have changed the machine.
    pub fn look_soon(&self) {
        lock(&self.readings).collected_at = None;
        self.changed.wake();
    }

    fn is_asked_to_look(&self) -> bool {
        lock(&self.readings).collected_at.is_none()
    }

    /// Looks once. Returns whether the agent has something new to hear, and when to look again.
    pub async fn pass(&self) -> (bool, Duration) {
        let due = lock(&self.readings)
            .collected_at
            .is_none_or(|at| self.clock.monotonic().saturating_sub(at) >= INVENTORY_PERIOD);
        if due {
            self.collect().await;
        }
        let report = self.hardware.pressure().await;
        lock(&self.health).judge.take(&report);
        lock(&self.readings).pressure = Some(pressure::render(&report));
        self.read_log().await;
        (self.judge_facts() || due, PASS_PERIOD)
    }

    /// Takes in what the kernel log has that is new.
    async fn read_log(&self) {
        let from = lock(&self.health).faults.next();
        let batch = self.hardware.xids(from).await;
        let mut health = lock(&self.health);
        match batch {
            Ok(batch) => {
                if batch.lost {
                    tracing::warn!("kernel log overwritten before it was read");
                }
                health.log_problem = None;
                let addresses = health.presence.addresses();
                if let Err(err) = health.faults.take(&batch, &addresses, self.clock.now()) {
                    tracing::warn!(err = %kit::chain(&err), "device errors not written");
                }
            }
            Err(err) => health.log_problem = Some(kit::chain(&err)),
        }
    }

    /// Forgets the errors of a GPU that was reset and is healthy. Lines that the reset itself wrote are among them.
    pub async fn clear_faults(&self, gpu: &str) {
        self.read_log().await;
        if let Err(err) = lock(&self.health).faults.clear(gpu) {
            tracing::warn!(gpu, err = %kit::chain(&err), "device errors not written");
        }
        if self.judge_facts() {
            self.changed.wake();
        }
    }

    /// Puts the facts together. True when they differ in more than their ages.
    fn judge_facts(&self) -> bool {
        let facts = {
            let health = lock(&self.health);
            let mut facts = health.faults.facts(self.clock.now());
            facts.extend(health.presence.facts());
            facts.extend(health.judge.facts());
            facts.extend(health.log_problem.as_deref().map(log_fact));
            facts
        };
        let ageless = |fact: &Fact| Fact { age: None, ..fact.clone() };
        let mut readings = lock(&self.readings);
        let changed = !readings.facts.iter().map(ageless).eq(facts.iter().map(ageless));
        readings.facts = facts;
        readings.facts_at = self.clock.monotonic();
        changed
    }

    /// The facts, with their ages as of now.
    pub fn conditions(&self) -> Vec<Fact> {
        let readings = lock(&self.readings);
        let since = self.clock.monotonic().saturating_sub(readings.facts_at);
        let aged = |fact: &Fact| Fact { age: fact.age.map(|age| age.saturating_add(since)), ..fact.clone() };
        readings.facts.iter().map(aged).collect()
    }
}

fn log_fact(problem: &str) -> Fact {
    Fact {
        kind: "KernelLogUnreadable".into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: "Unreadable".into(),
        message: format!("device errors are not seen: {problem}"),
        age: None,
    }
}

impl agent::hardware::Hardware for Machine {
    fn inventory_hashes(&self) -> BTreeMap<String, String> {
        lock(&self.readings).hashes.clone()
    }

    fn inventory_section(&self, name: &str) -> Option<InventorySection> {
        let section: SectionName = name.parse().ok()?;
        let inventory = lock(&self.readings).inventory.clone();
        let json = Bytes::from(inventory.encode(section));
        Some(InventorySection { hash: wire::inventory::SectionHash::of(&json).to_string(), json })
    }

    fn conditions(&self) -> Vec<Fact> {
        Machine::conditions(self)
    }

    fn pressure(&self) -> Option<Pressure> {
        lock(&self.readings).pressure
    }

    fn capabilities(&self) -> Vec<String> {
        self.capabilities.clone()
    }
}

/// What ends the machine.
pub struct Reboot(pub Arc<dyn hw::Hardware>);

impl agent::hardware::Host for Reboot {
    fn reboot(&self, reason: &str) -> BoxFuture<'static, Result<(), String>> {
        let (hardware, reason) = (self.0.clone(), reason.to_owned());
        Box::pin(async move {
            let asked = hardware.reboot(&reason).await;
            asked.map_err(|err| format!("failed to {}", kit::chain(&err)))
        })
    }
}

/// Drives the passes of a machine, and tells its agent.
pub struct Watch {
    machine: Arc<Machine>,
    wake: Wake,
}

impl Watch {
    /// Until `stop`, or until the agent is gone.
    pub async fn run(mut self, agent: AgentHandle, stop: CancellationToken) -> Result<(), Infallible> {
        let mut last = None;
        loop {
            let now = self.machine.clock.monotonic();
            // A wake-up is somebody else's news, unless it asks for a look.
            let due = last.is_none_or(|last: Duration| now.saturating_sub(last) >= PASS_PERIOD)
                || self.machine.is_asked_to_look();
            let news = if due {
                last = Some(now);
                self.machine.pass().await.0
            } else {
                true
            };
            if news && agent.hardware_changed().await.is_err() {
                return Ok(());
            }
            let elapsed = self.machine.clock.monotonic().saturating_sub(last.unwrap_or_default());
            // Cancel-safe: a wake-up that is not returned stays for the next wait.
            tokio::select! {
                () = self.wake.wait(PASS_PERIOD.saturating_sub(elapsed)) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
