//! `better-compute sim`: the control plane and a fleet of simulated machines under a virtual clock.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::{Broken, Chaos, Config, DEFAULT_GATEWAYS, DEFAULT_NODES, Outcome, scenario, shrink};

#[derive(Args, Clone)]
pub struct SimArgs {
    /// How many machines: 60 if nothing says otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: Option<u32>,
    /// How many gateways: 3 if nothing says otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    gateways: Option<u32>,
    /// Hours of virtual time: one if nothing says otherwise.
    #[arg(long, value_name = "H", conflicts_with = "minutes")]
    hours: Option<u32>,
    /// Minutes of virtual time, in place of hours.
    #[arg(long, value_name = "M")]
    minutes: Option<u32>,
    /// What everything follows from: 1 if nothing says otherwise.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How much breaks: none, light, heavy. With heavy, each machine also renews its certificate.
    #[arg(long, value_name = "HOW", value_parser = Chaos::parse, conflicts_with = "scenario")]
    chaos: Option<Chaos>,
    /// Backups are made by the hour, and one of them is restored now and then.
    #[arg(long)]
    restores: bool,
    /// A scenario, by its name or its file: what else is given here goes over what it says.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,
    /// Tells the scenarios there are.
    #[arg(long)]
    list: bool,
    /// Minutes of trying for fewer faults that break the same, when something breaks. They are written to a file.
    #[arg(long, value_name = "M")]
    shrink: Option<u64>,
    /// Nobody is told of anything; everything is found by looking.
    #[arg(long)]
    no_pokes: bool,
    /// Runs it twice, and compares the rows and the events that both ended with.
    #[arg(long)]
    verify: bool,
}

const HOUR: Duration = Duration::from_secs(3600);

impl SimArgs {
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.scenario {
            Some(scenario) => scenario::named(scenario)?,
            None => Config::new(DEFAULT_NODES, DEFAULT_GATEWAYS, HOUR, 1),
        };
        config.nodes = self.nodes.map_or(config.nodes, |nodes| nodes as usize);
        config.gateways = self.gateways.map_or(config.gateways, |gateways| gateways as usize);
        config.seed = self.seed.unwrap_or(config.seed);
        let minutes = self.minutes.or(self.hours.map(|hours| hours * 60));
        config.time = minutes.map_or(config.time, |minutes| Duration::from_secs(u64::from(minutes) * 60));
        if let Some(chaos) = self.chaos {
            config.chaos = chaos;
            config.renewals = chaos == Chaos::Heavy;
        }
        // A machine that somebody restarts is unreachable meanwhile.
        config.calm |= self.scenario.is_none() && config.chaos == Chaos::None;
        config.pokes &= !self.no_pokes;
        config.restores |= self.restores;
        config.checked().map_err(|why| anyhow::anyhow!("{why}"))
    }
}

/// Runs on a thread of its own, with all of its tasks in one order.
pub fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        for (name, text) in scenario::SCENARIOS {
            println!("{name:24} {}", scenario::says(text));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.config()?;
    println!("{}", config.replay());
    let Some(first) = once(&config, args.shrink)? else { return Ok(ExitCode::FAILURE) };
    println!("{first}");
    if !args.verify {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(second) = once(&config, None)? else { return Ok(ExitCode::FAILURE) };
    if first.same_as(&second) {
        println!("the second run ended in the same rows and the same events");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{second}");
    let (tables, events) = (first.differs_in(&second), first.events_digest != second.events_digest);
    println!(
        "the second run of the seed ended otherwise: the rows of {}{}",
        if tables.is_empty() { "no table".to_owned() } else { tables.join(", ") },
        if events { ", and the events" } else { "" },
    );
    Ok(ExitCode::FAILURE)
}

fn once(config: &Config, shrink_minutes: Option<u64>) -> anyhow::Result<Option<Outcome>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(super::run(config, &mut |line| println!("{line}")));
    match ended {
        Ok(outcome) => Ok(Some(outcome)),
        Err(err) => match err.downcast_ref::<Broken>() {
            Some(broken) => {
                println!("an invariant was broken {broken}");
                if let Some(minutes) = shrink_minutes {
                    let within = Duration::from_secs(minutes * 60);
                    let told = &mut |line: String| println!("{line}");
                    let (script, broken) = runtime.block_on(shrink::shrink(broken, within, told));
                    let path = format!("sim-{}.txt", config.seed);
                    let text = shrink::render(&broken.config, script, &broken.violations);
                    std::fs::write(&path, text)?;
                    println!("what is left breaks it: better-compute sim --scenario {path}");
                }
                Ok(None)
            }
            None => Err(err).context("simulate"),
        },
    }
}
