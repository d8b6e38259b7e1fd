//! A hypervisor that keeps its instances in a file, so that they outlive the daemon. A machine that boots anew has all of
//! them, and none of them runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use agent::link::ByteStream;
use futures::future::{BoxFuture, FutureExt};
use model::InstanceId;
use serde::{Deserialize, Serialize};
use wire::proto::agent::{InstanceNic, InstanceSpec};

use super::port::{Door, Held, Hypervisor, NO_USER_DATA, Power, Stopping, Told, Trouble, Unguarded};

/// A line for each instance.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Host {
    boot_id: String,
    domains: BTreeMap<String, Domain>,
}

impl Host {
    fn power_off(&mut self) {
        for domain in self.domains.values_mut() {
            (domain.running, domain.stopping) = (false, false);
        }
    }
}

/// What is there of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    pub running: bool,
    pub vcpus: u32,
    pub memory_bytes: u64,
    pub hostname: String,
    /// How often it was started.
    pub starts: u64,
    /// The start that the entry it was made of asked for, and the one it was last started for.
    #[serde(default)]
    pub wanted_boot: u64,
    #[serde(default)]
    pub boot: u64,
    #[serde(default)]
    pub cards: Vec<Card>,
    /// Its guest was asked to shut down, and has not yet.
    #[serde(default)]
    pub stopping: bool,
    /// SHA-256 of what it was told at its first boot, in hex.
    #[serde(default)]
    pub told: Option<String>,
}

/// What a network card of it is in the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub mac: String,
    pub bridge: String,
    pub addresses: Vec<String>,
}

#[derive(Debug, Default)]
struct Faults {
    unreadable: bool,
    refused: BTreeMap<InstanceId, Trouble>,
    unguarded: Option<Trouble>,
    /// Guests take a while to shut down.
    slow_guests: bool,
    /// So many changes are made, and then nothing answers.
    changes_left: Option<u32>,
}

pub struct FakeHypervisor {
    path: PathBuf,
    hardware: Arc<dyn hw::Hardware>,
    faults: Mutex<Faults>,
}

impl FakeHypervisor {
    pub fn at(path: PathBuf, hardware: Arc<dyn hw::Hardware>) -> Self {
        Self { path, hardware, faults: Mutex::default() }
    }

    /// Cannot say what it holds, until told otherwise.
    pub fn set_unreadable(&self, unreadable: bool) {
        self.faults().unreadable = unreadable;
    }

    /// Guards nobody, until told otherwise by none.
    pub fn set_unguarded(&self, trouble: Option<Trouble>) {
        self.faults().unguarded = trouble;
    }

    /// Refuses to make this instance, until told otherwise by none.
    pub fn refuse(&self, id: InstanceId, trouble: Option<Trouble>) {
        match trouble {
            Some(trouble) => self.faults().refused.insert(id, trouble),
            None => self.faults().refused.remove(&id),
        };
    }

    /// Every fourth guest shuts down by the second time it is asked, until told otherwise.
    pub fn set_slow_guests(&self, slow: bool) {
        self.faults().slow_guests = slow;
    }

    /// Makes so many changes more and then answers nothing, as for a daemon that dies in the middle of a pass; until told
    /// otherwise by none.
    pub fn cut_short(&self, after: Option<u32>) {
        self.faults().changes_left = after;
    }

    /// Whether it was cut short and answers nothing any more.
    pub fn is_cut_short(&self) -> bool {
        self.faults().changes_left == Some(0)
    }

    /// The machine goes down: no guest runs.
    ///
    /// # Errors
    /// When its file cannot be read or written.
    pub async fn power_off(&self) -> Result<(), Trouble> {
        let mut host = self.stored().await?;
        host.power_off();
        self.store(&host)
    }

    /// All that is there, whatever it was told to answer.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub async fn domains(&self) -> Result<BTreeMap<InstanceId, Domain>, Trouble> {
        let host = self.stored().await?;
        Ok(host.domains.into_iter().filter_map(|(id, domain)| Some((id.parse().ok()?, domain))).collect())
    }

    /// How often the instance was started, while it is there.
    pub async fn starts(&self, id: InstanceId) -> Option<u64> {
        let host = self.read().await.ok()?;
        host.domains.get(&id.to_string()).map(|domain| domain.starts)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    async fn read(&self) -> Result<Host, Trouble> {
        if self.faults().unreadable || self.is_cut_short() {
            return Err(unavailable("told to fail"));
        }
        self.stored().await
    }

    async fn stored(&self) -> Result<Host, Trouble> {
        let boot_id = self.hardware.boot_id().await.map_err(|err| unavailable(&kit::chain(&err)))?;
        let bytes = kit::fs::read_if_present(&self.path, FILE_BYTES_MAX)
            .map_err(|err| unavailable(&kit::chain(&err)))?;
        let mut host: Host = match bytes {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|err| unavailable(&err.to_string()))?,
            None => Host::default(),
        };
        if host.boot_id != boot_id {
            host.power_off();
            host.boot_id = boot_id;
        }
        Ok(host)
    }

    async fn change<T>(&self, change: impl FnOnce(&mut Host) -> Result<T, Trouble>) -> Result<T, Trouble> {
        let mut host = self.read().await?;
        let done = change(&mut host)?;
        self.store(&host)?;
        if let Some(left) = &mut self.faults().changes_left {
            *left = left.saturating_sub(1);
        }
        Ok(done)
    }

    fn store(&self, host: &Host) -> Result<(), Trouble> {
        let bytes = serde_json::to_vec(host).expect("it serializes");
        if let Some(dir) = self.path.parent() {
            kit::fs::create_dir(dir, 0o700).map_err(|err| unavailable(&kit::chain(&err)))?;
        }
        kit::fs::write_atomic(&self.path, &bytes, 0o600).map_err(|err| unavailable(&kit::chain(&err)))
    }
}

