//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::machine::JournalLayer;

mod doctor;
mod hardware;
mod join;
mod node;
mod sim;
mod status;

/// A failure, and a usage error, as the exit code says it.
const FAILED: u8 = 1;
const USAGE: u8 = 2;

#[derive(Parser)]
#[command(
    name = "bcd",
    about = "The Better Compute daemon: joins this machine to a fleet and keeps it as its spec says",
    disable_version_flag = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Clone)]
pub(crate) struct ConfigFlag {
    /// The daemon's configuration.
    #[arg(long, value_name = "FILE", default_value = agent::config::CONFIG_PATH)]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Join the fleet. The token comes from BCD_JOIN_TOKEN, --token-file or standard input, never from an argument.
    Join(join::JoinArgs),
    /// Run the agent.
    Node(node::NodeArgs),
    /// Show what the running agent is doing.
    Status(status::StatusArgs),
    /// Check this machine and its configuration, and say what to mend.
    Doctor(doctor::DoctorArgs),
    /// Show what this machine is made of, as the agent reports it.
    Hardware(hardware::HardwareArgs),
    /// Run many agents on simulated hardware against a real gateway.
    Sim(sim::SimArgs),
    /// Print the version and the platform.
    Version,
}

/// The program. `journal_layer` is for a daemon that is there to be tested.
pub fn main(journal_layer: Option<JournalLayer>) -> ExitCode {
    // Before clap sees it: an error of clap's would repeat the argument.
    if std::env::args().skip(1).any(|argument| pki::looks_like_secret(&argument)) {
        eprintln!("error: an argument looks like a secret; every process on this machine can read arguments");
        eprintln!("  give a join token by BCD_JOIN_TOKEN, --token-file FILE or standard input");
        return ExitCode::from(USAGE);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => {
            let _ = err.print();
            return ExitCode::from(if err.use_stderr() { USAGE } else { 0 });
        }
    };
    // Everything below speaks TLS through this provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(err) => {
            eprintln!("error: start the runtime: {err}");
            return ExitCode::from(FAILED);
        }
    };
    let outcome = runtime.block_on(run(cli.command, journal_layer));
    // A reader stuck in a driver must not keep the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match outcome {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(FAILED)
        }
    }
}

async fn run(command: Command, journal_layer: Option<JournalLayer>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Join(args) => join::run(args).await,
        Command::Node(args) => node::run(args, journal_layer).await,
        Command::Status(args) => status::run(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Hardware(args) => hardware::run(args).await,
        Command::Sim(args) => sim::run(args).await,
        Command::Version => {
            println!("bcd {} {}-{}", crate::VERSION, std::env::consts::OS, std::env::consts::ARCH);
            Ok(ExitCode::SUCCESS)
        }
    }
}
