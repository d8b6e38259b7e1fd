//! What breaks, when, and for how long: dealt from the seed before anything runs, so that one fault less changes nothing
//! about the others.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kit::{Rng, SeededRng};

use super::Config;
use super::schedule::Trap;

/// How much breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chaos {
    None,
    Light,
    Heavy,
}

impl Chaos {
    pub const ALL: [Chaos; 3] = [Chaos::None, Chaos::Light, Chaos::Heavy];

    pub const fn name(self) -> &'static str {
        match self {
            Chaos::None => "none",
            Chaos::Light => "light",
            Chaos::Heavy => "heavy",
        }
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Chaos::ALL.into_iter().find(|chaos| chaos.name() == text);
        found.ok_or_else(|| "it is one of none, light, heavy".to_owned())
    }

    /// Between two faults, on average, in a fleet of sixty machines or fewer.
    const fn period(self) -> Option<Duration> {
        match self {
            Chaos::None => None,
            Chaos::Light => Some(Duration::from_secs(45)),
            Chaos::Heavy => Some(Duration::from_secs(6)),
        }
    }
}

/// One fault, with what it is put on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    NodeCrash(usize),
    NodePower(usize),
    NodeJournalLost(usize),
    NodePartition(usize),
    NodeSlow(usize),
    /// Its wall clock is off by this many milliseconds.
    NodeClock(usize, i64),
    GatewayKill(usize),
    /// Stopped as by SIGSTOP, past its lease, and resumed: a zombie.
    GatewayPause(usize),
    ControlKill(usize),
    ControlPause(usize),
    /// A process has something happen at a statement to come, after so many others.
    ControlTrap(usize, Trap, u32),
    GatewayTrap(usize, Trap, u32),
    /// Every connection is cut, and none is made for a while.
    DatabaseDown,
    /// The server is killed, and recovers from what was durable.
    DatabasePower,
    /// The last backup takes the database's place, and an operator confirms it when this ends.
    DatabaseRestore,
    /// The power of a site goes: every second machine.
    SitePower(usize),
    /// The daemon stops, and another version of it starts.
    NodeUpgrade(usize),
    /// It sends its nodes elsewhere and stops when this ends; another one starts.
    GatewayUpgrade(usize),
    /// It stops, wherever it is, and another one starts.
    ControlUpgrade(usize),
    /// A copy of the database is made, which a restore takes.
    DatabaseBackup,
    /// The hypervisor of a host answers nothing.
    HypervisorDown(usize),
    /// The daemon of a host dies in the middle of a pass, after so many changes of instances.
    HypervisorCut(usize, u32),
    /// An operator declares a machine dead, whether it is or not.
    DeclaredDead(usize),
}

/// What a fault is put on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    Node,
    Gateway,
    Control,
}

impl Fault {
    pub const fn is_of_database(&self) -> bool {
        use Fault::{DatabaseBackup, DatabaseDown, DatabasePower, DatabaseRestore};
        matches!(self, DatabaseDown | DatabasePower | DatabaseRestore | DatabaseBackup)
    }

    pub(super) const fn put_on(&self) -> Option<(On, usize)> {
        match *self {
            Fault::NodeCrash(node)
            | Fault::NodePower(node)
            | Fault::NodeJournalLost(node)
            | Fault::NodePartition(node)
            | Fault::NodeSlow(node)
            | Fault::NodeClock(node, _)
            | Fault::NodeUpgrade(node)
            | Fault::HypervisorDown(node)
            | Fault::DeclaredDead(node)
            | Fault::HypervisorCut(node, _) => Some((On::Node, node)),
            Fault::GatewayKill(gateway)
            | Fault::GatewayPause(gateway)
            | Fault::GatewayUpgrade(gateway)
            | Fault::GatewayTrap(gateway, ..) => Some((On::Gateway, gateway)),
            Fault::ControlKill(control)
            | Fault::ControlPause(control)
            | Fault::ControlUpgrade(control)
            | Fault::ControlTrap(control, ..) => Some((On::Control, control)),
            Fault::DatabaseDown
            | Fault::DatabasePower
            | Fault::DatabaseRestore
            | Fault::DatabaseBackup
            | Fault::SitePower(_) => None,
        }
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Fault::NodeCrash(_) => "node-crash",
            Fault::NodePower(_) => "node-power",
            Fault::NodeJournalLost(_) => "node-journal-lost",
            Fault::NodePartition(_) => "node-partition",
            Fault::NodeSlow(_) => "node-slow",
            Fault::NodeClock(..) => "node-clock",
            Fault::GatewayKill(_) => "gateway-kill",
            Fault::GatewayPause(_) => "gateway-zombie",
            Fault::ControlKill(_) => "worker-kill",
            Fault::ControlPause(_) => "worker-zombie",
            Fault::ControlTrap(_, trap, _) => trap.name(),
            Fault::GatewayTrap(_, trap, _) => trap.name(),
            Fault::DatabaseDown => "database-failover",
            Fault::DatabasePower => "database-power",
            Fault::DatabaseRestore => "database-restore",
            Fault::SitePower(_) => "site-power",
            Fault::NodeUpgrade(_) => "node-upgrade",
            Fault::GatewayUpgrade(_) => "gateway-upgrade",
            Fault::ControlUpgrade(_) => "worker-upgrade",
            Fault::DatabaseBackup => "database-backup",
            Fault::HypervisorDown(_) => "hypervisor-down",
            Fault::HypervisorCut(..) => "hypervisor-cut",
            Fault::DeclaredDead(_) => "declared-dead",
        }
    }
}

