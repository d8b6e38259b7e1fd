//! A hypervisor that exists only in memory, with the same rules. Guests do nothing but start, obey and echo.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::ready;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use kit::Clock;
use model::InstanceId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::disk::{self, DiskError};
use crate::instance::{Instance, MemoryPlace};
use crate::name;
use crate::runtime::{
    Console, Domain, DomainState, Progress, Reboot, Runtime, RuntimeError, SeedInput, Trouble, about,
};
use crate::seed;

/// As many as a console holds that nobody reads.
const CONSOLE_BYTES_MAX: usize = 64 * 1024;
/// What its console puts before what it was sent.
pub const ECHO: &str = "console: ";

#[derive(Debug)]
struct Guest {
    domain: Domain,
    disk_bytes: u64,
    image: PathBuf,
    asked_to_stop: Option<Duration>,
    boots: u32,
}

#[derive(Debug, Default)]
struct State {
    guests: BTreeMap<InstanceId, Guest>,
    strangers: BTreeMap<String, Domain>,
    /// A guest that ignores the power button is powered off in the end.
    is_deaf: bool,
}

/// What it holds outlives the daemon that uses it, as domains do: keep one for each simulated host.
pub struct FakeRuntime {
    id: &'static str,
    clock: Arc<dyn Clock>,
    shutdown_within: Duration,
    state: Mutex<State>,
}

impl FakeRuntime {
    /// Takes another runtime's id, so that it can stand in for it.
    pub fn new(id: &'static str, clock: Arc<dyn Clock>, shutdown_within: Duration) -> Self {
        Self { id, clock, shutdown_within, state: Mutex::default() }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host was restarted: nothing runs.
    pub fn host_reboots(&self) {
        for guest in self.locked().guests.values_mut() {
            if guest.domain.state.is_active() {
                guest.domain.state = DomainState::Stopped;
            }
            guest.asked_to_stop = None;
        }
    }

    /// Guests hear the power button no longer, or again.
    pub fn guests_are_deaf(&self, deaf: bool) {
        self.locked().is_deaf = deaf;
    }

    /// A guest fails, or is found in another state for whatever reason. False when it is not there.
    pub fn set_state(&self, id: InstanceId, state: DomainState) -> bool {
        match self.locked().guests.get_mut(&id) {
            Some(guest) => {
                guest.domain.state = state;
                true
            }
            None => false,
        }
    }

    /// Somebody else's domain.
    pub fn add_stranger(&self, name: &str) {
        let domain = Domain {
            name: name.to_owned(),
            instance: None,
            state: DomainState::Stopped,
            vcpus: 1,
            memory_bytes: 1 << 20,
            place: MemoryPlace::default(),
        };
        self.locked().strangers.insert(name.to_owned(), domain);
    }

    /// How often its guest was started or rebooted.
    pub fn boots(&self, id: InstanceId) -> u32 {
        self.locked().guests.get(&id).map_or(0, |guest| guest.boots)
    }

    /// Whatever else is said about an instance, it is not a stranger's.
    fn ours(&self, id: InstanceId) -> Result<MutexGuard<'_, State>, Trouble> {
        let state = self.locked();
        match state.strangers.get(&name::domain(id)) {
            Some(stranger) => Err(Trouble::Foreign { name: stranger.name.clone() }),
            None => Ok(state),
        }
    }

    fn define_guest(&self, instance: &Instance, seed: SeedInput<'_>) -> Result<(), Trouble> {
        instance.check()?;
        disk::check_size(&instance.image, instance.disk_bytes)?;
        let mut state = self.ours(instance.id)?;
        let asked = instance.disk_bytes;
        match (state.guests.get(&instance.id), seed) {
            (None, SeedInput::Keep) => return Err(Trouble::NoSeed),
            (Some(guest), _) if asked < guest.disk_bytes => {
                return Err(DiskError::Shrinks { asked, has: guest.disk_bytes }.into());
            }
            (None, SeedInput::UserData(user_data)) => drop(seed::render(instance, user_data)),
            (Some(_), _) => {}
        }
        let guest = state.guests.entry(instance.id).or_insert_with(|| Guest {
            domain: Domain {
                name: name::domain(instance.id),
                instance: Some(instance.id),
                state: DomainState::Stopped,
                vcpus: 0,
                memory_bytes: 0,
                place: MemoryPlace::default(),
            },
            disk_bytes: 0,
            image: instance.image.path.clone(),
            asked_to_stop: None,
            boots: 0,
        });
        guest.disk_bytes = asked;
        guest.domain.vcpus = instance.vcpus;
        guest.domain.memory_bytes = instance.memory_bytes;
        guest.domain.place = instance.placement.memory.clone();
        Ok(())
    }

