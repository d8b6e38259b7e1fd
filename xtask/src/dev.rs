//! `cargo xtask dev`: check, build, then become `better-compute dev`.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use guests::{Left, Libvirtd};

use crate::{packages, run};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    let given = |name: &str| args.iter().any(|arg| arg == name || arg.starts_with(&format!("{name}=")));
    let (help, host) = (given("--help") || given("-h"), given("--host"));
    if !help {
        packages::ensure(&[packages::POSTGRESQL])?;
    }
    run::must(run::cargo().args(["build", "--quiet", "--package", "better-compute", "--package", "bcd"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = std::path::Path::new(&target).join("debug/better-compute");
    let mut dev = Command::new(&program);
    dev.arg("dev").args(args);
    if host && !help && !given("--libvirt") {
        libvirt(&mut dev)?;
    }
    // Replacing this process keeps Ctrl-C, the exit code and the process tree as a person expects them.
    let err = dev.exec();
    Err(err).with_context(|| format!("failed to start {}", program.display()))
}

/// Where the system runs no libvirt and we may, one of our own, with a network of its own. It ends with `dev`.
fn libvirt(dev: &mut Command) -> anyhow::Result<()> {
    let asked = Command::new("virsh")
        .args(["--connect", "qemu:///system", "version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if asked.is_ok_and(|status| status.success()) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    packages::ensure(&packages::LIBVIRT)?;
    packages::ensure(&[packages::QEMU_UTILS, packages::IPROUTE, packages::NFTABLES])?;
    let dir = std::env::temp_dir().join("better-compute-dev-libvirt");
    let Left { uri, network } = Libvirtd::start_for_this_process(&dir)?;
    eprintln!("libvirt        one of our own, in a network of its own");
    dev.arg("--libvirt").arg(uri).arg("--network-namespace").arg(network);
    Ok(())
}