/// A fault and its time, since the simulation's begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub at: Duration,
    pub lasts: Duration,
    pub fault: Fault,
}

/// Faults in the order of their times.
pub fn deal(config: &Config) -> Vec<Planned> {
    let Some(period) = config.chaos.period() else { return Vec::new() };
    // Of its own: what the simulation draws must not depend on what breaks, nor the other way round.
    let rng: &dyn Rng = &SeededRng::new(config.seed ^ 0x000c_4a05_0000_0000);
    let mut planned = every(rng, config, period, |rng| draw(rng, config, ALL));
    // A larger fleet has more machines that break, and no more of anything else.
    let more = u32::try_from(config.nodes.saturating_sub(FEW_NODES)).unwrap_or(u32::MAX);
    if more > 0 {
        let few = f64::from(u32::try_from(FEW_NODES).expect("a small constant"));
        let period = period.mul_f64(few / f64::from(more) * ALL as f64 / OF_NODES as f64);
        planned.extend(every(rng, config, period, |rng| draw(rng, config, OF_NODES)));
    }
    if config.instances > 0 {
        let rng: &dyn Rng = &SeededRng::new(config.seed ^ 0x000c_4a05_1457_0000);
        planned.extend(every(rng, config, period, |rng| draw_of_hypervisors(rng, config)));
    }
    planned.sort_by_key(|one| one.at);
    planned
}

fn every(rng: &dyn Rng, config: &Config, period: Duration, draw: impl Fn(&dyn Rng) -> Fault) -> Vec<Planned> {
    let up_to = |most: Duration| {
        Duration::from_millis(rng.below(u64::try_from(most.as_millis()).unwrap_or(1).max(1)))
    };
    let mut at = FIRST_AFTER;
    let mut planned = Vec::new();
    loop {
        at += up_to(2 * period);
        if at >= config.time {
            return planned;
        }
        let fault = draw(rng);
        let (from, to) = lasts(&fault);
        let lasts = Duration::from_secs(from) + up_to(Duration::from_secs(to - from));
        planned.push(Planned { at, lasts, fault });
    }
}

const FEW_NODES: usize = 60;
/// Faults are drawn from so many chances, of which the first are of single machines.
const ALL: u64 = 1000;
const OF_NODES: u64 = 535;

/// Everybody has started by then.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// A restore from an hour ago needs an hour that went well enough to be lost.
const RESTORE_AFTER: Duration = Duration::from_secs(70 * 60);

fn draw(rng: &dyn Rng, config: &Config, chances: u64) -> Fault {
    let below = |count: usize| usize::try_from(rng.below(count as u64)).unwrap_or(0);
    let (node, gateway, control) = (below(config.nodes), below(config.gateways), below(config.controls));
    let (trap, passed) = (Trap::ALL[below(Trap::ALL.len())], u32::try_from(rng.below(40)).unwrap_or(0));
    let off_ms = i64::try_from(rng.below(600_000)).unwrap_or(0) - 300_000;
    match rng.below(chances) {
        0..150 => Fault::NodeCrash(node),
        150..250 => Fault::NodePower(node),
        250..290 => Fault::NodeJournalLost(node),
        290..400 => Fault::NodePartition(node),
        400..460 => Fault::NodeSlow(node),
        460..520 => Fault::NodeClock(node, off_ms),
        520..OF_NODES => Fault::NodeUpgrade(node),
        OF_NODES..575 => Fault::GatewayKill(gateway),
        575..590 => Fault::GatewayUpgrade(gateway),
        590..640 => Fault::GatewayPause(gateway),
        640..690 => Fault::ControlKill(control),
        690..730 => Fault::ControlPause(control),
        730..870 => Fault::ControlTrap(control, trap, passed),
        870..960 => Fault::GatewayTrap(gateway, trap, passed),
        960..984 => Fault::DatabaseDown,
        984..990 => Fault::DatabasePower,
        990..992 if config.restores && config.time > RESTORE_AFTER => Fault::DatabaseRestore,
        _ => Fault::SitePower(below(2)),
    }
}

fn draw_of_hypervisors(rng: &dyn Rng, config: &Config) -> Fault {
    let host = usize::try_from(rng.below(config.hosts as u64)).unwrap_or(0);
    match rng.below(2) {
        0 => Fault::HypervisorDown(host),
        _ => Fault::HypervisorCut(host, 1 + u32::try_from(rng.below(6)).unwrap_or(0)),
    }
}

