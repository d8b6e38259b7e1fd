//! Programs that a benchmark starts and ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

const STOP_WITHIN: Duration = Duration::from_secs(30);

/// A program of this workspace as it ships: the daemon by a profile of its own.
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    // target/<profile>/deps/<benchmark>
    let dir = own.parent().and_then(Path::parent).context("the benchmark lies in no target folder")?;
    let dir = if name == "bcd" { dir.with_file_name("daemon") } else { dir.to_owned() };
    let program = dir.join(name);
    if !program.is_file() {
        bail!("{} is not built; build it as `cargo xtask bench` does", program.display());
    }
    Ok(program)
}

/// Ended when dropped: first asked, then made.
pub struct Running {
    child: Child,
    pub log: PathBuf,
}

impl Running {
    /// What it prints goes to `log`.
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a whole line that contains `wanted`.
    pub fn line(&mut self, wanted: &str, within: Duration) -> anyhow::Result<String> {
        self.wait(within, wanted, |text| {
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            whole.lines().find(|line| line.contains(wanted)).map(str::to_owned)
        })
    }

    /// Waits until `look` finds something in what was printed so far.
    pub fn wait<T>(
        &mut self,
        within: Duration,
        what: &str,
        mut look: impl FnMut(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        loop {
            let text = std::fs::read_to_string(&self.log)?;
            if let Some(found) = look(&text) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}) before {what:?}:\n{text}");
            }
            if started.elapsed() > within {
                bail!("no {what:?} within {within:?}:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.pid()) else { return };
        // Asked by the tool that every system has, to need no unsafe code and no crate for one signal.
        let _ = Command::new("kill").arg(pid.to_string()).status();
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > STOP_WITHIN {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs a command to its end.
pub fn done(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("{:?} failed: {}", command.get_program(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
