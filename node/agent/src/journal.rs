//! The daemon's durable memory: what turns delivery at least once into an effect at most once.
//!
//! [`Journal`] is the rules: an index in memory that decides, counts bytes and assigns sequence numbers, and hands out
//! [`Write`]s. A [`JournalStore`] makes them durable, and knows no rule. The engine owns one `Journal`; it commits the
//! writes of a step before it lets any effect of that step happen, and several requests of one step share one fsync.

mod disk;
mod index;
mod memory;
mod record;
pub mod rules;

use bytes::Bytes;
use futures::future::BoxFuture;
use model::{CommandId, IncarnationId, JournalId, Timestamp};
use wire::proto::agent::{CommandUpdate, EventClass};

pub use disk::RedbJournal;
pub use index::{Full, Head, HeadStage, Journal, Limits, NewEvent, Spent};
pub use memory::MemoryJournal;

/// The journal's name in the data directory.
pub const JOURNAL_FILE: &str = "journal.db";
/// Size of the journal's file, at most. Configuration may lower it.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// A file under this could not hold the largest spec, its replacement and a few results beside each other.
pub const FILE_BYTES_MIN: u64 = 32 << 20;
/// Events that no acknowledgement has named yet. Configuration may lower it.
pub const EVENTS_MAX: usize = 10_000;
/// Records lie in the store in pieces of at most this: a page of 32 KiB with its header.
const PIECE_BYTES: usize = 32 * 1024 - 256;

/// What a record of `bytes` takes in the file, rounded up to how the store gives out pages.
fn cost(bytes: usize) -> usize {
    /// Keys, checksums and the envelope.
    const ROW_BYTES: usize = 128;
    let (whole, rest) = (bytes / PIECE_BYTES, bytes % PIECE_BYTES + ROW_BYTES);
    // Small rows share pages that are at least half full; larger ones get the next power of two.
    let last = if rest < 2048 { 2 * rest } else { rest.next_power_of_two() };
    whole * 32 * 1024 + last
}

/// How long a settled command is remembered, and one that an earlier process left and nobody sent again. The server has
/// long expired both.
pub const ENTRY_TTL: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// The highest the node has seen of each. They only rise. What is below them is older intent, or a clock wound back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Milliseconds since 1970, as a gateway stated it; 0 for never.
    pub server_time_ms: u64,
    /// Of a spec this node took.
    pub generation: u64,
    /// Of intent this node verified.
    pub deployment_epoch: u64,
}

impl Marks {
    pub fn max(self, other: Marks) -> Marks {
        Marks {
            server_time_ms: self.server_time_ms.max(other.server_time_ms),
            generation: self.generation.max(other.generation),
            deployment_epoch: self.deployment_epoch.max(other.deployment_epoch),
        }
    }

    /// No spec was ever taken, as far as anything here tells: an old one could not be told from a new one, so only a spec
    /// bound to a nonce of ours is safe to take.
    pub fn is_fresh(self) -> bool {
        self.generation == 0
    }
}

/// Where a command stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// Durable, and nothing done yet.
    Accepted,
    /// A side effect may have begun in this boot.
    Running { boot_id: String },
    /// Settled: exactly what is reported, as often as somebody asks.
    Done { update: Box<CommandUpdate> },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub command_id: CommandId,
    /// The kind's name; a later build may have known kinds this one does not.
    pub kind: String,
    /// The process that wrote this stage.
    pub incarnation: IncarnationId,
    /// Server time, as well as the node knew it.
    pub at: Timestamp,
    pub stage: Stage,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub seq: u64,
    pub class: EventClass,
    /// An encoded `NodeReport`.
    pub report: Bytes,
    /// A node signature's value and key digest; empty for reports that are not attested.
    pub signature: Bytes,
    pub key_sha256: Bytes,
    pub at: Timestamp,
}

/// The last spec taken.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSpec {
    pub generation: u64,
    pub deployment_epoch: u64,
    /// As the control plane named it; never recomputed.
    pub hash: String,
    /// The signed bytes as delivered.
    pub body: Bytes,
    pub signature: Bytes,
    /// The encoded full spec when `body` was a patch; empty when `body` holds it.
    pub merged: Bytes,
    pub accepted_at: Timestamp,
}

/// One change. Each is absolute, so that a batch may be applied again after an error whose outcome is unknown.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Entry(Entry),
    ResultAcked(CommandId),
    RemoveEntry(CommandId),
    Event(StoredEvent),
    RemoveEvent(u64),
    /// Everything up to and including this is stored by the control plane.
    EventsAcked(u64),
    /// The last sequence number ever given out, for when no event is left to show it.
    LastSeq(u64),
    Spec(StoredSpec),
    Marks(Marks),
    /// A ticket id that was used, and until when it must be remembered.
    Ticket {
        id: String,
        until: Timestamp,
    },
    RemoveTicket(String),
}

/// What a store holds when the daemon starts, without the bodies of results, reports and the spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loaded {
    pub marks: Marks,
    pub acked_seq: u64,
    pub last_seq: u64,
    pub entries: Vec<LoadedEntry>,
    pub events: Vec<LoadedEvent>,
    pub spec: Option<StoredSpec>,
    pub tickets: Vec<(String, Timestamp)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LoadedEntry {
    pub entry: Entry,
    pub acked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedEvent {
    pub seq: u64,
    pub class: EventClass,
    /// Of the report and its signature.
    pub bytes: usize,
}

impl StoredEvent {
    /// Of the report and its signature.
    pub fn bytes(&self) -> usize {
        self.report.len() + self.signature.len() + self.key_sha256.len()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("open the journal at {path:?}")]
    Open {
        path: std::path::PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{doing} the journal")]
    Io {
        doing: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("read a {what} from the journal: its checksum or form is wrong")]
    Corrupt { what: &'static str },
}

/// Keeps what it is given. Rules live in [`Journal`].
///
/// `commit` is atomic and durable: when it returns `Ok`, all of the batch survives a power cut; on an error none of it or
/// all of it does, and the same batch may be committed again. Reads see every commit that returned.
pub trait JournalStore: Send + Sync + 'static {
    /// Made with the store; a lost store comes back under another id.
    fn id(&self) -> JournalId;
    fn load(&self) -> Result<Loaded, JournalError>;
    fn commit(&self, writes: Vec<Write>) -> BoxFuture<'_, Result<(), JournalError>>;
    fn entry(&self, id: CommandId) -> Result<Option<Entry>, JournalError>;
    /// Events after `seq`, ascending, at most `limit` and about `bytes_max` in all, but always one when there is one.
    fn events_after(
        &self,
        seq: u64,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEvent>, JournalError>;
    fn spec(&self) -> Result<Option<StoredSpec>, JournalError>;
}

#[cfg(test)]
mod tests;
