//! Gateways over PostgreSQL with thousands of nodes.

use std::time::{Duration, Instant};

use bench::figures::{Run, Sample};
use serde_json::Value;

use crate::sessions::part::Process;
use crate::sessions::samples;

pub mod agents;
pub mod database;
pub mod dispatch;
pub mod machines;
pub mod openssl;
pub mod recovery;
pub mod relay;
pub mod storm;

/// Nodes spread over processes, which all do the same.
pub struct Fleet {
    processes: Vec<Process>,
    pub nodes: u64,
}

impl Fleet {
    pub fn start(nodes: u64, processes: u64, at: &str) -> anyhow::Result<Self> {
        let share = nodes / processes;
        let mut processes = (0..processes)
            .map(|number| {
                Process::start(&["machines", &(number * share).to_string(), &share.to_string(), at])
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        processes.iter_mut().try_for_each(|one| one.hear().map(drop))?;
        let nodes = share * processes.len() as u64;
        Ok(Self { processes, nodes })
    }

    /// Connects all of them to `address` at once.
    pub fn connect(&mut self, what: &str, address: &str, heartbeat: Duration) -> anyhow::Result<Run> {
        let started = Instant::now();
        let told = self.ask(&format!("connect {address} {}", heartbeat.as_millis()))?;
        let samples: Vec<Sample> = samples(&told);
        Ok(Run::new(what, started.elapsed(), samples))
    }

    /// Commands that came since this was last asked: their ids, and when, in microseconds of the wall clock.
    pub fn received(&mut self) -> anyhow::Result<Vec<(String, i64)>> {
        let told = self.ask("report")?;
        let pairs = told.iter().filter_map(Value::as_array).flatten();
        let pair = |pair: &Value| Some((pair[0].as_str()?.to_owned(), pair[1].as_i64()?));
        Ok(pairs.filter_map(pair).collect())
    }

    pub fn cpu(&self) -> anyhow::Result<Duration> {
        crate::sessions::cpu_of(&self.processes)
    }

    fn ask(&mut self, order: &str) -> anyhow::Result<Vec<Value>> {
        self.processes.iter_mut().try_for_each(|one| one.tell(order))?;
        self.processes.iter_mut().map(Process::hear).collect()
    }
}

/// A gateway of its own process over a database, and where it listens.
pub fn gateway(number: u64, at: &str, url: &str) -> anyhow::Result<(Process, String)> {
    let mut process = Process::with_database(&["over", &number.to_string(), at], url)?;
    let address = process.hear()?.as_str().unwrap_or_default().to_owned();
    Ok((process, address))
}
