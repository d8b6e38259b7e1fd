//! `bcd`, which ends as if it were killed before or after a chosen write of its journal.
//!
//! Writes are watched from the one that accepts a `node.reboot` to the one that knows its result delivered, over restarts of
//! the daemon and of the machine. Each that became durable is a line in [`WRITES`], which says what was written; each line of
//! [`ARMED`], like `before done` or `after done`, ends the daemon once, at the first write that has it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use agent::journal::{Entry, JournalError, JournalStore, Loaded, Stage, StoredEvent, StoredSpec, Write};
use futures::future::BoxFuture;
use model::{CommandId, CommandKind, JournalId};

/// In the daemon's own folder, which is what its unit lets it write to.
const WRITES: &str = "/var/lib/bcd/reboot-writes";
const ARMED: &str = "/var/lib/bcd/armed";

fn main() -> ExitCode {
    bcd::commands::main(Some(|journal| Arc::new(Mortal(journal))))
}

struct Mortal(Arc<dyn JournalStore>);

impl JournalStore for Mortal {
    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>> {
        let held = read(WRITES);
        let begins = writes.iter().any(|write| stage_of(write) == Some("accepted"));
        let over = held.lines().last().is_some_and(|last| last.contains("delivered"));
        if over || (held.is_empty() && !begins) {
            return self.0.commit(writes);
        }
        let line = describe(&writes);
        Box::pin(async move {
            end_at("before", &line);
            self.0.commit(writes).await?;
            std::fs::write(WRITES, format!("{held}{line}\n")).expect("the daemon's folder can be written");
            end_at("after", &line);
            Ok(())
        })
    }

    fn id(&self) -> JournalId {
        self.0.id()
    }

    fn load(&self) -> Result<Loaded, JournalError> {
        self.0.load()
    }

    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError> {
        self.0.entry(id)
    }

    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError> {
        self.0.events_after(seq, limit, bytes_max)
    }

    fn spec(&self) -> Result<Option<StoredSpec>, JournalError> {
        self.0.spec()
    }
}

fn read(path: &str) -> String {
    if Path::new(path).exists() {
        std::fs::read_to_string(path).expect("a text of ours")
    } else {
        String::new()
    }
}

/// Ends the process when it is to end here, so that it does not end here again.
fn end_at(side: &str, line: &str) {
    let armed = read(ARMED);
    let is_here = |point: &str| {
        let Some((of, what)) = point.split_once(' ') else { return false };
        of == side && line.split(' ').any(|name| name == what)
    };
    let Some(point) = armed.lines().find(|point| is_here(point)) else { return };
    let left: String = armed.lines().filter(|line| *line != point).map(|line| format!("{line}\n")).collect();
    std::fs::write(ARMED, left).expect("the daemon's folder can be written");
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("nothing outlives that signal");
}

fn stage_of(write: &Write) -> Option<&'static str> {
    let Write::Entry(entry) = write else { return None };
    (entry.kind == CommandKind::NodeReboot.name()).then_some(match entry.stage {
        Stage::Accepted => "accepted",
        Stage::Running { .. } => "running",
        Stage::Done { .. } => "done",
    })
}

/// What is written, as one line.
fn describe(writes: &[Write]) -> String {
    let name = |write: &Write| match write {
        Write::Entry(_) => stage_of(write).unwrap_or("other-command"),
        Write::ResultAcked(_) => "delivered",
        Write::RemoveEntry(_) => "command-forgotten",
        Write::Event(_) | Write::RemoveEvent(_) | Write::LastSeq(_) => "event",
        Write::EventsAcked(_) => "events-delivered",
        Write::Spec(_) => "spec",
        Write::Marks(_) => "marks",
        Write::Ticket { .. } | Write::RemoveTicket(_) => "ticket",
    };
    writes.iter().map(name).collect::<Vec<_>>().join(" ")
}
