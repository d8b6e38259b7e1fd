//! The port behind which instances run.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use model::InstanceId;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::admission::{EXHAUSTED, Exhausted};
use crate::disk::{self, DiskError};
use crate::instance::{Instance, MemoryPlace, SpecError};
use crate::name::Mac;
use crate::seed::UserData;
use crate::vfio::VfioError;

/// A hypervisor of this host. Each call brings one instance closer to what is wanted and is right to make again: what is so
/// already is success. Calls about one instance come one after the other; calls about different ones may overlap.
///
/// Nothing is remembered that a later call relies on but what is on the host, so a daemon that starts anew goes on. How long
/// an instance has been asked to stop is the exception: a new process asks anew.
pub trait Runtime: Send + Sync {
    /// As specs and labels name it.
    fn id(&self) -> &'static str;

    /// Everything the hypervisor holds, in order of names: ours, and strangers' domains, which no call touches. An instance
    /// of which there are only files is in it too, as [`DomainState::Incomplete`].
    fn list(&self) -> BoxFuture<'_, Result<Vec<Domain>, RuntimeError>>;

    /// One instance; none when nothing of it is on the host.
    fn observe(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<Domain>, RuntimeError>>;

    /// Makes the instance's disk, seed and domain, or brings those that are there to the spec. It never starts anything.
    /// What changes while the instance runs is there at its next start.
    ///
    /// A failure leaves at most an incomplete instance, which another `define` completes and `destroy` removes.
    fn define<'a>(
        &'a self,
        instance: &'a Instance,
        seed: SeedInput<'a>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>>;

    /// So much of its disk is to be had from now on, whatever it was defined with; 0 for all of it. What is not there needs none.
    fn back(&self, id: InstanceId, disk_bytes: u64) -> Result<(), RuntimeError>;

    /// Starts it, or lets it go on when it is paused. It must have been defined.
    fn start(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// Asks the guest to shut down, and powers it off when it has not within the runtime's time limit. Call it again
    /// until it is done. What is not there is stopped.
    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Progress, RuntimeError>>;

    /// Starts a running guest anew. Not idempotent: each call is one reboot. What does not run is not rebooted.
    fn reboot(&self, id: InstanceId, how: Reboot) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// Powers it off and removes all of it: domain, disk, seed, taps. What is not there is removed.
    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>>;

    /// The images that its instances are based on, whatever state they are in. All of them, or an error.
    fn bases(&self) -> BoxFuture<'_, Result<BTreeSet<PathBuf>, RuntimeError>>;

    /// The serial console of a running instance. Two at once share nothing: the later one waits for the earlier to end. A
    /// reader that stalls stalls the guest's console, so read on.
    fn console(&self, id: InstanceId) -> BoxFuture<'_, Result<Box<dyn Console>, RuntimeError>>;
}

pub trait Console: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Console for T {}

/// What the guest is told at its first boot.
#[derive(Debug, Clone, Copy)]
pub enum SeedInput<'a> {
    /// Written when the instance has no seed yet; a seed that is there stays as it is.
    UserData(&'a UserData),
    /// It has been defined before: the user data need not be fetched again.
    Keep,
}

/// One domain of the hypervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// As the hypervisor names it.
    pub name: String,
    /// None when it is not ours.
    pub instance: Option<InstanceId>,
    pub state: DomainState,
    /// Configured; 0 where it is not known.
    pub vcpus: u32,
    pub memory_bytes: u64,
    /// Where that is. Told by [`Runtime::list`] alone.
    pub place: MemoryPlace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainState {
    /// Files and no domain: a define or a destroy was cut short.
    Incomplete,
    Stopped,
    Running,
    Paused,
    /// The guest or its hypervisor failed. It does not run.
    Crashed,
}

impl DomainState {
    /// Whether its memory is taken.
    pub fn is_active(self) -> bool {
        match self {
            Self::Running | Self::Paused => true,
            Self::Incomplete | Self::Stopped | Self::Crashed => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// Call again after this long at the latest.
    Waiting {
        look_in: Duration,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// The guest is asked to shut down and starts again when it has.
    Graceful,
    /// As the reset button does it.
    Hard,
}

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("{doing} instance {instance}")]
    Instance {
        doing: &'static str,
        instance: InstanceId,
        #[source]
        trouble: Trouble,
    },
    #[error("list domains")]
    List(#[source] Trouble),
    #[error("list the images of instances")]
    Bases(#[source] Trouble),
}

impl RuntimeError {
    pub fn trouble(&self) -> &Trouble {
        match self {
            Self::Instance { trouble, .. } | Self::List(trouble) | Self::Bases(trouble) => trouble,
        }
    }
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("it has not been defined")]
    NotDefined,
    #[error("it does not run")]
    NotRunning,
    #[error("it has no seed, and its user data was not given")]
    NoSeed,
    #[error("a domain {name:?} is there that is not ours")]
    Foreign { name: String },
    #[error("domain {name:?} of this host, which is not ours, has a card with the MAC address {mac} too")]
    MacTaken { mac: Mac, name: String },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Files(#[from] kit::fs::FsError),
    #[error("the host has no memory left: {said}")]
    NoCapacity { said: String },
    #[error("{0}")]
    NoDisk(Exhausted),
    #[error(transparent)]
    Gpus(#[from] VfioError),
    #[error("the hypervisor does not answer: {said}")]
    Unavailable { said: String },
    #[error("the hypervisor refuses: {said}")]
    Refused { said: String },
    #[error("the hypervisor says what is not understood: {what}")]
    Unreadable { what: &'static str },
}

impl Trouble {
    /// One stable word, for statuses.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotDefined => "NotDefined",
            Self::NotRunning => "NotRunning",
            Self::NoSeed => "NoUserData",
            Self::Foreign { .. } => "ForeignDomain",
            Self::MacTaken { .. } => "DuplicateMac",
            Self::Spec(_) => "InvalidInstance",
            Self::Disk(err) if err.is_refusal() => "ImageRefused",
            Self::Disk(err) if err.is_full() => EXHAUSTED,
            Self::Files(err) if disk::is_full(err) => EXHAUSTED,
            Self::Disk(_) | Self::Files(_) => "DiskTrouble",
            Self::NoCapacity { .. } | Self::NoDisk(_) => EXHAUSTED,
            Self::Gpus(err) => err.reason(),
            Self::Unavailable { .. } | Self::Unreadable { .. } => "RuntimeUnavailable",
            Self::Refused { .. } => "RuntimeRefused",
        }
    }

    /// Whether the same call may succeed later with nothing changed in what is asked for.
    pub fn retryable(&self) -> bool {
        match self {
            // Whose domain it is can take its card away.
            Self::MacTaken { .. }
            | Self::NoCapacity { .. }
            | Self::NoDisk(_)
            | Self::Unavailable { .. }
            | Self::Unreadable { .. }
            | Self::Files(_)
            | Self::Refused { .. } => true,
            Self::Disk(err) => !err.is_refusal(),
            Self::Gpus(err) => err.retryable(),
            Self::NotDefined | Self::NotRunning | Self::NoSeed | Self::Foreign { .. } | Self::Spec(_) => {
                false
            }
        }
    }
}

/// Names what was done to which instance when it fails.
pub(crate) fn about<T>(
    doing: &'static str,
    instance: InstanceId,
    result: Result<T, Trouble>,
) -> Result<T, RuntimeError> {
    result.map_err(|trouble| RuntimeError::Instance { doing, instance, trouble })
}
