//! The callers: each holds its share of the pool, lets go of something when that is full, and asks for something else.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bench::figures::{Run, Sample};
use kit::{Rng, SeededRng};
use serde_json::{Value, json};

use super::machines::Machines;
use crate::plane::{Api, Plane};

/// What is asked for, each as often as it stands here.
const SIZES: [u32; 8] = [1, 1, 1, 2, 2, 4, 4, 8];
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

pub struct Load {
    callers: Vec<Arc<Mutex<Caller>>>,
    apis: Vec<Api>,
    machines: Machines,
}

struct Caller {
    /// Id, GPUs and machine.
    held: Vec<(String, u32, String)>,
    gpus: u32,
    gpus_max: u32,
    dice: Arc<SeededRng>,
}

pub struct Measured {
    pub placed: Run,
    pub released: Run,
    /// Creates that found no place at once.
    pub waited: usize,
    /// From the last call until every machine had its spec and every answer of a machine was handled.
    pub settled_after: Duration,
}

#[derive(Default)]
struct Told {
    placed: Vec<Sample>,
    released: Vec<Sample>,
    waited: usize,
}

impl Load {
    /// Books until the pool is as full as wanted, and waits until every machine has answered.
    pub async fn fill(
        plane: &Plane,
        machines: &Machines,
        callers: usize,
        gpus: u32,
        occupancy_percent: u32,
    ) -> anyhow::Result<Self> {
        let share = gpus * occupancy_percent / 100 / u32::try_from(callers)?;
        let made = (0..callers).map(|at| {
            let dice = Arc::new(SeededRng::new(at as u64));
            Arc::new(Mutex::new(Caller { held: Vec::new(), gpus: 0, gpus_max: share.max(8), dice }))
        });
        let load =
            Self { callers: made.collect(), apis: plane.clients(callers).await?, machines: machines.clone() };
        let filling = load.each().map(|(caller, api)| async move {
            while !caller.lock().expect("no holder panics").is_full() {
                reserve(caller, api, machines).await?;
            }
            anyhow::Ok(())
        });
        futures::future::try_join_all(filling).await?;
        load.machines.settled(SETTLED_WITHIN).await?;
        Ok(load)
    }

    pub fn held(&self) -> usize {
        self.callers.iter().map(|caller| caller.lock().expect("no holder panics").held.len()).sum()
    }

    pub fn gpus_held(&self) -> u32 {
        self.callers.iter().map(|caller| caller.lock().expect("no holder panics").gpus).sum()
    }

    /// Releases and creates at the same rate for a while.
    pub async fn churn(&self, lasts: Duration) -> anyhow::Result<Measured> {
        let started = Instant::now();
        let churning = self.each().map(|(caller, api)| churn(caller, api, &self.machines, started, lasts));
        let told = futures::future::try_join_all(churning).await?;
        let lasted = started.elapsed();
        let settled_after = self.machines.settled(SETTLED_WITHIN).await?;
        let (mut placed, mut released, mut waited) = (Vec::new(), Vec::new(), 0);
        for mut one in told {
            placed.append(&mut one.placed);
            released.append(&mut one.released);
            waited += one.waited;
        }
        Ok(Measured {
            placed: Run::new("reservations.create, answered as placed", lasted, placed),
            released: Run::new("reservations.release, answered", lasted, released),
            waited,
            settled_after,
        })
    }

    fn each(&self) -> impl Iterator<Item = (&Mutex<Caller>, &Api)> {
        self.callers.iter().map(AsRef::as_ref).zip(&self.apis)
    }
}

impl Caller {
    fn is_full(&self) -> bool {
        self.gpus >= self.gpus_max
    }

    fn below(&self, bound: usize) -> usize {
        (&*self.dice as &dyn Rng).below(bound as u64) as usize
    }
}

async fn churn(
    caller: &Mutex<Caller>,
    api: &Api,
    machines: &Machines,
    started: Instant,
    lasts: Duration,
) -> anyhow::Result<Told> {
    let mut told = Told::default();
    while started.elapsed() < lasts {
        while caller.lock().expect("no holder panics").is_full() {
            let from = Instant::now();
            release(caller, api, machines).await?;
            told.released.push(Sample { at: started.elapsed(), took: from.elapsed() });
        }
        let from = Instant::now();
        match reserve(caller, api, machines).await? {
            true => told.placed.push(Sample { at: started.elapsed(), took: from.elapsed() }),
            false => told.waited += 1,
        }
    }
    Ok(told)
}

/// Whether it was placed at once; one that was not is given up again.
async fn reserve(caller: &Mutex<Caller>, api: &Api, machines: &Machines) -> anyhow::Result<bool> {
    let gpus = {
        let caller = caller.lock().expect("no holder panics");
        SIZES[caller.below(SIZES.len())]
    };
    let made = api.ok("reservations.create", json!({ "pool": "gpu", "gpus": gpus, "hours": 24 })).await?;
    let id = text(&made, "/id")?;
    match made["state"].as_str() {
        Some("placed" | "active") => {
            let node = text(&made, "/node/id")?;
            machines.expect(&node)?;
            let mut caller = caller.lock().expect("no holder panics");
            caller.held.push((id, gpus, node));
            caller.gpus += gpus;
            Ok(true)
        }
        Some("scheduling") => {
            let ended = api.ok("reservations.release", json!({ "id": id })).await?;
            // It was placed after all, just before: its machine binds it and lets go of it.
            if let Some(node) = ended.pointer("/node/id").and_then(Value::as_str) {
                machines.expect(node)?;
                machines.expect(node)?;
            }
            Ok(false)
        }
        other => bail!("a new reservation is {other:?}"),
    }
}

async fn release(caller: &Mutex<Caller>, api: &Api, machines: &Machines) -> anyhow::Result<()> {
    let (id, gpus, node) = {
        let mut caller = caller.lock().expect("no holder panics");
        let at = caller.below(caller.held.len());
        caller.held.swap_remove(at)
    };
    api.ok("reservations.release", json!({ "id": id })).await?;
    machines.expect(&node)?;
    caller.lock().expect("no holder panics").gpus -= gpus;
    Ok(())
}

fn text(value: &Value, pointer: &str) -> anyhow::Result<String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    Ok(found.with_context(|| format!("{value} has no {pointer}"))?.to_owned())
}
