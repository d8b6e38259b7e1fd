//! The writes of a commit as bytes of the log. What is sealed in the database is sealed here by the log's own checksum as well.

use model::{CommandId, Timestamp};
use uuid::Uuid;

use crate::journal::{JournalError, Write, record};

const ENTRY: u8 = 1;
const RESULT_ACKED: u8 = 2;
const REMOVE_ENTRY: u8 = 3;
const EVENT: u8 = 4;
const REMOVE_EVENT: u8 = 5;
const EVENTS_ACKED: u8 = 6;
const LAST_SEQ: u8 = 7;
const SPEC: u8 = 8;
const MARKS: u8 = 9;
const TICKET: u8 = 10;
const REMOVE_TICKET: u8 = 11;

pub(super) fn encode(writes: &[Write]) -> Vec<u8> {
    let mut out = Vec::with_capacity(writes.len() * 256);
    for write in writes {
        match write {
            Write::Entry(entry) => {
                out.push(ENTRY);
                out.extend_from_slice(entry.command_id.uuid().as_bytes());
                put(&mut out, &record::entry_to(entry));
            }
            Write::ResultAcked(id) => named(&mut out, RESULT_ACKED, *id),
            Write::RemoveEntry(id) => named(&mut out, REMOVE_ENTRY, *id),
            Write::Event(event) => {
                numbered(&mut out, EVENT, event.seq);
                put(&mut out, &record::event_to(event));
            }
            Write::RemoveEvent(seq) => numbered(&mut out, REMOVE_EVENT, *seq),
            Write::EventsAcked(seq) => numbered(&mut out, EVENTS_ACKED, *seq),
            Write::LastSeq(seq) => numbered(&mut out, LAST_SEQ, *seq),
            Write::Spec(spec) => {
                out.push(SPEC);
                put(&mut out, &record::spec_to(spec));
            }
            Write::Marks(marks) => {
                out.push(MARKS);
                put(&mut out, &record::marks_to(*marks));
            }
            Write::Ticket { id, until } => {
                out.push(TICKET);
                put(&mut out, id.as_bytes());
                out.extend_from_slice(&until.micros().to_le_bytes());
            }
            Write::RemoveTicket(id) => {
                out.push(REMOVE_TICKET);
                put(&mut out, id.as_bytes());
            }
        }
    }
    out
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("records are bounded far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn named(out: &mut Vec<u8>, tag: u8, id: CommandId) {
    out.push(tag);
    out.extend_from_slice(id.uuid().as_bytes());
}

fn numbered(out: &mut Vec<u8>, tag: u8, number: u64) {
    out.push(tag);
    out.extend_from_slice(&number.to_le_bytes());
}

/// What [`encode`] was given. Fails on anything that it does not make.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Write>, JournalError> {
    let mut rest = Rest(bytes);
    let mut writes = Vec::new();
    while !rest.0.is_empty() {
        let [tag] = rest.array()?;
        writes.push(match tag {
            ENTRY => {
                let id = rest.id()?;
                Write::Entry(record::entry_from(id, rest.bytes()?)?)
            }
            RESULT_ACKED => Write::ResultAcked(rest.id()?),
            REMOVE_ENTRY => Write::RemoveEntry(rest.id()?),
            EVENT => {
                let seq = rest.number()?;
                Write::Event(record::event_from(seq, rest.bytes()?)?)
            }
            REMOVE_EVENT => Write::RemoveEvent(rest.number()?),
            EVENTS_ACKED => Write::EventsAcked(rest.number()?),
            LAST_SEQ => Write::LastSeq(rest.number()?),
            SPEC => Write::Spec(record::spec_from(rest.bytes()?)?),
            MARKS => Write::Marks(record::marks_from(rest.bytes()?)?),
            TICKET => {
                let id = rest.text()?;
                Write::Ticket { id, until: Timestamp::from_micros(i64::from_le_bytes(rest.array()?)) }
            }
            REMOVE_TICKET => Write::RemoveTicket(rest.text()?),
            _ => return Err(corrupt()),
        });
    }
    Ok(writes)
}

const fn corrupt() -> JournalError {
    JournalError::Corrupt { what: "logged commit" }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], JournalError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(corrupt)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], JournalError> {
        self.take(N)?.try_into().map_err(|_| corrupt())
    }

    fn number(&mut self) -> Result<u64, JournalError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn id(&mut self) -> Result<CommandId, JournalError> {
        Ok(CommandId::from_uuid(Uuid::from_bytes(self.array()?)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], JournalError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(usize::try_from(length).map_err(|_| corrupt())?)
    }

    fn text(&mut self) -> Result<String, JournalError> {
        std::str::from_utf8(self.bytes()?).map(str::to_owned).map_err(|_| corrupt())
    }
}

#[cfg(test)]
mod tests;
