//! Scenarios from seeds, and runs of many of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::action::{Action, Call, Hold, How, Lie, Point, Release, Treason, Version, Way};
use super::draw::Dice;
use super::invariants::Violation;
use super::run::{Outcome, run};
use super::scenario::Scenario;

/// Kinds of commands that are asked for; one that no daemon of today knows is among them.
const KINDS: [&str; 7] = [
    "inventory.refresh",
    "diag.nvml",
    "logs.collect",
    "gpu.reset",
    "gpu.reset",
    "node.reboot",
    "gpu.levitate",
];

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed);
    let nodes = dice.of(&[1, 2, 2, 3]);
    let gateways = dice.of(&[1, 2, 2]);
    // From a quiet minute to ten wild ones.
    let lasts = dice.between(60_000, 600_000);
    let faults = lasts / dice.of(&[600, 1_000, 2_000, 6_000]);
    let mut lines = Vec::new();
    for node in 1..=nodes {
        lines.push((dice.below(2_000), Action::Spec { node, hold: Hold::Held, number: node as u64 }));
    }
    for id in 1..=lasts / dice.of(&[4_000, 10_000, 25_000]) {
        let at = dice.below(lasts);
        lines.push((at, command(&mut dice, id, nodes)));
        if dice.below(10) == 0 {
            lines.push((at + dice.below(20_000), Action::Cancel { id }));
        }
    }
    for _ in 0..lasts / dice.of(&[15_000, 40_000]) {
        let at = dice.below(lasts);
        let node = 1 + dice.below(nodes as u64) as usize;
        let hold = dice.of(&[Hold::Held, Hold::Held, Hold::Released, Hold::Dropped]);
        lines.push((at, Action::Spec { node, hold, number: 1 + dice.below(6) }));
    }
    if dice.below(3) == 0 {
        lines.push((dice.below(lasts), Action::Trust));
    }
    if dice.below(4) == 0 {
        let node = 1 + dice.below(nodes as u64) as usize;
        let lasts = dice.of(&[5_000, 40_000, 90_000]);
        lines.push((dice.below(60_000), Action::Certificate { node, lasts }));
    }
    if dice.below(4) == 0 {
        lines.push((dice.below(lasts), Action::Restore));
    }
    for _ in 0..faults {
        let at = dice.below(lasts);
        let fault = fault(&mut dice, nodes, gateways);
        lines.push((at, fault));
    }
    lines.sort_by_key(|(at, _)| *at);
    Scenario { seed, nodes, gateways, lines }
}

fn command(dice: &mut Dice, id: u64, nodes: usize) -> Action {
    Action::Command {
        node: 1 + dice.below(nodes as u64) as usize,
        id,
        kind: dice.of(&KINDS).to_owned(),
        ttl: dice.of(&[20, 60, 120, 300]),
        needs: if dice.below(6) == 0 { 1 + dice.below(2) } else { 0 },
        key: if dice.below(2) == 0 { dice.of(&[1, 1, 2, 3]) } else { 0 },
    }
}

