//! `cargo xtask dev`: check, build, then become `better-compute dev`.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;

use crate::{packages, run};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    if !args.iter().any(|arg| arg == "--help" || arg == "-h") {
        packages::ensure(&[packages::POSTGRESQL])?;
    }
    run::must(run::cargo().args(["build", "--quiet", "--package", "better-compute", "--package", "bcd"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = std::path::Path::new(&target).join("debug/better-compute");
    // Replacing this process keeps Ctrl-C, the exit code and the process tree as a person expects them.
    let err = Command::new(&program).arg("dev").args(args).exec();
    Err(err).with_context(|| format!("failed to start {}", program.display()))
}
