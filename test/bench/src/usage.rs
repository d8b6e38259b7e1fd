//! What processes take, as procfs tells.

use std::time::Duration;

use anyhow::Context;

/// One process, now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Of all its threads, also of those that have ended.
    pub cpu: Duration,
    pub resident_bytes: u64,
    /// Pages shared with other processes count in parts.
    pub proportional_bytes: u64,
    pub threads: u64,
    /// How often its threads went to sleep by themselves, which is how often something woke them.
    pub sleeps: u64,
}

/// The kernel's unit of CPU time in procfs.
const TICK: Duration = Duration::from_millis(10);

pub fn of(pid: u32) -> anyhow::Result<Usage> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
    };
    let status = read("status")?;
    let rollup = read("smaps_rollup").unwrap_or_default();
    let stat = Stat::parse(&read("stat")?)?;
    Ok(Usage {
        cpu: TICK * stat.own,
        resident_bytes: kib(&status, "VmRSS:") * 1024,
        proportional_bytes: kib(&rollup, "Pss:") * 1024,
        threads: kib(&status, "Threads:"),
        sleeps: sleeps(pid),
    })
}

/// CPU of a process and of all below it, those that have ended included.
pub fn cpu_of_tree(root: u32) -> anyhow::Result<Duration> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // One that ends while we look is with its parent's ended children.
        if let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            all.push((pid, Stat::parse(&text)?));
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(all.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    let ticks = all.iter().filter(|(pid, _)| found.contains(pid)).map(|(_, stat)| stat.own + stat.ended);
    Ok(TICK * ticks.sum::<u32>())
}

struct Stat {
    parent: u32,
    own: u32,
    ended: u32,
}

impl Stat {
    fn parse(text: &str) -> anyhow::Result<Self> {
        // The name stands in parentheses and may hold anything.
        let (_, after) = text.rsplit_once(')').context("a process's stat has its name in parentheses")?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let field = |at: usize| -> anyhow::Result<u32> {
            fields
                .get(at)
                .context("a process's stat is short")?
                .parse()
                .context("a number in a process's stat")
        };
        Ok(Self { parent: field(1)?, own: field(11)? + field(12)?, ended: field(13)? + field(14)? })
    }
}

/// The number after a name at the start of a line.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    statuses.map(|status| kib(&status, "voluntary_ctxt_switches:")).sum()
}

#[cfg(test)]
mod tests;
