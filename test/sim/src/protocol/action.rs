//! What happens to a world besides the passing of time: the work it is given, and the faults. One a line of a scenario:
//!
//! ```text
//! at 1250 command node=1 id=3 kind=gpu.reset ttl=300
//! at 1400 crash node=1 point=committed skip=2 how=power
//! ```
//! Times are milliseconds from the start. Nodes, gateways and commands count from 1.

use std::collections::BTreeMap;
use std::fmt;

pub use super::words::{Call, Hold, How, Lie, Point, Release, Treason, Version, Way};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    // What a control plane asks for.
    Command {
        node: usize,
        id: u64,
        kind: String,
        ttl: u64,
        needs: u64,
        key: u64,
    },
    Cancel {
        id: u64,
    },
    Spec {
        node: usize,
        hold: Hold,
        number: u64,
    },
    /// A node's certificate is revoked, and counts again after that long.
    Certificate {
        node: usize,
        lasts: u64,
    },
    Trust,
    /// The database was restored: its epoch is higher, and what had been signed after the backup is history that never was.
    Restore,

    // Faults.
    Crash {
        node: usize,
        point: Point,
        skip: u64,
        how: How,
    },
    Reboot {
        node: usize,
    },
    DiskFull {
        node: usize,
        writes: u32,
    },
    /// Moves a wall clock.
    Clock {
        node: usize,
        by: i64,
    },
    GatewayClock {
        gateway: usize,
        by: i64,
    },
    Slow {
        node: usize,
        lasts: u64,
    },
    Partition {
        node: usize,
        gateway: usize,
        way: Way,
        lasts: u64,
    },
    /// Ends a connection in the middle of a frame; `keep` frames still arrive.
    Cut {
        node: usize,
        keep: usize,
    },
    /// Holds up what one connection carries, while others go on.
    Delay {
        node: usize,
        way: Way,
        by: u64,
    },
    KillGateway {
        gateway: usize,
    },
    /// A gateway's process dies in a call of the store, after `skip` others of its kind: `done` when it was carried out.
    CrashGateway {
        gateway: usize,
        call: Call,
        skip: u32,
        done: bool,
    },
    Pause {
        gateway: usize,
        lasts: u64,
    },
    /// The same, by a host whose clock stands still meanwhile.
    Suspend {
        gateway: usize,
        lasts: u64,
    },
    Drain {
        gateway: usize,
    },
    /// The database does not answer: calls are not carried out, or their answers are lost.
    Database {
        calls: u32,
        done: bool,
    },
    /// The answers of the next renewals come late.
    LateRenewal {
        calls: u32,
        by: u64,
    },
    /// No worker answers.
    Workers {
        lasts: u64,
    },
    HostileGateway {
        node: usize,
        does: Treason,
    },
    HostileNode {
        node: usize,
        says: Lie,
    },
    Speaks {
        node: usize,
        version: Version,
    },
    /// A node's daemon is replaced by one of another release.
    NodeRelease {
        node: usize,
        release: Release,
    },
    GatewayRelease {
        gateway: usize,
        release: Release,
    },
}

impl Action {
    /// The name it is counted under.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Command { .. } => "command",
            Action::Cancel { .. } => "cancel",
            Action::Spec { .. } => "spec",
            Action::Certificate { .. } => "certificate",
            Action::Trust => "trust",
            Action::Restore => "restore",
            Action::Crash { .. } => "crash",
            Action::Reboot { .. } => "reboot",
            Action::DiskFull { .. } => "disk-full",
            Action::Clock { .. } => "clock",
            Action::GatewayClock { .. } => "gateway-clock",
            Action::Slow { .. } => "slow",
            Action::Partition { .. } => "partition",
            Action::Cut { .. } => "cut",
            Action::Delay { .. } => "delay",
            Action::KillGateway { .. } => "kill-gateway",
            Action::CrashGateway { .. } => "crash-gateway",
            Action::Pause { .. } => "pause",
            Action::Suspend { .. } => "suspend",
            Action::Drain { .. } => "drain",
            Action::Database { .. } => "database",
            Action::LateRenewal { .. } => "late-renewal",
            Action::Workers { .. } => "workers",
            Action::HostileGateway { .. } => "hostile-gateway",
            Action::HostileNode { .. } => "hostile-node",
            Action::Speaks { .. } => "speaks",
            Action::NodeRelease { .. } => "node-release",
            Action::GatewayRelease { .. } => "gateway-release",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Action::Command { node, id, kind, ttl, needs, key } => {
                write!(f, " node={node} id={id} kind={kind} ttl={ttl} needs={needs} key={key}")
            }
            Action::Cancel { id } => write!(f, " id={id}"),
            Action::Spec { node, hold, number } => {
                write!(f, " node={node} hold={} number={number}", hold.name())
            }
            Action::Trust | Action::Restore => Ok(()),
            Action::Crash { node, point, skip, how } => {
                write!(f, " node={node} point={} skip={skip} how={}", point.name(), how.name())
            }
            Action::Reboot { node } => write!(f, " node={node}"),
            Action::DiskFull { node, writes } => write!(f, " node={node} writes={writes}"),
            Action::Clock { node, by } => write!(f, " node={node} by={by}"),
            Action::GatewayClock { gateway, by } => write!(f, " gateway={gateway} by={by}"),
            Action::Certificate { node, lasts } => write!(f, " node={node} lasts={lasts}"),
            Action::LateRenewal { calls, by } => write!(f, " calls={calls} by={by}"),
            Action::Slow { node, lasts } => write!(f, " node={node} lasts={lasts}"),
            Action::Partition { node, gateway, way, lasts } => {
                write!(f, " node={node} gateway={gateway} way={} lasts={lasts}", way.name())
            }
            Action::Cut { node, keep } => write!(f, " node={node} keep={keep}"),
            Action::Delay { node, way, by } => write!(f, " node={node} way={} by={by}", way.name()),
            Action::CrashGateway { gateway, call, skip, done } => {
                write!(f, " gateway={gateway} call={} skip={skip} done={done}", call.name())
            }
            Action::KillGateway { gateway } | Action::Drain { gateway } => write!(f, " gateway={gateway}"),
            Action::Pause { gateway, lasts } | Action::Suspend { gateway, lasts } => {
                write!(f, " gateway={gateway} lasts={lasts}")
            }
            Action::Database { calls, done } => write!(f, " calls={calls} done={done}"),
            Action::Workers { lasts } => write!(f, " lasts={lasts}"),
            Action::HostileGateway { node, does } => write!(f, " node={node} does={}", does.name()),
            Action::HostileNode { node, says } => write!(f, " node={node} says={}", says.name()),
            Action::Speaks { node, version } => write!(f, " node={node} version={}", version.name()),
            Action::NodeRelease { node, release } => write!(f, " node={node} release={}", release.name()),
            Action::GatewayRelease { gateway, release } => {
                write!(f, " gateway={gateway} release={}", release.name())
            }
        }
    }
}

