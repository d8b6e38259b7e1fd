//! A running `better-compute dev`, and the command line against it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{self, Done, Running};

/// Debug builds of everything on two busy cores, database included.
const READY_WITHIN: Duration = Duration::from_secs(180);

pub struct Dev {
    // Fields drop in order: the program ends before its folder goes.
    pub running: Running,
    pub ready: Value,
    home: PathBuf,
    pub data_dir: PathBuf,
    _temp: Option<TempDir>,
}

impl Dev {
    /// Starts it on free ports with its own home and data folders.
    pub fn start(args: &[&str]) -> anyhow::Result<Self> {
        let temp = tempfile::Builder::new().prefix("bc-e2e-").tempdir()?;
        // PostgreSQL runs as another user, who has to get in.
        open_folder(temp.path())?;
        let mut dev = Self::start_in(temp.path(), args)?;
        dev._temp = Some(temp);
        Ok(dev)
    }

    /// Starts it in a folder that outlives it.
    pub fn start_in(dir: &Path, args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(dir, args, Stdio::inherit())
    }

    /// The same, with what it says in a file.
    pub fn start_logged(dir: &Path, args: &[&str], stderr: &Path) -> anyhow::Result<Self> {
        Self::start_with(dir, args, std::fs::File::create(stderr)?.into())
    }

    fn start_with(dir: &Path, args: &[&str], stderr: Stdio) -> anyhow::Result<Self> {
        let home = dir.join("home");
        let data_dir = dir.join("data");
        let ready_file = dir.join("ready.json");
        kit::fs::remove_if_present(&ready_file)?;
        std::fs::create_dir_all(&home)?;
        let mut command = Command::new(program::path("better-compute")?);
        command
            .args(["dev", "--listen", "127.0.0.1:0"])
            .arg("--ready-file")
            .arg(&ready_file)
            .args(args)
            .env("HOME", &home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("BETTER_COMPUTE_CONFIG")
            .stdout(Stdio::inherit())
            .stderr(stderr);
        if !args.contains(&"--memory") && !args.contains(&"--data-dir") {
            command.arg("--data-dir").arg(&data_dir);
        }
        let mut running = Running::start("better-compute dev", &mut command)?;
        let ready = wait_ready(&mut running, &ready_file)?;
        let data_dir = ready["dataDir"].as_str().map(PathBuf::from).unwrap_or(data_dir);
        Ok(Self { running, ready, home, data_dir, _temp: None })
    }

    /// `better-compute ARGS` as the user whose context `dev` made.
    pub fn command(&self, args: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(program::path("better-compute")?);
        command
            .args(args)
            .env("HOME", &self.home)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("BETTER_COMPUTE_CONFIG")
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs it.
    pub fn cli(&self, args: &[&str]) -> anyhow::Result<Done> {
        Ok(self.command(args)?.output()?.into())
    }

    /// The same with `--output json`, parsed.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut all = args.to_vec();
        all.extend(["--output", "json"]);
        self.cli(&all)?.json().with_context(|| format!("better-compute {}", args.join(" ")))
    }
}

fn wait_ready(running: &mut Running, file: &Path) -> anyhow::Result<Value> {
    let started = Instant::now();
    loop {
        if let Ok(bytes) = std::fs::read(file) {
            return serde_json::from_slice(&bytes).context("the ready file is not JSON");
        }
        if let Some(status) = running.has_ended()? {
            bail!("better-compute dev ended before it was ready: {status}");
        }
        if started.elapsed() > READY_WITHIN {
            bail!("better-compute dev was not ready within {READY_WITHIN:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn open_folder(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

/// Looks until `look` finds something, and says what it saw last when the time is over.
pub fn eventually<T>(
    within: Duration,
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Result<T, String>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(seen) if started.elapsed() > within => {
                bail!("{what} did not happen within {within:?}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