/// How long one lasts, in seconds, from and to.
const fn lasts(fault: &Fault) -> (u64, u64) {
    match fault {
        Fault::NodeCrash(_) | Fault::NodeJournalLost(_) | Fault::NodeUpgrade(_) => (1, 20),
        Fault::NodePower(_) => (20, 180),
        Fault::NodePartition(_) => (5, 150),
        Fault::NodeSlow(_) => (10, 120),
        Fault::NodeClock(..) => (60, 900),
        Fault::GatewayKill(_) | Fault::ControlKill(_) | Fault::ControlUpgrade(_) => (1, 40),
        Fault::GatewayUpgrade(_) => (6, 12),
        Fault::DatabaseBackup | Fault::DeclaredDead(_) => (1, 2),
        Fault::GatewayPause(_) | Fault::ControlPause(_) => (3, 60),
        Fault::ControlTrap(..) | Fault::GatewayTrap(..) => (1, 40),
        Fault::DatabaseDown | Fault::DatabasePower => (1, 30),
        Fault::DatabaseRestore => (120, 400),
        Fault::SitePower(_) => (30, 240),
        Fault::HypervisorDown(_) => (5, 60),
        Fault::HypervisorCut(..) => (20, 60),
    }
}

/// `at_ms lasts_ms name numbers…`, as a line of a scenario.
impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at.as_millis(), self.lasts.as_millis())?;
        match self.fault {
            Fault::ControlTrap(process, trap, passed) => {
                write!(f, "worker:{} {process} {passed}", trap.name())
            }
            Fault::GatewayTrap(process, trap, passed) => {
                write!(f, "gateway:{} {process} {passed}", trap.name())
            }
            Fault::NodeClock(node, off_ms) => write!(f, "node-clock {node} {off_ms}"),
            Fault::HypervisorCut(node, after) => write!(f, "hypervisor-cut {node} {after}"),
            Fault::DatabaseDown | Fault::DatabasePower | Fault::DatabaseRestore | Fault::DatabaseBackup => {
                write!(f, "{}", self.fault.name())
            }
            Fault::NodeCrash(which)
            | Fault::NodePower(which)
            | Fault::NodeJournalLost(which)
            | Fault::NodePartition(which)
            | Fault::NodeSlow(which)
            | Fault::GatewayKill(which)
            | Fault::GatewayPause(which)
            | Fault::ControlKill(which)
            | Fault::ControlPause(which)
            | Fault::NodeUpgrade(which)
            | Fault::GatewayUpgrade(which)
            | Fault::ControlUpgrade(which)
            | Fault::SitePower(which)
            | Fault::DeclaredDead(which)
            | Fault::HypervisorDown(which) => write!(f, "{} {which}", self.fault.name()),
        }
    }
}

impl FromStr for Planned {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("{line:?} is no fault: at_ms lasts_ms name numbers…");
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or_else(wrong);
        let (at, lasts) = (Duration::from_millis(number()?), Duration::from_millis(number()?));
        let name = words.next().ok_or_else(wrong)?;
        let rest: Vec<i64> = words.map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let index = |at: usize| rest.get(at).and_then(|which| usize::try_from(*which).ok()).ok_or_else(wrong);
        let trap = |name: &str| Trap::ALL.into_iter().find(|trap| trap.name() == name).ok_or_else(wrong);
        let passed = || index(1).and_then(|passed| u32::try_from(passed).map_err(|_| wrong()));
        let fault = match name.split_once(':') {
            Some(("worker", trap_name)) => Fault::ControlTrap(index(0)?, trap(trap_name)?, passed()?),
            Some(("gateway", trap_name)) => Fault::GatewayTrap(index(0)?, trap(trap_name)?, passed()?),
            Some(_) => return Err(wrong()),
            None => match name {
                "node-crash" => Fault::NodeCrash(index(0)?),
                "node-power" => Fault::NodePower(index(0)?),
                "node-journal-lost" => Fault::NodeJournalLost(index(0)?),
                "node-partition" => Fault::NodePartition(index(0)?),
                "node-slow" => Fault::NodeSlow(index(0)?),
                "node-clock" => Fault::NodeClock(index(0)?, *rest.get(1).ok_or_else(wrong)?),
                "gateway-kill" => Fault::GatewayKill(index(0)?),
                "gateway-zombie" => Fault::GatewayPause(index(0)?),
                "worker-kill" => Fault::ControlKill(index(0)?),
                "worker-zombie" => Fault::ControlPause(index(0)?),
                "database-failover" => Fault::DatabaseDown,
                "database-power" => Fault::DatabasePower,
                "database-restore" => Fault::DatabaseRestore,
                "site-power" => Fault::SitePower(index(0)?),
                "node-upgrade" => Fault::NodeUpgrade(index(0)?),
                "gateway-upgrade" => Fault::GatewayUpgrade(index(0)?),
                "worker-upgrade" => Fault::ControlUpgrade(index(0)?),
                "database-backup" => Fault::DatabaseBackup,
                "hypervisor-down" => Fault::HypervisorDown(index(0)?),
                "declared-dead" => Fault::DeclaredDead(index(0)?),
                "hypervisor-cut" => Fault::HypervisorCut(index(0)?, passed()?),
                _ => return Err(wrong()),
            },
        };
        Ok(Planned { at, lasts, fault })
    }
}

#[cfg(test)]
mod tests;
