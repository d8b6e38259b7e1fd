//! The real control plane on a real PostgreSQL, with as many simulated machines as asked for, under a virtual clock.
//!
//! ```text
//!   events ──┐                      ┌──▶ tasks of processes: queues, passes, relay, gateways, sessions
//!   timers ──┴─▶ one thread, by ────┤         │ one transaction at a time; time stands still meanwhile
//!                the seed           └──▶ nodes: the agent's engine, in steps
//! ```
//! Time moves only when nothing can run. What runs first, how long frames take, what breaks and when follow from the seed, so
//! the same seed ends in the same rows and the same events.

mod chaos;
pub mod command;
mod control;
mod cpu;
mod event;
mod exec;
mod expect;
mod files;
mod gateway;
mod keys;
mod line;
mod node;
mod outcome;
mod plant;
mod run;
pub mod scenario;
mod schedule;
mod server;
mod setup;
mod shrink;
mod tenants;
mod time;
mod workload;

use chaos::On;
pub use chaos::{Chaos, Fault, Planned};
pub use expect::{Expect, Shown};
pub use outcome::{Broken, Outcome};
pub use run::run;

use std::time::Duration;

const DEFAULT_NODES: usize = 60;
const DEFAULT_GATEWAYS: usize = 3;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Config {
    pub nodes: usize,
    pub gateways: usize,
    /// Processes that serve the API and do a worker's work.
    pub controls: usize,
    pub time: Duration,
    pub seed: u64,
    pub chaos: Chaos,
    /// Faults in place of those that the seed deals.
    pub script: Option<Vec<Planned>>,
    /// Backups are made by the hour, and one of them may be restored.
    pub restores: bool,
    /// Nobody is told of anything: everything is found by looking.
    pub pokes: bool,
    /// The nodes' certificates are of such ages that each is renewed while the simulation runs, or half of them in every seven
    /// hours of it.
    pub renewals: bool,
    /// Clients ask for things.
    pub workload: bool,
    /// They restart no machine, and close none.
    pub calm: bool,
    /// So many instances live and end on the first so many machines, which are hosts. None: no part of it is there.
    pub instances: usize,
    pub hosts: usize,
    /// The invariants over all rows are asked this often.
    pub check_every: Duration,
    /// What must come of it besides.
    pub expects: Vec<Expect>,
    /// The scenario this is from, by its name or its file.
    pub scenario: Option<String>,
}

impl Config {
    pub fn new(nodes: usize, gateways: usize, time: Duration, seed: u64) -> Self {
        Self {
            nodes,
            gateways,
            controls: 2,
            time,
            seed,
            chaos: Chaos::None,
            script: None,
            restores: false,
            pokes: true,
            renewals: false,
            workload: true,
            calm: false,
            instances: 0,
            hosts: 0,
            check_every: Duration::from_secs(60),
            expects: Vec::new(),
            scenario: None,
        }
    }

    /// Whether this machine is one of those that run instances.
    fn is_host(&self, node: usize) -> bool {
        self.instances > 0 && node < self.hosts
    }

    /// Faults are put on what there is, and instances on hosts.
    ///
    /// # Errors
    /// The fault that is not.
    pub fn checked(self) -> Result<Self, String> {
        if self.instances > 0 && !(1..=self.nodes).contains(&self.hosts) {
            return Err(format!(
                "{} instances are on {} hosts of {} machines",
                self.instances, self.hosts, self.nodes
            ));
        }
        for planned in self.script.iter().flatten() {
            let there = match planned.fault.put_on() {
                None => true,
                Some((On::Node, which)) => which < self.nodes,
                Some((On::Gateway, which)) => which < self.gateways,
                Some((On::Control, which)) => which < self.controls,
            };
            if !there {
                return Err(format!("there is nothing to put {planned:?} on"));
            }
        }
        Ok(self)
    }

    /// The command that does the same again.
    pub fn replay(&self) -> String {
        let minutes = self.time.as_secs().div_ceil(60);
        let mut command = format!(
            "better-compute sim --nodes {} --gateways {} --minutes {minutes} --seed {}",
            self.nodes, self.gateways, self.seed,
        );
        match (&self.scenario, self.chaos) {
            (Some(scenario), _) => command.push_str(&format!(" --scenario {scenario}")),
            (None, chaos) => command.push_str(&format!(" --chaos {}", chaos.name())),
        }
        if !self.pokes {
            command.push_str(" --no-pokes");
        }
        if self.restores {
            command.push_str(" --restores");
        }
        command
    }
}