/// The words of a line after its name.
struct Words<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Words<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        let mut words = BTreeMap::new();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not key=value"))?;
            words.insert(key, value);
        }
        Ok(Self(words))
    }

    fn text(&mut self, key: &str) -> Result<&'a str, String> {
        self.0.remove(key).ok_or_else(|| format!("it has no {key}"))
    }

    fn number<T: std::str::FromStr>(&mut self, key: &str) -> Result<T, String> {
        let text = self.text(key)?;
        text.parse().map_err(|_| format!("{key}={text} is not a number of its range"))
    }

    fn word<T>(&mut self, key: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let text = self.text(key)?;
        parse(text).ok_or_else(|| format!("{key}={text} is unknown"))
    }

    fn done(self) -> Result<(), String> {
        match self.0.keys().next() {
            Some(key) => Err(format!("{key} is unknown here")),
            None => Ok(()),
        }
    }
}

pub fn parse(line: &str) -> Result<Action, String> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut words = Words::read(rest)?;
    let w = &mut words;
    let action = match name {
        "command" => Action::Command {
            node: w.number("node")?,
            id: w.number("id")?,
            kind: w.text("kind")?.to_owned(),
            ttl: w.number("ttl")?,
            needs: w.number("needs")?,
            key: w.number("key")?,
        },
        "cancel" => Action::Cancel { id: w.number("id")? },
        "spec" => Action::Spec {
            node: w.number("node")?,
            hold: w.word("hold", Hold::parse)?,
            number: w.number("number")?,
        },
        "certificate" => Action::Certificate { node: w.number("node")?, lasts: w.number("lasts")? },
        "late-renewal" => Action::LateRenewal { calls: w.number("calls")?, by: w.number("by")? },
        "trust" => Action::Trust,
        "restore" => Action::Restore,
        "crash" => Action::Crash {
            node: w.number("node")?,
            point: w.word("point", Point::parse)?,
            skip: w.number("skip")?,
            how: w.word("how", How::parse)?,
        },
        "reboot" => Action::Reboot { node: w.number("node")? },
        "disk-full" => Action::DiskFull { node: w.number("node")?, writes: w.number("writes")? },
        "clock" => Action::Clock { node: w.number("node")?, by: w.number("by")? },
        "gateway-clock" => Action::GatewayClock { gateway: w.number("gateway")?, by: w.number("by")? },
        "slow" => Action::Slow { node: w.number("node")?, lasts: w.number("lasts")? },
        "partition" => Action::Partition {
            node: w.number("node")?,
            gateway: w.number("gateway")?,
            way: w.word("way", Way::parse)?,
            lasts: w.number("lasts")?,
        },
        "cut" => Action::Cut { node: w.number("node")?, keep: w.number("keep")? },
        "delay" => {
            Action::Delay { node: w.number("node")?, way: w.word("way", Way::parse)?, by: w.number("by")? }
        }
        "kill-gateway" => Action::KillGateway { gateway: w.number("gateway")? },
        "crash-gateway" => Action::CrashGateway {
            gateway: w.number("gateway")?,
            call: w.word("call", Call::parse)?,
            skip: w.number("skip")?,
            done: w.number("done")?,
        },
        "pause" => Action::Pause { gateway: w.number("gateway")?, lasts: w.number("lasts")? },
        "suspend" => Action::Suspend { gateway: w.number("gateway")?, lasts: w.number("lasts")? },
        "drain" => Action::Drain { gateway: w.number("gateway")? },
        "database" => Action::Database { calls: w.number("calls")?, done: w.number("done")? },
        "workers" => Action::Workers { lasts: w.number("lasts")? },
        "hostile-gateway" => {
            Action::HostileGateway { node: w.number("node")?, does: w.word("does", Treason::parse)? }
        }
        "hostile-node" => Action::HostileNode { node: w.number("node")?, says: w.word("says", Lie::parse)? },
        "speaks" => Action::Speaks { node: w.number("node")?, version: w.word("version", Version::parse)? },
        "node-release" => {
            Action::NodeRelease { node: w.number("node")?, release: w.word("release", Release::parse)? }
        }
        "gateway-release" => Action::GatewayRelease {
            gateway: w.number("gateway")?,
            release: w.word("release", Release::parse)?,
        },
        other => return Err(format!("{other:?} is no action")),
    };
    words.done()?;
    Ok(action)
}
