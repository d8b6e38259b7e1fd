//! Programs under test, started and ended by us.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A program of this workspace, beside the test that runs.
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // target/<profile>/deps/<test>
    let dir = test.parent().and_then(|deps| deps.parent()).context("the test lies in no target folder")?;
    let program = dir.join(name);
    if !program.is_file() {
        bail!("{} is not built; run: cargo build --workspace --bins", program.display());
    }
    Ok(program)
}

/// A running program. Ended when dropped: first asked, then made.
pub struct Running {
    name: String,
    child: Child,
}

impl Running {
    pub fn start(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid())?).context("a process id")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Asks it to stop and waits for its end.
    pub fn stop(&mut self, within: Duration) -> anyhow::Result<std::process::ExitStatus> {
        self.signal(rustix::process::Signal::TERM)?;
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > within {
                bail!("{} did not stop within {within:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.stop(Duration::from_secs(20)).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a command that ends left behind.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    /// Its standard output, when it succeeded.
    pub fn ok(self) -> anyhow::Result<String> {
        match self.code {
            0 => Ok(self.stdout),
            code => bail!("exit code {code}\n{}\n{}", self.stdout, self.stderr),
        }
    }

    pub fn json(self) -> anyhow::Result<serde_json::Value> {
        let text = self.ok()?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
}
