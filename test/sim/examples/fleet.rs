//! The command `better-compute sim` by itself.

use std::process::ExitCode;

use clap::{Args, Command, FromArgMatches};
use sim::fleet::command::{SimArgs, run};

fn main() -> anyhow::Result<ExitCode> {
    let level = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr).init();
    let matches = SimArgs::augment_args(Command::new("fleet")).get_matches();
    run(&SimArgs::from_arg_matches(&matches)?)
}
