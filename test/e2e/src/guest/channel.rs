//! What is said to the agent in the guest, over a virtio serial port.
//!
//! ```text
//!   guest: hello <boot id>                           whenever the agent starts
//!   host:  run <id> <bytes> <seconds>, the script    guest: done <id> <code> <bytes> <bytes>, output, errors
//!   host:  put <id> <bytes> <mode> <path>, the file  guest: done <id> <code> 0 0
//! ```
//!
//! One thing at a time. A hello instead of an answer says that the machine, or the agent, started anew meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::program::Done;

/// The agent ends a script that takes too long; this is how much later it must have said so.
const ANSWER_GRACE: Duration = Duration::from_secs(30);
/// 40 MB through an emulated port, on a busy machine.
const PUT_WITHIN: Duration = Duration::from_secs(180);
const LINE_BYTES_MAX: usize = 4096;
/// The agent cuts what a script writes to this.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

pub struct Channel {
    stream: UnixStream,
    /// Read and not yet taken.
    buffer: Vec<u8>,
    next_id: u64,
    boots: Vec<String>,
}

enum Heard {
    Hello,
    Done { id: u64, code: i32, sizes: [usize; 2] },
}

impl Channel {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), next_id: 1, boots: Vec::new() }
    }

    pub fn boots(&self) -> &[String] {
        &self.boots
    }

    pub fn wait_hello(&mut self, within: Duration) -> anyhow::Result<()> {
        match self.hear(Instant::now() + within)? {
            Heard::Hello => Ok(()),
            Heard::Done { id, .. } => bail!("the agent answers {id}, which nobody waits for"),
        }
    }

    pub fn run(&mut self, script: &str, within: Duration) -> anyhow::Result<Done> {
        let head = format!("{} {}", script.len(), within.as_secs().max(1));
        self.ask("run", &head, script.as_bytes(), within + ANSWER_GRACE)
    }

    pub fn put(&mut self, path: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
        if path.contains(char::is_whitespace) || !path.starts_with('/') {
            bail!("{path:?} is no absolute path without blanks");
        }
        let head = format!("{} {mode:o} {path}", bytes.len());
        self.ask("put", &head, bytes, PUT_WITHIN)?.ok()?;
        Ok(())
    }

    fn ask(&mut self, verb: &str, head: &str, body: &[u8], within: Duration) -> anyhow::Result<Done> {
        let deadline = Instant::now() + within;
        let asked = self.next_id;
        self.next_id += 1;
        self.stream.set_write_timeout(Some(within))?;
        self.stream.write_all(format!("{verb} {asked} {head}\n").as_bytes()).context("ask the agent")?;
        self.stream.write_all(body).context("ask the agent")?;
        match self.hear(deadline)? {
            Heard::Hello => bail!("the agent started anew before it answered"),
            Heard::Done { id, .. } if id != asked => bail!("the agent answers {id} and not {asked}"),
            Heard::Done { code, sizes: [stdout, stderr], .. } => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                let stdout = text(self.take(stdout, deadline)?);
                let stderr = text(self.take(stderr, deadline)?);
                Ok(Done { code, stdout, stderr })
            }
        }
    }

    fn hear(&mut self, deadline: Instant) -> anyhow::Result<Heard> {
        let line = self.line(deadline)?;
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["hello", boot] => {
                if self.boots.last().is_none_or(|last| last != boot) {
                    self.boots.push((*boot).to_owned());
                }
                Ok(Heard::Hello)
            }
            ["done", id, code, stdout, stderr] => {
                let sizes = [stdout.parse()?, stderr.parse()?];
                if sizes.iter().any(|size| *size > OUTPUT_BYTES_MAX) {
                    bail!("the agent announces {sizes:?} bytes");
                }
                Ok(Heard::Done { id: id.parse()?, code: code.parse()?, sizes })
            }
            _ => bail!("the agent says {line:?}"),
        }
    }

    fn line(&mut self, deadline: Instant) -> anyhow::Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                bail!("the agent says something without an end");
            }
            self.fill(deadline)?;
        }
    }

    fn take(&mut self, size: usize, deadline: Instant) -> anyhow::Result<Vec<u8>> {
        while self.buffer.len() < size {
            self.fill(deadline)?;
        }
        Ok(self.buffer.drain(..size).collect())
    }

    fn fill(&mut self, deadline: Instant) -> anyhow::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("the agent does not answer");
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 64 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => bail!("qemu has ended"),
            Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
            Err(err)
                if matches!(
                    err.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(err) => return Err(err).context("read from the agent"),
        }
        Ok(())
    }
}
