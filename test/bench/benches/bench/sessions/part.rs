//! A process of a benchmark: it says a line of JSON for each step, and waits for a line before the next.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::io::AsyncBufReadExt;

/// Names the variable that tells a process its database: its password is nobody's argument.
pub const DATABASE: &str = "BC_BENCH_DATABASE";

pub struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(args: &[&str]) -> anyhow::Result<Self> {
        Self::with_database(args, "")
    }

    pub fn with_database(args: &[&str], url: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("part")
            .env(DATABASE, url)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("it is piped")?;
        let stdout = BufReader::new(child.stdout.take().context("it is piped")?);
        Ok(Self { child, stdin, stdout })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn hear(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("a process of the benchmark ended early");
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// One line.
    pub fn tell(&mut self, order: &str) -> anyhow::Result<()> {
        Ok(self.stdin.write_all(format!("{order}\n").as_bytes())?)
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub fn go(&mut self) -> anyhow::Result<()> {
        Ok(self.stdin.write_all(b"go\n")?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side.
pub fn say(value: &Value) {
    println!("{value}");
}

pub async fn wait() -> anyhow::Result<()> {
    line().await.map(drop)
}

pub async fn line() -> anyhow::Result<String> {
    let mut line = String::new();
    // One line each time: what is buffered beyond it is none, as the other side waits for us.
    tokio::io::BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    match line.is_empty() {
        true => bail!("the benchmark is gone"),
        false => Ok(line),
    }
}
