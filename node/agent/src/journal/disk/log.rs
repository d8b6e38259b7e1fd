//! The log at the front of the journal's file: a commit is one record at its end, and one fdatasync of a file whose size stays.
//!
//! A record belongs to a checkpoint, which is a number in the database behind the log: when the database holds all that the records
//! say, it counts one more, and the log begins at its front again. Records of earlier checkpoints are nobody's. A record that was cut
//! off by a crash is the last one, since the next is written only when it is on the disk; one that is damaged with whole ones behind
//! it is rot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

/// Some hundreds of commands and events. More would make the checkpoint longer, which a commit waits for, and less each of them rarer.
pub(super) const LOG_BYTES: u64 = 256 * 1024;
const MAGIC: [u8; 4] = *b"bcj\x01";
const HEADER_BYTES: usize = 32;
/// Of the header: what it names comes after it.
const CHECK_BYTES: usize = 8;
/// Records begin at multiples of it.
const ALIGNED: usize = 8;

/// Where the log lies.
pub(super) trait Area: Send {
    fn read(&self) -> io::Result<Vec<u8>>;
    /// Writes, and waits until it is on the disk.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Area for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; LOG_BYTES as usize];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)?;
        self.sync_data()
    }
}

/// A damaged record with whole ones behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("record {sequence} of the journal's log is damaged")]
pub(super) struct Rot {
    sequence: u64,
}

/// The end of the log, at which commits are written.
pub(super) struct Log {
    area: Box<dyn Area>,
    checkpoint: u64,
    sequence: u64,
    at: usize,
    /// A record failed: what is on the disk from here on is not known, and nothing more goes there before the next checkpoint.
    broken: bool,
}

impl Log {
    /// Empty, under `checkpoint`.
    pub fn new(area: Box<dyn Area>, checkpoint: u64) -> Self {
        Self { area, checkpoint, sequence: 0, at: 0, broken: false }
    }

    /// What was written under `checkpoint`, oldest first.
    pub fn read(area: &dyn Area, checkpoint: u64) -> io::Result<Result<Vec<Vec<u8>>, Rot>> {
        Ok(records(&area.read()?, checkpoint))
    }

    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    pub fn has_room(&self, payload: usize) -> bool {
        !self.broken && self.at + padded(HEADER_BYTES + payload) <= LOG_BYTES as usize
    }

    /// On the disk when it returns. The caller has seen that there is room.
    pub fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        let record = record(self.checkpoint, self.sequence, payload);
        if let Err(err) = self.area.write(self.at as u64, &record) {
            self.broken = true;
            return Err(err);
        }
        self.at += record.len();
        self.sequence += 1;
        Ok(())
    }

    /// Begins at the front again: the database holds everything, and counts `checkpoint`.
    pub fn begin(&mut self, checkpoint: u64) {
        (self.checkpoint, self.sequence, self.at, self.broken) = (checkpoint, 0, 0, false);
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNED)
}

/// Magic, length, checkpoint, sequence, a checksum over all of it, and the payload.
fn record(checkpoint: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a record fits the log");
    let mut record = Vec::with_capacity(padded(HEADER_BYTES + payload.len()));
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&checkpoint.to_le_bytes());
    record.extend_from_slice(&sequence.to_le_bytes());
    record.extend_from_slice(&check(&record, payload));
    record.extend_from_slice(payload);
    record.resize(padded(record.len()), 0);
    record
}

fn check(head: &[u8], payload: &[u8]) -> [u8; CHECK_BYTES] {
    let digest = Sha256::new().chain_update(head).chain_update(payload).finalize();
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&digest[..CHECK_BYTES]);
    check
}

/// The sequence and payload of the record at the front of `bytes`, if it is a whole one of `checkpoint`.
fn parse(bytes: &[u8], checkpoint: u64) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let (head, found) = head.split_at(HEADER_BYTES - CHECK_BYTES);
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    if head[..4] != MAGIC || number(8) != checkpoint {
        return None;
    }
    let length = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
    let payload = rest.get(..usize::try_from(length).ok()?)?;
    (check(head, payload) == *found).then_some((number(16), payload))
}

fn records(bytes: &[u8], checkpoint: u64) -> Result<Vec<Vec<u8>>, Rot> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some((sequence, payload)) = bytes.get(at..).and_then(|rest| parse(rest, checkpoint)) {
        if sequence != found.len() as u64 {
            break;
        }
        at += padded(HEADER_BYTES + payload.len());
        found.push(payload.to_vec());
    }
    // The last one may be cut off. Whatever stands behind it was written when it was not.
    let sequence = found.len() as u64;
    let mut behind =
        (at..bytes.len()).step_by(ALIGNED).skip(1).filter_map(|at| parse(&bytes[at..], checkpoint));
    match behind.any(|(later, _)| later > sequence) {
        true => Err(Rot { sequence }),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests;
