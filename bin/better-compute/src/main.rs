//! `better-compute`: the control plane, the gateway, the worker and the command line.

mod cli;
mod dev;
mod keys;
mod plane;
mod serve;

use std::process::ExitCode;

use clap::{Args, Command, FromArgMatches};
use sim::fleet::command::{self as simulation, SimArgs};

/// Calls, rows and messages are many small allocations that are freed by another thread than made them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn root() -> Command {
    let root = Command::new("better-compute")
        .about("Turns servers that you own into a cloud")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(dev::DevArgs::augment_args(
            Command::new("dev").about("Runs everything on this machine, with simulated GPU nodes"),
        ))
        .subcommand(SimArgs::augment_args(
            Command::new("sim").about("Simulates a fleet and its control plane, with faults, from a seed"),
        ));
    serve::commands().into_iter().chain(cli::commands()).fold(root, Command::subcommand)
}

fn main() -> ExitCode {
    // Before clap sees it: an error of clap's would repeat the argument.
    if cli::holds_token(std::env::args_os().skip(1)) {
        eprintln!("error: an argument holds a token; every process on this machine can read arguments");
        eprintln!("  try  better-compute login --token-stdin, or BETTER_COMPUTE_TOKEN_FILE");
        return ExitCode::from(USAGE);
    }
    let matches = match root().try_get_matches() {
        Ok(matches) => matches,
        Err(err) => {
            let _ = err.print();
            return ExitCode::from(if err.use_stderr() { USAGE } else { 0 });
        }
    };
    // Apart from the rest: it runs on one thread, and by no clock of the machine's.
    if let Some(("sim", matches)) = matches.subcommand() {
        return simulate(matches);
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(err) => {
            eprintln!("error: start the runtime: {err}");
            return ExitCode::from(FAILED);
        }
    };
    let code = runtime.block_on(run(&matches));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    code
}

fn simulate(matches: &clap::ArgMatches) -> ExitCode {
    serve::logs("off");
    let args = SimArgs::from_arg_matches(matches).unwrap_or_else(|err| err.exit());
    simulation::run(&args).unwrap_or_else(|err| {
        eprintln!("error: {err:#}");
        ExitCode::from(FAILED)
    })
}

async fn run(matches: &clap::ArgMatches) -> ExitCode {
    let Some((name, matches)) = matches.subcommand() else { return ExitCode::from(USAGE) };
    if cli::owns(name) {
        let mut shell = cli::Shell::of_process();
        return ExitCode::from(cli::run(name, matches, root, &mut shell).await);
    }
    let outcome = match name {
        "dev" => match dev::DevArgs::from_arg_matches(matches) {
            Ok(args) => {
                serve::logs("warn");
                dev::run(args).await
            }
            Err(err) => err.exit(),
        },
        _ => serve::run(name, matches).await,
    };
    match outcome {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(FAILED)
        }
    }
}
