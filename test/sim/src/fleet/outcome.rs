//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model::Timestamp;

use super::time::Spent;
use super::{Config, Shown};

/// A run that ended as it should.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// A digest of every row.
    pub state: String,
    /// The same of each table by itself.
    pub tables: BTreeMap<String, String>,
    /// A digest of every domain event, in order.
    pub events_digest: String,
    pub events: i64,
    pub faults: BTreeMap<&'static str, u64>,
    pub commands: BTreeMap<String, i64>,
    pub reservations: BTreeMap<String, i64>,
    pub instances: BTreeMap<String, i64>,
    pub answers: BTreeMap<String, u64>,
    pub unreachable: i64,
    pub shown: Shown,
    pub polls: u64,
    /// Transactions and statements outside of one, by name.
    pub transactions: BTreeMap<&'static str, Spent>,
    pub virtual_time: Duration,
    pub took: Duration,
    /// Resident memory of this process over what it was before the nodes were made, by node.
    pub bytes_per_node: u64,
}

impl Outcome {
    /// What a second run of the same seed must end in too.
    pub fn same_as(&self, other: &Outcome) -> bool {
        self.state == other.state && self.events_digest == other.events_digest
    }

    /// Tables whose rows another run left otherwise.
    pub fn differs_in(&self, other: &Outcome) -> Vec<&str> {
        let differs = |(table, digest): &(&String, &String)| other.tables.get(*table) != Some(*digest);
        self.tables.iter().filter(differs).map(|(table, _)| table.as_str()).collect()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "  faults        {faults} {}", list(&self.faults))?;
        writeln!(f, "  commands      {}", list(&self.commands))?;
        writeln!(f, "  reservations  {}", list(&self.reservations))?;
        if !self.instances.is_empty() {
            writeln!(f, "  instances     {}", list(&self.instances))?;
        }
        writeln!(f, "  answers       {}", list(&self.answers))?;
        writeln!(f, "  unreachable   {} times", self.unreachable)?;
        writeln!(f, "  disturbed     {} reservations", self.shown.disturbed)?;
        writeln!(f, "  renewed       {} certificates", self.shown.renewals)?;
        if let Some(after) = self.shown.ready_after {
            let longest = self.shown.unserved_longest.as_secs();
            writeln!(
                f,
                "  all ready     after {} s; some without a session for {longest} s at most",
                after.as_secs()
            )?;
        }
        writeln!(f, "  events        {} {}", self.events, self.events_digest)?;
        writeln!(f, "  state         {}", self.state)?;
        let (virtual_time, took) = (self.virtual_time.as_secs_f64(), self.took.as_secs_f64());
        writeln!(f, "  time          {virtual_time:.0} s in {took:.1} s, {} steps", self.polls)?;
        let all: u64 = self.transactions.values().map(|one| one.count).sum();
        let mut most: Vec<_> = self.transactions.iter().collect();
        most.sort_by_key(|(name, spent)| (std::cmp::Reverse(spent.time), **name));
        let most: Vec<String> = most.iter().take(16).map(|(name, spent)| shown(name, spent)).collect();
        writeln!(f, "  transactions  {all}, most time in {}", most.join(", "))?;
        write!(f, "  memory        {} KiB a node", self.bytes_per_node / 1024)
    }
}

fn shown(name: &str, spent: &Spent) -> String {
    format!("{name} {} in {:.1} s", spent.count, spent.time.as_secs_f64())
}

fn list<K: fmt::Display, V: fmt::Display>(map: &BTreeMap<K, V>) -> String {
    map.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// A run that broke an invariant.
#[derive(Debug, Clone)]
pub struct Broken {
    pub violations: Vec<String>,
    pub at: Timestamp,
    pub elapsed: Duration,
    /// When the simulation began, on the same clock.
    pub begun: Duration,
    pub config: Config,
    /// The last faults that were put in before.
    pub faults: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elapsed = self.elapsed.saturating_sub(self.begun).as_secs_f64();
        writeln!(f, "after {elapsed:.3} s of virtual time ({}):", self.at)?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        if !self.faults.is_empty() {
            writeln!(f, "the last faults before:")?;
            for fault in &self.faults {
                writeln!(f, "  {fault}")?;
            }
        }
        writeln!(f, "seed {}; the same again:", self.config.seed)?;
        write!(f, "  {}", self.config.replay())
    }
}

impl std::error::Error for Broken {}
