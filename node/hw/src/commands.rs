//! Running programs: a port with a time bound and an output bound, and its canned stand-in.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::hardware::BoxFuture;

/// A driver in trouble makes its tools hang for minutes; a healthy one answers for eight GPUs in five seconds.
pub const TIME_LIMIT: Duration = Duration::from_secs(30);
/// `nvidia-smi -q -x` writes about 45 KB a GPU, most of it clock tables; 64 GPUs stay under half of this.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// The exit code; absent when a signal ended the program.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl CommandOutput {
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    pub fn ok(stdout: impl Into<Vec<u8>>) -> Self {
        Self { code: Some(0), stdout: stdout.into(), stderr: Vec::new() }
    }

    pub fn failed(code: i32, stdout: impl Into<Vec<u8>>) -> Self {
        Self { code: Some(code), stdout: stdout.into(), stderr: Vec::new() }
    }
}

/// Why a program gave no output to judge.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("run {program}: not found")]
    NotFound { program: String },
    #[error("run {program}: permission denied")]
    PermissionDenied { program: String },
    #[error("run {program}: no answer within {limit_ms} ms")]
    TimedOut { program: String, limit_ms: u128 },
    #[error("run {program}: more than {max} bytes of output")]
    TooMuchOutput { program: String, max: usize },
    #[error("run {program}")]
    Io {
        program: String,
        #[source]
        source: io::Error,
    },
}

/// Runs one program to its end. Dropping the future kills it.
pub trait Commands: Send + Sync {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> BoxFuture<'a, Result<CommandOutput, CommandError>>;
}

/// The real programs, found on a fixed path, with an empty environment but for the C locale.
#[derive(Debug, Clone)]
pub struct HostCommands {
    search_path: String,
    time_limit: Duration,
    output_bytes_max: usize,
}

impl HostCommands {
    pub fn new() -> Self {
        Self {
            search_path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            time_limit: TIME_LIMIT,
            output_bytes_max: OUTPUT_BYTES_MAX,
        }
    }

    pub fn with_search_path(mut self, path: impl Into<String>) -> Self {
        self.search_path = path.into();
        self
    }

    pub fn with_bounds(mut self, time_limit: Duration, output_bytes_max: usize) -> Self {
        self.time_limit = time_limit;
        self.output_bytes_max = output_bytes_max;
        self
    }

    async fn output(&self, program: &str, args: &[&str]) -> Result<CommandOutput, CommandError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => CommandError::NotFound { program: program.into() },
            io::ErrorKind::PermissionDenied => CommandError::PermissionDenied { program: program.into() },
            _ => CommandError::Io { program: program.into(), source },
        };
        let mut child = Command::new(program)
            .args(args)
            .env_clear()
            .env("PATH", &self.search_path)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A program stuck in the driver cannot be waited for: it is killed and reaped whenever it dies.
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed(io::Error::other("no pipe to the program")));
        };
        let (stdout, stderr) =
            tokio::try_join!(bounded(stdout, self.output_bytes_max), bounded(stderr, self.output_bytes_max))
                .map_err(failed)?;
        if stdout.len() > self.output_bytes_max || stderr.len() > self.output_bytes_max {
            return Err(CommandError::TooMuchOutput { program: program.into(), max: self.output_bytes_max });
        }
        let status = child.wait().await.map_err(failed)?;
        Ok(CommandOutput { code: status.code(), stdout, stderr })
    }
}

impl Default for HostCommands {
    fn default() -> Self {
        Self::new()
    }
}

async fn bounded(pipe: impl AsyncRead + Unpin, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.take(max as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

impl Commands for HostCommands {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> BoxFuture<'a, Result<CommandOutput, CommandError>> {
        Box::pin(async move {
            tokio::time::timeout(self.time_limit, self.output(program, args)).await.unwrap_or_else(|_| {
                Err(CommandError::TimedOut { program: program.into(), limit_ms: self.time_limit.as_millis() })
            })
        })
    }
}

/// Programs in a network namespace of this host.
pub struct InNetwork {
    commands: Arc<dyn Commands>,
    enter: String,
}

impl InNetwork {
    /// `namespace` is a file like `/run/netns/instances` or `/proc/123/ns/net`.
    pub fn new(commands: Arc<dyn Commands>, namespace: &Path) -> Self {
        Self { commands, enter: format!("--net={}", namespace.display()) }
    }
}

impl Commands for InNetwork {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> BoxFuture<'a, Result<CommandOutput, CommandError>> {
        Box::pin(async move {
            let all = [&[self.enter.as_str(), "--", program], args].concat();
            self.commands.run("nsenter", &all).await
        })
    }
}

/// Answers from a table of command lines; any other program is not found, as on a host without it.
#[derive(Debug, Default)]
pub struct CannedCommands {
    answers: BTreeMap<String, CommandOutput>,
    ran: Mutex<Vec<String>>,
}

impl CannedCommands {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the answer to one command line, as it would be typed.
    pub fn answer(mut self, line: &str, output: CommandOutput) -> Self {
        self.answers.insert(line.into(), output);
        self
    }

    /// What was run so far, oldest first.
    pub fn ran(&self) -> Vec<String> {
        self.ran.lock().map(|ran| ran.clone()).unwrap_or_default()
    }
}

impl Commands for CannedCommands {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> BoxFuture<'a, Result<CommandOutput, CommandError>> {
        let line = [&[program], args].concat().join(" ");
        if let Ok(mut ran) = self.ran.lock() {
            ran.push(line.clone());
        }
        let answer = self.answers.get(&line).cloned();
        Box::pin(async move { answer.ok_or_else(|| CommandError::NotFound { program: program.into() }) })
    }
}

#[cfg(test)]
mod tests;
