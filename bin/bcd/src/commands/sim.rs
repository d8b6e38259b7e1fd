//! `bcd sim`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::config::{LogFormat, LogLevel};
use agent::join::{TokenSource, read_token, stored_encryption_key};
use anyhow::Context;
use clap::Args;
use kit::{Clock, OsRng, Rng, SeededRng, Supervisor, SystemClock, TaskKind};

use super::ConfigFlag;
use crate::sim::faults::FaultKind;
use crate::sim::{self, Faults, SimConfig};

const STOP_PATIENCE: Duration = Duration::from_secs(30);
const FAULTS: TaskKind = TaskKind::isolated("sim_faults");

#[derive(Args)]
pub struct SimArgs {
    #[command(flatten)]
    config: ConfigFlag,
    /// How many machines.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    nodes: u32,
    /// Seed of the first machine; the next ones count up from it. Faults follow from it too.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Faults to deal, by name: crash, reboot, journal-loss, slow, partition.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = FaultKind::parse)]
    faults: Vec<FaultKind>,
    /// How often one happens, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    fault_period: u64,
    /// How long one that lasts does, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    fault_lasts: u64,
}

pub async fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    crate::logs::init(LogFormat::Text, LogLevel::Info, None);
    let path = &args.config.config;
    let file = agent::config::load(path)?;
    let key = stored_encryption_key(path.parent().unwrap_or(Path::new(".")))?
        .context("there is no join-encryption.jwk beside the configuration")?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = SimConfig {
        nodes: args.nodes,
        seed: args.seed,
        ..SimConfig::of(&file, key, clock.clone(), Arc::new(OsRng))
    };
    let supervisor = Supervisor::new();
    let unjoined = sim::unjoined(&config)?;
    if unjoined > 0 {
        let source = match std::env::var("BCD_JOIN_TOKEN") {
            Ok(token) => TokenSource::Environment(token),
            Err(_) => TokenSource::Stdin,
        };
        let token = read_token(&source, &mut std::io::stdin().lock())?;
        sim::join(&config, &token, &supervisor).await?;
        println!("{unjoined} machines joined");
    }
    let fleet = sim::start(&config, &supervisor).await?;
    println!(
        "{} machines (seeds {} to {}) against {}:{}",
        args.nodes,
        args.seed,
        args.seed.wrapping_add(u64::from(args.nodes) - 1),
        config.gateway.host,
        config.gateway.port
    );
    if !args.faults.is_empty() {
        let faults = Faults {
            kinds: args.faults,
            period: Duration::from_secs(args.fault_period),
            lasts: Duration::from_secs(args.fault_lasts),
        };
        let (machines, seed) = (fleet.machines.clone(), args.seed);
        supervisor.spawn(FAULTS, move |stop| async move {
            let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
            faults.deal(&machines, &*clock, &*rng, &stop).await;
            Ok::<(), std::convert::Infallible>(())
        });
    }
    kit::signal::stop_signal().await?;
    supervisor.shutdown(STOP_PATIENCE).await;
    let reboots: usize = fleet.machines.iter().map(|machine| machine.hardware.reboots().len()).sum();
    println!("stopped; {} machines, {reboots} reboots", args.nodes);
    Ok(ExitCode::SUCCESS)
}
