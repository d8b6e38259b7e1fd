//! The kernel log as records (`Documentation/ABI/testing/dev-kmsg`), and a follower of `/dev/kmsg` for Xid errors.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::hardware::{HardwareError, XidBatch};
use crate::root::Root;
use crate::xid::{self, XidEvent};

/// The kernel's own bound on one record with its dictionary (CONSOLE_EXT_LOG_MAX).
const RECORD_BYTES_MAX: usize = 8192;
/// One pass reads at most this many records: a full default ring buffer holds about as many.
const RECORDS_PER_PASS_MAX: usize = 65_536;
/// Errors kept for those who ask from an earlier cursor. A storm repeats itself; the first ones tell the cause, and
/// have been asked for by the time they go.
const EVENTS_MAX: usize = 4096;
/// A line longer than this in a plain file is no record.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// 0 is the kernel itself; anything else was written by a program through `/dev/kmsg`.
    pub facility: u32,
    /// 0 emergency to 7 debug.
    pub level: u32,
    pub sequence: u64,
    pub since_boot_us: u64,
    pub message: &'a str,
}

/// Parses `6,339,5140900,-;message`. Continuation lines (` KEY=value`) and anything else are none.
pub fn parse(line: &str) -> Option<Record<'_>> {
    let (head, message) = line.split_once(';')?;
    let mut fields = head.split(',');
    let number = |field: Option<&str>| -> Option<u64> {
        let field = field?;
        let plain = !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| field.parse().ok())?
    };
    let priority = u32::try_from(number(fields.next())?).ok()?;
    let sequence = number(fields.next())?;
    let since_boot_us = number(fields.next())?;
    fields.next()?;
    Some(Record { facility: priority >> 3, level: priority & 7, sequence, since_boot_us, message })
}

/// The Xid in a record, if the kernel itself wrote it. A program allowed to write to the log cannot fake a broken GPU.
pub fn xid_event(line: &str) -> Option<XidEvent> {
    let record = parse(line).filter(|record| record.facility == 0)?;
    let xid = xid::parse(record.message)?;
    Some(XidEvent { sequence: record.sequence, since_boot_us: record.since_boot_us, xid })
}

/// Reads what the log holds and what comes after, without ever waiting.
#[derive(Debug, Default)]
pub struct Follower {
    file: Option<File>,
    pending: Vec<u8>,
    events: VecDeque<XidEvent>,
    next: u64,
    lost: bool,
}

impl Follower {
    pub fn new() -> Self {
        Self::default()
    }

    /// One pass: reads everything new, then answers with the errors from `from` on.
    pub fn poll(&mut self, root: &Root, boot_id: String, from: u64) -> Result<XidBatch, HardwareError> {
        self.read(&root.path("dev/kmsg"))
            .map_err(|error| HardwareError::Read { what: "the kernel log", why: error.kind().to_string() })?;
        // A cursor beyond the log is of another boot.
        let from = if from > self.next { 0 } else { from };
        let events: Vec<_> = self.events.iter().filter(|event| event.sequence >= from).cloned().collect();
        let lost = std::mem::take(&mut self.lost);
        Ok(XidBatch { boot_id, events, next: self.next, lost })
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        if self.file.is_none() {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            self.file = Some(File::from(rustix::fs::open(path, flags, Mode::empty())?));
        }
        let mut buffer = [0u8; RECORD_BYTES_MAX];
        for _ in 0..RECORDS_PER_PASS_MAX {
            let Some(file) = &self.file else { return Ok(()) };
            match rustix::io::read(file.as_fd(), &mut buffer) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Ok(len) => self.take(&buffer[..len]),
                // The reader was overtaken; it stands at the oldest record left.
                Err(rustix::io::Errno::PIPE) => self.lost = true,
                Err(rustix::io::Errno::INTR) => {}
                // A record longer than the bound: skipped by the kernel.
                Err(rustix::io::Errno::INVAL) => self.lost = true,
                Err(error) => {
                    self.file = None;
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// The device gives one record a read; a plain file gives pieces of lines.
    fn take(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            self.line(&String::from_utf8_lossy(&line[..end]));
        }
        if self.pending.len() > PENDING_BYTES_MAX {
            self.pending.clear();
            self.lost = true;
        }
    }

    fn line(&mut self, line: &str) {
        let Some(record) = parse(line) else { return };
        self.next = self.next.max(record.sequence.saturating_add(1));
        let Some(event) = xid_event(line) else { return };
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.lost = true;
        }
        self.events.push_back(event);
    }
}

#[cfg(test)]
mod tests;
