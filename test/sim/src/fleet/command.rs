//! `better-compute sim`: the control plane and a fleet of simulated machines under a virtual clock.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::{Broken, Chaos, Config, Outcome, shrink};

#[derive(Args, Clone)]
pub struct SimArgs {
    /// How many machines.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// How many gateways.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    gateways: u32,
    /// Hours of virtual time.
    #[arg(long, value_name = "H", default_value_t = 1, conflicts_with = "minutes")]
    hours: u32,
    /// Minutes of virtual time, in place of hours.
    #[arg(long, value_name = "M")]
    minutes: Option<u32>,
    /// What everything follows from.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How much breaks: none, light, heavy.
    #[arg(long, value_name = "HOW", default_value = "none", value_parser = Chaos::parse)]
    chaos: Chaos,
    /// Backups are made by the hour, and one of them is restored now and then.
    #[arg(long)]
    restores: bool,
    /// Faults from a file, in place of those that the seed deals.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
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

impl SimArgs {
    fn config(&self) -> anyhow::Result<Config> {
        let minutes = self.minutes.unwrap_or(self.hours * 60);
        let time = Duration::from_secs(u64::from(minutes) * 60);
        let mut config = Config::new(self.nodes as usize, self.gateways as usize, time, self.seed);
        config.chaos = self.chaos;
        config.pokes = !self.no_pokes;
        config.restores = self.restores;
        if let Some(path) = &self.scenario {
            let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
            config.script = Some(shrink::parse(&text).map_err(|why| anyhow::anyhow!("{why}"))?);
        }
        // So far apart that some renew in every hour.
        if self.chaos == Chaos::Heavy {
            config.ages = Duration::from_secs(14 * 3600);
        }
        Ok(config)
    }
}

/// Runs on a thread of its own, with all of its tasks in one order.
pub fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
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
    println!("the second run of the seed ended otherwise");
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
                    let text = shrink::render(&broken.config, &script, &broken.violations.join("\n"));
                    std::fs::write(&path, text)?;
                    println!("{} faults that break it: {} --scenario {path}", script.len(), config.replay());
                }
                Ok(None)
            }
            None => Err(err).context("simulate"),
        },
    }
}