fn card(nic: &InstanceNic) -> Card {
    Card { mac: nic.mac.clone(), bridge: nic.bridge.clone(), addresses: nic.addresses.clone() }
}

fn unavailable(said: &str) -> Trouble {
    Trouble { reason: "RuntimeUnavailable", message: said.to_owned(), retryable: true }
}

fn undefined() -> Trouble {
    Trouble { reason: "NotDefined", message: "it has not been defined".to_owned(), retryable: false }
}

impl Hypervisor for FakeHypervisor {
    fn id(&self) -> &str {
        "libvirt-kvm"
    }

    fn hands_gpus(&self) -> bool {
        true
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Held>, Trouble>> {
        async move {
            let host = self.read().await?;
            let held = |(id, domain): (&String, &Domain)| {
                let power = if domain.running { Power::Running } else { Power::Stopped };
                Some(Held { id: id.parse().ok()?, power })
            };
            Ok(host.domains.iter().filter_map(held).collect())
        }
        .boxed()
    }

    fn guard<'a>(&'a self, _: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<Unguarded, Trouble>> {
        let trouble = self.faults().unguarded.clone();
        std::future::ready(trouble.map_or_else(|| Ok(Unguarded::new()), Err)).boxed()
    }

    fn define<'a>(&'a self, entry: &'a InstanceSpec, told: Told<'a>) -> BoxFuture<'a, Result<(), Trouble>> {
        async move {
            let id = entry.instance_id.parse::<InstanceId>().ok();
            let refused = id.and_then(|id| self.faults().refused.get(&id).cloned());
            if let Some(trouble) = refused {
                return Err(trouble);
            }
            self.change(|host| {
                let is_new = !host.domains.contains_key(&entry.instance_id);
                if is_new && matches!(told, Told::Before) {
                    let message = "it has no seed, and its user data was not given".to_owned();
                    return Err(Trouble { reason: NO_USER_DATA, message, retryable: false });
                }
                let domain = host.domains.entry(entry.instance_id.clone()).or_default();
                if let (true, Told::Now(user_data)) = (is_new, told) {
                    domain.told = Some(hex::encode(user_data.sha256()));
                }
                domain.vcpus = entry.vcpus;
                domain.memory_bytes = entry.memory_bytes;
                domain.hostname.clone_from(&entry.hostname);
                domain.wanted_boot = entry.boot;
                domain.cards = entry.nics.iter().map(card).collect();
                Ok(())
            })
            .await
        }
        .boxed()
    }

    fn start(&self, id: InstanceId, _reserved_bytes: u64) -> BoxFuture<'_, Result<(), Trouble>> {
        self.change(move |host| {
            let domain = host.domains.get_mut(&id.to_string()).ok_or_else(undefined)?;
            if !domain.running {
                domain.starts += 1;
                domain.boot = domain.wanted_boot;
            }
            domain.running = true;
            Ok(())
        })
        .boxed()
    }

    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Stopping, Trouble>> {
        let slow = self.faults().slow_guests && id.uuid().as_u128() % 4 == 1;
        self.change(move |host| {
            let Some(domain) = host.domains.get_mut(&id.to_string()) else { return Ok(Stopping::Done) };
            if slow && domain.running && !domain.stopping {
                domain.stopping = true;
                return Ok(Stopping::Waits);
            }
            (domain.running, domain.stopping) = (false, false);
            Ok(Stopping::Done)
        })
        .boxed()
    }

    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), Trouble>> {
        self.change(move |host| {
            host.domains.remove(&id.to_string());
            Ok(())
        })
        .boxed()
    }

    fn reach(&self, id: InstanceId, door: Door) -> BoxFuture<'_, Result<Box<dyn ByteStream>, Trouble>> {
        async move {
            let host = self.read().await?;
            let running = host.domains.get(&id.to_string()).is_some_and(|domain| domain.running);
            let refused = |message: &str| Trouble {
                reason: "NotReached",
                message: message.to_owned(),
                retryable: false,
            };
            match door {
                _ if !running => Err(refused("the instance does not run here")),
                Door::Console => Ok(crate::shell::echo("console: ")),
                Door::Port(_) => Err(refused("a simulated instance has no ports: its console answers")),
            }
        }
        .boxed()
    }

    fn tidy<'a>(&'a self, _: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<(), Trouble>> {
        std::future::ready(Ok(())).boxed()
    }
}
