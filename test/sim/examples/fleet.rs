//! The command `better-compute sim` by itself, with `BC_SIM_MUTANT` for one fault in the code switched on.

use std::process::ExitCode;

use clap::{Args, Command, FromArgMatches};
use sim::fleet::command::{SimArgs, run};

fn main() -> anyhow::Result<ExitCode> {
    let level = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    if let Ok(name) = std::env::var("BC_SIM_MUTANT") {
        kit::mutant::choose(&name).map_err(|before| anyhow::anyhow!("{before} was chosen before"))?;
    }
    let matches = SimArgs::augment_args(Command::new("fleet")).get_matches();
    run(&SimArgs::from_arg_matches(&matches)?)
}
