//! A scenario as text: the size of the world, what breaks when, and what must come of it.
//!
//! ```text
//! # what it shows
//! nodes 12
//! minutes 10
//! expect reservations 5
//! each 60000 2000 3000 node-upgrade
//! 90000 4000 gateway-kill 1
//! ```
//! A line that begins with a number is a fault: when, for how long (both in ms), what, and on what. `each FROM EVERY LASTS
//! FAULT` is one fault for everything it can be put on, one after the other.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::chaos::{Chaos, Planned};
use super::{Config, DEFAULT_GATEWAYS, DEFAULT_NODES};

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        /// Those of this repository, by name.
        pub const SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../scenarios/fleet/", $name, ".txt")))),*];
    };
}

scenarios! {
    "cold-start",
    "database-power",
    "gateway-kill",
    "instances",
    "lost-hosts",
    "no-pokes",
    "restores",
    "rolling-upgrade",
    "site-power",
}

const MINUTE: Duration = Duration::from_secs(60);

/// One of those of this repository, or a file.
pub fn named(name_or_path: &str) -> anyhow::Result<Config> {
    let known = SCENARIOS.iter().find(|(name, _)| *name == name_or_path);
    let text = match known {
        Some((_, text)) => (*text).to_owned(),
        None => {
            let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            std::fs::read_to_string(Path::new(name_or_path))
                .with_context(|| format!("read {name_or_path:?}, which is none of {}", names.join(", ")))?
        }
    };
    let config = parse(&text).map_err(|why| anyhow::anyhow!("{name_or_path}: {why}"))?;
    Ok(Config { scenario: Some(name_or_path.to_owned()), ..config })
}

pub fn parse(text: &str) -> Result<Config, String> {
    let mut config =
        Config { script: Some(Vec::new()), ..Config::new(DEFAULT_NODES, DEFAULT_GATEWAYS, MINUTE, 1) };
    let mut each = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            config.script.get_or_insert_default().push(line.parse()?);
        } else if let Some(of) = line.strip_prefix("each ") {
            each.push(of.to_owned());
        } else if !line.is_empty() {
            set(&mut config, line)?;
        }
    }
    // How many there are of what is known by now.
    for of in each {
        let planned = one_of_each(&config, &of)?;
        config.script.get_or_insert_default().extend(planned);
    }
    let script = config.script.take().unwrap_or_default();
    // With chaos, faults are dealt; a script is in their place.
    config.script = (config.chaos == Chaos::None).then_some(script);
    Ok(config)
}

fn set(config: &mut Config, line: &str) -> Result<(), String> {
    let wrong = || format!("{line:?} says nothing that is known");
    let (key, value) = line.split_once(' ').unwrap_or((line, ""));
    let count = || value.parse::<u32>().ok().filter(|count| *count > 0).ok_or_else(wrong);
    match key {
        "nodes" => config.nodes = count()? as usize,
        "gateways" => config.gateways = count()? as usize,
        "workers" => config.controls = count()? as usize,
        "instances" => config.instances = count()? as usize,
        "hosts" => config.hosts = count()? as usize,
        "minutes" => config.time = count()? * MINUTE,
        "seed" => config.seed = value.parse().map_err(|_| wrong())?,
        "chaos" => config.chaos = Chaos::parse(value)?,
        "expect" => config.expects.push(value.parse()?),
        "no-pokes" if value.is_empty() => config.pokes = false,
        "no-clients" if value.is_empty() => config.workload = false,
        "calm-clients" if value.is_empty() => config.calm = true,
        "restores" if value.is_empty() => config.restores = true,
        "renewals" if value.is_empty() => config.renewals = true,
        _ => return Err(wrong()),
    }
    Ok(())
}

/// `FROM EVERY LASTS FAULT`, once for each that there is.
fn one_of_each(config: &Config, of: &str) -> Result<Vec<Planned>, String> {
    let wrong = || format!("{of:?} is not FROM EVERY LASTS FAULT");
    let words: Vec<&str> = of.split_whitespace().collect();
    let [from, every, lasts, name] = words[..] else { return Err(wrong()) };
    let (from, every): (u64, u64) = (from.parse().map_err(|_| wrong())?, every.parse().map_err(|_| wrong())?);
    let count = match name.split_once('-').map_or("", |(of, _)| of) {
        "node" => config.nodes,
        "gateway" => config.gateways,
        "worker" => config.controls,
        _ => return Err(wrong()),
    };
    (0..count)
        .map(|which| format!("{} {lasts} {name} {which}", from + every * which as u64).parse())
        .collect()
}

/// As a file that [`parse`] reads back.
pub struct Text<'a>(pub &'a Config);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.0;
        writeln!(f, "nodes {}", config.nodes)?;
        writeln!(f, "gateways {}", config.gateways)?;
        writeln!(f, "workers {}", config.controls)?;
        writeln!(f, "minutes {}", config.time.as_secs().div_ceil(60))?;
        writeln!(f, "seed {}", config.seed)?;
        if config.instances > 0 {
            writeln!(f, "instances {}\nhosts {}", config.instances, config.hosts)?;
        }
        let flags = [
            (!config.pokes, "no-pokes"),
            (!config.workload, "no-clients"),
            (config.calm, "calm-clients"),
            (config.restores, "restores"),
            (config.renewals, "renewals"),
        ];
        for (_, flag) in flags.iter().filter(|(on, _)| *on) {
            writeln!(f, "{flag}")?;
        }
        for expect in &config.expects {
            writeln!(f, "expect {expect}")?;
        }
        match &config.script {
            Some(script) => script.iter().try_for_each(|planned| writeln!(f, "{planned}")),
            None => writeln!(f, "chaos {}", config.chaos.name()),
        }
    }
}

/// A scenario's first lines, which say what it shows.
pub fn says(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
