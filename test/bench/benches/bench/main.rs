//! The benchmarks of what is durable, connected or resident. `cargo xtask bench NAME` runs one.
//!
//! Each alternates what is ours with the bound it approaches, in one run on one machine: disks and processors differ so much
//! that only the ratio of two figures taken together says something.

mod active;
mod gateways;
mod idle;
mod journal;
mod plane;
mod program;
mod reservations;
mod sessions;
mod statements;
mod vm;

use clap::{Parser, Subcommand};

/// As in what ships: the gateways that are measured run in this program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "bench")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Durable reservations a second through the API, beside rows a second of the same PostgreSQL.
    Reservations(reservations::Args),
    /// Durable commits a second of the daemon's journal, beside appending to a file.
    Journal(journal::Args),
    /// Memory and CPU of a gateway's sessions, beside bare TLS connections.
    Sessions(sessions::Args),
    /// A fleet that comes back at one instant, with sessions that are rows of PostgreSQL, beside the cryptography of its handshakes.
    Storm(gateways::storm::Args),
    /// From the COMMIT that queues a command to its node, and what an idle gateway asks of the database.
    Dispatch(gateways::dispatch::Args),
    /// How long a node is without a session when its gateway is killed, stands still, or is cut off.
    Recovery(gateways::recovery::Args),
    /// From the call that creates a reservation to the commit that makes it active, with the daemon's agents.
    Active(active::Args),
    /// What an idle daemon takes, beside a program that only holds a connection.
    Idle(idle::Args),
    /// How soon an instance takes SSH, beside the same by hand; what a tunnel carries, beside a plain connection.
    Vm(vm::Args),
    /// A process that another benchmark starts.
    #[command(hide = true)]
    Part(sessions::Part),
}

fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // `cargo bench` says what we are, and so do we.
    let args = std::env::args().filter(|argument| argument != "--bench");
    match Args::parse_from(args).bench {
        Bench::Reservations(args) => reservations::run(&args),
        Bench::Journal(args) => journal::run(&args),
        Bench::Sessions(args) => sessions::run(&args),
        Bench::Storm(args) => gateways::storm::run(&args),
        Bench::Dispatch(args) => gateways::dispatch::run(&args),
        Bench::Recovery(args) => gateways::recovery::run(&args),
        Bench::Active(args) => active::run(&args),
        Bench::Idle(args) => idle::run(&args),
        Bench::Vm(args) => vm::run(&args),
        Bench::Part(part) => part.run(),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// A folder of one benchmark that other users may pass: PostgreSQL runs as one. It is on a disk, unlike some /tmp.
fn folder() -> anyhow::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let parent = std::env::var_os("BC_BENCH_DIR").map_or_else(std::env::temp_dir, std::path::PathBuf::from);
    let dir = tempfile::Builder::new().prefix("bc-bench-").tempdir_in(parent)?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
    Ok(dir)
}

/// What all figures are context of.
fn say_machine(dir: &std::path::Path) -> anyhow::Result<()> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(" : unknown");
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let cores = std::thread::available_parallelism()?;
    println!(
        "machine: {cores} cores,{}; load at the start {}",
        model.trim_start_matches([' ', '\t', ':']),
        load.trim()
    );
    println!("folder:  {}", dir.display());
    Ok(())
}
