//! The port behind which instances run.

use std::collections::BTreeMap;

use agent::link::ByteStream;
use futures::future::BoxFuture;
use model::InstanceId;
use runtimes::UserData;
use wire::proto::agent::InstanceSpec;

/// A hypervisor of this host. Each call brings one instance closer to what is wanted and is right to make again: what is so
/// already is success. Calls come one after the other.
pub trait Hypervisor: Send + Sync + 'static {
    /// The driver's id, as specs name it.
    fn id(&self) -> &str;

    /// Whether its instances may have GPUs of this host.
    fn hands_gpus(&self) -> bool;

    /// Everything that it holds, what is only begun among it. All of it, or an error: what is not in it is not there.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Held>, Trouble>>;

    /// Has the host guard the cards of these instances, and no others, before any of them starts. Those that cannot be
    /// guarded as their entries say, and why. An error says that none is.
    fn guard<'a>(&'a self, entries: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<Unguarded, Trouble>>;

    /// Makes what the entry describes, or brings what is there to it. It starts nothing. One that runs is as the entry says
    /// from its next start on. One that is to be told something, was not, and is not now, is not made: [`NO_USER_DATA`].
    fn define<'a>(&'a self, entry: &'a InstanceSpec, told: Told<'a>) -> BoxFuture<'a, Result<(), Trouble>>;

    /// Starts it, or lets it go on when it is paused. It was defined before. Of the host's memory so much is promised to
    /// others than instances.
    fn start(&self, id: InstanceId, reserved_bytes: u64) -> BoxFuture<'_, Result<(), Trouble>>;

    /// Asks the guest to shut down, and ends it when it has not in time. Called again until it is [`Stopping::Done`].
    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Stopping, Trouble>>;

    /// Removes all of it, running or not.
    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), Trouble>>;

    /// Connects with a running instance of this host: with its serial console, or with a port at an address that is its own by rules
    /// that are there.
    fn reach(&self, id: InstanceId, door: Door) -> BoxFuture<'_, Result<Box<dyn ByteStream>, Trouble>>;

    /// Removes what instances have in common and none of these, and none that is there, needs any more.
    fn tidy<'a>(&'a self, entries: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<(), Trouble>>;
}

/// What a guest is told at its first boot. One that was told once is told the same for good.
#[derive(Debug, Clone, Copy)]
pub enum Told<'a> {
    /// Its entry names nothing.
    Nothing,
    /// It was told before, if ever.
    Before,
    Now(&'a UserData),
}

/// The reason of a define that was not told what it has to be.
pub const NO_USER_DATA: &str = "NoUserData";

/// What of an instance is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Console,
    Port(u16),
}

/// What a hypervisor holds of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub id: InstanceId,
    pub power: Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// Parts of it: something was cut short.
    Incomplete,
    Stopped,
    Running,
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    Done,
    Waits,
}

/// Instances whose networks cannot be as their entries say. One whose trouble is retryable is not started, and goes on if it runs;
/// one whose trouble lasts must not run.
pub type Unguarded = BTreeMap<InstanceId, Trouble>;

/// Why a call came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// One stable word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// The same call may succeed later with nothing changed in what is asked for.
    pub retryable: bool,
}
