//! What the same PostgreSQL does when all it has to do is to dequeue rows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::figures::{Run, Sample};

/// Rows of one transaction.
pub const BATCH: u32 = 200;
/// The table, and how rows get into it.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_queue (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, queue text NOT NULL, key text NOT NULL)";
pub const FILL: &str = "INSERT INTO raw_queue (queue, key) SELECT 'bench', gen_random_uuid()::text FROM generate_series(1, $1::bigint)";

const TAKE: &str = "DELETE FROM raw_queue WHERE id IN (
  SELECT id FROM raw_queue ORDER BY id LIMIT 200 FOR UPDATE SKIP LOCKED) RETURNING queue, key;\n";

/// Dequeues `rows` that are in the table, [`BATCH`] a transaction with SKIP LOCKED, by `clients` at once.
///
/// `server` is the process of the PostgreSQL beside whose program pgbench lies, `url` a database that is gone with the
/// run, `dir` where a script may be written.
///
/// # Errors
/// No pgbench beside the server, and whatever it fails of.
pub fn dequeue(server: u32, url: &str, dir: &Path, rows: usize, clients: usize) -> anyhow::Result<Run> {
    let script: PathBuf = dir.join("take.sql");
    std::fs::write(&script, TAKE)?;
    let transactions = rows / BATCH as usize / clients;
    let pgbench = std::fs::read_link(format!("/proc/{server}/exe"))?.with_file_name("pgbench");
    let mut command = Command::new(&pgbench);
    command.args(["-n", "-M", "prepared", "-c", &clients.to_string(), "-j", &clients.to_string()]);
    command.args(["-t", &transactions.to_string(), "-f"]).arg(&script).arg(url);
    let done = command.output().with_context(|| format!("run {}", pgbench.display()))?;
    let text = String::from_utf8_lossy(&done.stdout);
    anyhow::ensure!(done.status.success(), "pgbench failed: {}", String::from_utf8_lossy(&done.stderr));
    let line = text.lines().find(|line| line.starts_with("tps = ")).context("pgbench says its rate")?;
    let tps: f64 = line.split_whitespace().nth(2).unwrap_or_default().parse()?;
    let count = transactions * clients;
    let lasted = Duration::from_secs_f64(count as f64 / tps);
    // It says no single times: each is the mean.
    let took = lasted / u32::try_from(transactions)?;
    let samples = (0..count).map(|at| Sample { at: lasted.mul_f64(at as f64 / count as f64), took });
    Ok(Run::new(format!("pgbench SKIP LOCKED, {clients} clients"), lasted, samples.collect()).of_units(BATCH))
}
