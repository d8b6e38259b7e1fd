//! `cargo xtask check`: all that is checked without running a test.

use crate::{packages, run, tidy};

pub fn run() -> anyhow::Result<()> {
    run::must(run::cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run()?;
    run::must(run::cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))?;
    if packages::on_path("cargo-deny") {
        run::must(run::cargo().args([
            "deny",
            "--log-level",
            "error",
            "check",
            "bans",
            "licenses",
            "sources",
        ]))?;
    } else {
        eprintln!("note: cargo-deny is not installed; the bans it holds are checked from Cargo.lock by tidy");
    }
    println!("check passed");
    Ok(())
}
