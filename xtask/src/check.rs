//! `cargo xtask check`: all that is checked without running a test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{packages, run, tidy};

/// The version that the rules in deny.toml were written for.
const CARGO_DENY: &str = "0.20.2";

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
    run::must(Command::new(cargo_deny()?).args([
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))?;
    println!("check passed");
    Ok(())
}

/// The checker of the dependency rules: the machine's own, or one built once into the target folder.
fn cargo_deny() -> anyhow::Result<PathBuf> {
    if packages::on_path("cargo-deny") {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let root = Path::new("target/tools");
    let program = root.join("bin/cargo-deny");
    if !program.is_file() {
        eprintln!("building cargo-deny {CARGO_DENY} into {}, once", root.display());
        let mut install = run::cargo();
        install
            .args(["install", "--quiet", "--locked", "cargo-deny", "--version", CARGO_DENY, "--root"])
            .arg(root);
        run::must(&mut install)?;
    }
    Ok(program)
}
