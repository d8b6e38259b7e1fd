//! The project's own tasks. `cargo xtask dev` runs Better Compute here; `cargo xtask test` passes the tests.

mod bench;
mod check;
mod dev;
mod edges;
mod packages;
mod run;
mod sim;
mod test;
mod tidy;
mod tiny;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the Better Compute repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build and run a control plane, a gateway and simulated GPU nodes on this machine.
    ///
    /// Everything after `dev` is passed to `better-compute dev`.
    #[command(disable_help_flag = true)]
    Dev {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Install what the tests need, then run them all.
    Test {
        /// Passed to `cargo test`, like `-p store` or a test's name.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Formatting, lints, tidiness and the dependency rules.
    Check,
    /// The rules that no compiler knows: crate edges, file sizes, documents that mirror code.
    Tidy,
    /// Explore the protocol under faults: seeds, one scenario, or faults built into the code.
    Sim(sim::Args),
    /// Build a small disk that boots as an instance and reads its seed, and print where it is.
    TinyImage(tiny::Args),
    /// Measure, with the bound of the same run beside each figure. Without a name, lists the benchmarks.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    match run_task(Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_task(task: Task) -> anyhow::Result<()> {
    std::env::set_current_dir(run::workspace_root())?;
    match task {
        Task::Dev { args } => dev::run(&args),
        Task::Test { args } => test::run(&args),
        Task::Check => check::run(),
        Task::Tidy => tidy::run(),
        Task::Sim(args) => sim::run(&args),
        Task::TinyImage(args) => tiny::run(&args),
        Task::Bench(args) => bench::run(&args),
    }
}
