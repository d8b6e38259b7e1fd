//! The port behind which instances run.

use futures::future::BoxFuture;
use model::InstanceId;
use wire::proto::agent::InstanceSpec;

/// A hypervisor of this host. Each call brings one instance closer to what is wanted and is right to make again: what is so
/// already is success. Calls come one after the other.
pub trait Hypervisor: Send + Sync + 'static {
    /// The driver's id, as specs name it.
    fn id(&self) -> &str;

    /// Everything that it holds, what is only begun among it. All of it, or an error: what is not in it is not there.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Held>, Trouble>>;

    /// Makes what the entry describes, or brings what is there to it. It starts nothing. One that runs is as the entry says
    /// from its next start on.
    fn define<'a>(&'a self, entry: &'a InstanceSpec) -> BoxFuture<'a, Result<(), Trouble>>;

    /// Starts it, or lets it go on when it is paused. It was defined before.
    fn start(&self, id: InstanceId) -> BoxFuture<'_, Result<(), Trouble>>;

    /// Asks the guest to shut down, and ends it when it has not in time. Called again until it is [`Stopping::Done`].
    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Stopping, Trouble>>;

    /// Removes all of it, running or not.
    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), Trouble>>;
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
