//! The daemon's own recent log, kept in memory so that collecting it needs neither a journal reader nor its rights.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kit::Clock;

/// A day of a busy daemon's INFO lines. More would leave the machine in one command.
pub const LOG_BYTES_MAX: usize = 8 << 20;
const LINE_BYTES_MAX: usize = 16 * 1024;

pub trait LogSource: Send + Sync + 'static {
    /// Lines of the last `since`, oldest first.
    fn recent(&self, since: Duration) -> String;
}

/// The last lines, up to a size. Cheap to clone; a logging layer writes into it as into a file.
#[derive(Clone)]
pub struct LogRing {
    clock: Arc<dyn Clock>,
    bytes_max: usize,
    lines: Arc<Mutex<Lines>>,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<(Duration, String)>,
    bytes: usize,
}

impl LogRing {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::bounded(clock, LOG_BYTES_MAX)
    }

    /// A simulated fleet keeps less of each node.
    pub fn bounded(clock: Arc<dyn Clock>, bytes_max: usize) -> Self {
        Self { clock, bytes_max, lines: Arc::default() }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn push(&self, line: &str) {
        let line = line.trim_end_matches('\n');
        let end =
            (0..=LINE_BYTES_MAX.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        let line = line[..end].to_owned();
        let mut lines = self.lines();
        lines.bytes += line.len() + 1;
        lines.kept.push_back((self.clock.monotonic(), line));
        while lines.bytes > self.bytes_max {
            let Some((_, oldest)) = lines.kept.pop_front() else { break };
            lines.bytes -= oldest.len() + 1;
        }
    }
}

impl LogSource for LogRing {
    fn recent(&self, since: Duration) -> String {
        let from = self.clock.monotonic().saturating_sub(since);
        let lines = self.lines();
        let mut out = String::with_capacity(lines.bytes);
        for (_, line) in lines.kept.iter().filter(|(at, _)| *at >= from) {
            out.push_str(line);
            out.push('\n');
        }
        out
    }
}

/// One write is one event of the formatter.
impl io::Write for LogRing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