    fn start_guest(&self, id: InstanceId) -> Result<(), Trouble> {
        let mut state = self.ours(id)?;
        let guest = state.guests.get_mut(&id).ok_or(Trouble::NotDefined)?;
        guest.asked_to_stop = None;
        match guest.domain.state {
            DomainState::Incomplete => return Err(Trouble::NotDefined),
            DomainState::Stopped | DomainState::Crashed => guest.boots += 1,
            DomainState::Running | DomainState::Paused => {}
        }
        guest.domain.state = DomainState::Running;
        Ok(())
    }

    /// A guest obeys between two looks.
    fn stop_guest(&self, id: InstanceId) -> Result<Progress, Trouble> {
        let now = self.clock.monotonic();
        let mut state = self.ours(id)?;
        let is_deaf = state.is_deaf;
        let Some(guest) = state.guests.get_mut(&id) else { return Ok(Progress::Done) };
        if !guest.domain.state.is_active() {
            guest.asked_to_stop = None;
            return Ok(Progress::Done);
        }
        let Some(asked) = guest.asked_to_stop else {
            guest.asked_to_stop = Some(now);
            return Ok(Progress::Waiting { look_in: self.shutdown_within });
        };
        if is_deaf && now.saturating_sub(asked) < self.shutdown_within {
            return Ok(Progress::Waiting { look_in: self.shutdown_within });
        }
        guest.domain.state = DomainState::Stopped;
        guest.asked_to_stop = None;
        Ok(Progress::Done)
    }

    fn reboot_guest(&self, id: InstanceId) -> Result<(), Trouble> {
        let mut state = self.ours(id)?;
        let guest = state.guests.get_mut(&id).ok_or(Trouble::NotDefined)?;
        if guest.domain.state != DomainState::Running {
            return Err(Trouble::NotRunning);
        }
        guest.boots += 1;
        Ok(())
    }

    fn active(&self, id: InstanceId) -> Result<(), Trouble> {
        let state = self.ours(id)?;
        let guest = state.guests.get(&id).ok_or(Trouble::NotDefined)?;
        if guest.domain.state.is_active() { Ok(()) } else { Err(Trouble::NotRunning) }
    }
}

/// Says again what it is told.
#[derive(Debug, Default)]
struct Echo {
    said: VecDeque<u8>,
    reader: Option<Waker>,
}

impl AsyncRead for Echo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said.is_empty() {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = into.remaining().min(self.said.len());
        into.put_slice(&self.said.drain(..count).collect::<Vec<u8>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Echo {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // What nobody reads is lost, as on a serial line.
        if self.said.len() + ECHO.len() + bytes.len() <= CONSOLE_BYTES_MAX {
            self.said.extend(ECHO.bytes().chain(bytes.iter().copied()));
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Runtime for FakeRuntime {
    fn id(&self) -> &'static str {
        self.id
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Domain>, RuntimeError>> {
        let state = self.locked();
        let guests = state.guests.values().map(|guest| &guest.domain);
        let mut domains: Vec<Domain> = guests.chain(state.strangers.values()).cloned().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        Box::pin(ready(Ok(domains)))
    }

    fn observe(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<Domain>, RuntimeError>> {
        let seen = self.ours(id).map(|state| state.guests.get(&id).map(|guest| guest.domain.clone()));
        Box::pin(ready(about("look at", id, seen)))
    }

    fn define<'a>(
        &'a self,
        instance: &'a Instance,
        seed: SeedInput<'a>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(ready(about("define", instance.id, self.define_guest(instance, seed))))
    }

    /// Its guests write nothing.
    fn back(&self, _: InstanceId, _: u64) -> Result<(), RuntimeError> {
        Ok(())
    }

    fn start(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(ready(about("start", id, self.start_guest(id))))
    }

    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Progress, RuntimeError>> {
        Box::pin(ready(about("stop", id, self.stop_guest(id))))
    }

    fn reboot(&self, id: InstanceId, _: Reboot) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(ready(about("reboot", id, self.reboot_guest(id))))
    }

    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>> {
        let gone = self.ours(id).map(|mut state| drop(state.guests.remove(&id)));
        Box::pin(ready(about("destroy", id, gone)))
    }

    fn bases(&self) -> BoxFuture<'_, Result<BTreeSet<PathBuf>, RuntimeError>> {
        let images = self.locked().guests.values().map(|guest| guest.image.clone()).collect();
        Box::pin(ready(Ok(images)))
    }

    fn console(&self, id: InstanceId) -> BoxFuture<'_, Result<Box<dyn Console>, RuntimeError>> {
        let opened = self.active(id).map(|()| Box::new(Echo::default()) as Box<dyn Console>);
        Box::pin(ready(about("open the console of", id, opened)))
    }
}

#[cfg(test)]
mod tests;