fn fault(dice: &mut Dice, nodes: usize, gateways: usize) -> Action {
    let node = 1 + dice.below(nodes as u64) as usize;
    let gateway = 1 + dice.below(gateways as u64) as usize;
    match dice.below(100) {
        0..24 => Action::Crash {
            node,
            point: dice.of(Point::ALL),
            skip: dice.of(&[0, 0, 0, 1, 2, 5]),
            how: dice.of(&[How::Kill, How::Kill, How::Kill, How::Power, How::Torn, How::Lost]),
        },
        24..26 => Action::Reboot { node },
        26..32 => Action::DiskFull { node, writes: dice.of(&[1, 1, 2, 3, 6]) },
        32..34 => Action::Clock { node, by: clock_jump(dice) },
        34..35 => Action::GatewayClock { gateway, by: clock_jump(dice) },
        35..37 => Action::Slow { node, lasts: dice.between(200, 40_000) },
        37..41 => Action::Partition {
            node,
            gateway,
            way: dice.of(Way::ALL),
            lasts: dice.of(&[500, 3_000, 15_000, 45_000]),
        },
        41..46 => Action::Cut { node, keep: dice.below(4) as usize },
        46..49 => Action::Delay { node, way: dice.of(Way::ALL), by: dice.of(&[50, 1_000, 8_000, 28_000]) },
        49 => Action::KillGateway { gateway },
        50 => {
            let (call, skip) = (dice.of(Call::ALL), dice.of(&[0, 0, 1]));
            Action::CrashGateway { gateway, call, skip, done: dice.below(2) == 0 }
        }
        51 => Action::Suspend { gateway, lasts: dice.of(&[2_000, 9_000, 14_000, 40_000]) },
        52 => Action::Pause { gateway, lasts: dice.of(&[2_000, 9_000, 14_000, 40_000]) },
        53..54 => Action::Drain { gateway },
        54..60 => Action::Database { calls: dice.of(&[1, 1, 2, 5]), done: dice.below(2) == 0 },
        60 if dice.below(2) == 0 => {
            Action::LateRenewal { calls: dice.of(&[1, 3, 6]), by: dice.of(&[500, 4_000, 8_000]) }
        }
        60 => Action::Workers { lasts: dice.between(1_000, 60_000) },
        61 => Action::NodeRelease { node, release: dice.of(Release::ALL) },
        62 if dice.below(2) == 0 => Action::GatewayRelease { gateway, release: dice.of(Release::ALL) },
        62..84 => Action::HostileGateway { node, does: dice.of(Treason::ALL) },
        84..95 => Action::HostileNode { node, says: dice.of(Lie::ALL) },
        _ => Action::Speaks { node, version: dice.of(Version::ALL) },
    }
}

fn clock_jump(dice: &mut Dice) -> i64 {
    dice.of(&[-86_400_000, -3_600_000, -30_000, -200, 200, 30_000, 3_600_000, 86_400_000])
}

/// What many runs came to.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub faults: u64,
    pub steps: u64,
    pub frames: u64,
    pub commits: u64,
    pub hits: BTreeMap<&'static str, u64>,
    pub fates: BTreeMap<&'static str, u64>,
    pub spent: Duration,
    /// Of this process's processor time.
    pub cpu: Duration,
    pub simulated: Duration,
    /// Of all transcripts, in order.
    pub hash: u64,
}

impl Tally {
    pub fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.faults += outcome.faults();
        self.steps += outcome.steps;
        self.frames += outcome.frames;
        self.commits += outcome.commits;
        self.simulated += Duration::from_micros(outcome.lasted);
        for (fault, count) in &outcome.hits {
            *self.hits.entry(fault).or_default() += count;
        }
        for (fate, count) in &outcome.fates {
            *self.fates.entry(fate).or_default() += count;
        }
        for byte in outcome.hash.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// On one core, however many others wait for it.
    pub fn faults_per_minute(&self) -> u64 {
        (self.faults as f64 * 60.0 / self.cpu.as_secs_f64().max(1e-9)) as u64
    }
}

/// How much is explored.
#[derive(Debug, Clone, Copy)]
pub struct Until {
    pub runs: u64,
    pub faults: u64,
    pub time: Duration,
}

/// What this process has used.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// Runs one seed after the other until enough, or until one breaks an invariant.
pub fn explore(
    first: u64,
    until: Until,
    mut each: impl FnMut(&Tally),
) -> (Tally, Option<(Scenario, Violation)>) {
    let (start, cpu, mut tally) = (Instant::now(), cpu_time(), Tally::default());
    let mut seed = first;
    while tally.runs < until.runs && tally.faults < until.faults && tally.spent < until.time {
        let scenario = scenario(seed);
        let outcome = run(&scenario, false);
        tally.add(&outcome);
        tally.spent = start.elapsed();
        tally.cpu = cpu_time().saturating_sub(cpu);
        each(&tally);
        if let Some(violation) = outcome.violation {
            return (tally, Some((scenario, violation)));
        }
        seed = seed.wrapping_add(1);
    }
    (tally, None)
}
