//! Instances on a hypervisor of this host: what an entry means to a runtime, the images that disks begin with, and whether
//! the host has the memory for a start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use agent::link::ByteStream;
use futures::future::{BoxFuture, FutureExt};
use model::InstanceId;
use runtimes::admission::{self, Admission, HostMemory, Promised};
use runtimes::firewall::{Firewall, Guard, NetworkPolicy};
use runtimes::images::Wanted;
use runtimes::instance::{AuthorizedKey, MemoryPlace, Placement};
use runtimes::name::{Bridge, Cidr, Mac};
use runtimes::nat::NatBridge;
use runtimes::{
    Domain, DomainState, Image, ImageFormat, ImageRef, Images, Instance, Nic, Progress, Runtime,
    RuntimeError, SeedInput, UserData, name, network,
};
use tokio::net::TcpStream;
use wire::inventory::{CPU_LIST_BYTES_MAX, CpuList};
use wire::proto::agent::{
    ImageFormat as WireFormat, InstanceImage, InstanceNic, InstanceSpec, NetworkPolicy as WirePolicy,
};

use super::gpus;
use super::port::{Door, Held, Hypervisor, Power, Stopping, Told, Trouble, Unguarded};

/// The host's memory, when it can be read.
pub type HostMemoryOf = Box<dyn Fn() -> Option<HostMemory> + Send + Sync>;

pub struct Hosted {
    runtime: Arc<dyn Runtime>,
    images: Images,
    firewall: Arc<Firewall>,
    nat: Option<NatBridge>,
    memory: HostMemoryOf,
    /// In which the instances' cards are; the host's own when absent.
    namespace: Option<PathBuf>,
    /// Where GPUs are found that instances may have; none on a host that hands none to them.
    gpus: Option<Arc<dyn hw::Hardware>>,
}

impl Hosted {
    pub fn new(
        runtime: Arc<dyn Runtime>,
        images: Images,
        firewall: Arc<Firewall>,
        nat: Option<NatBridge>,
        memory: HostMemoryOf,
        namespace: Option<PathBuf>,
    ) -> Self {
        Self { runtime, images, firewall, nat, memory, namespace, gpus: None }
    }

    /// Instances may have GPUs of this machine.
    pub fn with_gpus_of(self, machine: Arc<dyn hw::Hardware>) -> Self {
        Self { gpus: Some(machine), ..self }
    }

    /// The daemon's own bridge is there while one of these is to be on it. When it cannot be, none of them can run.
    async fn connect(&self, entries: &[&InstanceSpec]) -> Unguarded {
        let Some(nat) = &self.nat else { return Unguarded::new() };
        let name = nat.bridge().as_str();
        let cards: Vec<(&InstanceSpec, &InstanceNic)> = entries
            .iter()
            .flat_map(|entry| entry.nics.iter().map(move |card| (*entry, card)))
            .filter(|(_, card)| card.bridge == name)
            .collect();
        // What no entry names has its bridge still.
        let names = |id: InstanceId| entries.iter().any(|entry| entry.instance_id == id.to_string());
        let is_unlisted = |held: &Domain| held.instance.is_some_and(|id| !names(id));
        let unlisted = match cards.is_empty() {
            true => self.runtime.list().await.map_or(true, |domains| domains.iter().any(is_unlisted)),
            false => false,
        };
        if unlisted {
            return Unguarded::new();
        }
        let gateways =
            cards.iter().flat_map(|(_, card)| nic(card).map(|nic| own_gateways(&nic)).unwrap_or_default());
        match nat.ensure(&gateways.collect()).await {
            Ok(()) => Unguarded::new(),
            Err(err) => {
                let message = kit::chain(&err);
                let trouble = || Trouble { reason: "NatBridge", message: message.clone(), retryable: true };
                cards
                    .iter()
                    .filter_map(|(entry, _)| Some((entry.instance_id.parse().ok()?, trouble())))
                    .collect()
            }
        }
    }

    async fn guard_entries(&self, entries: &[&InstanceSpec]) -> Result<Unguarded, Trouble> {
        let mut unguarded = self.connect(entries).await;
        let mut all: Vec<Guard> = Vec::new();
        let mut owners: BTreeMap<(Bridge, Mac), InstanceId> = BTreeMap::new();
        for entry in entries {
            let Ok(id) = entry.instance_id.parse() else { continue };
            if let Err(err) = self.runtime.back(id, entry.disk_backed_bytes) {
                tracing::warn!(instance_id = %id, err = kit::chain(&err), "as much of its disk as before is kept free");
            }
            let guards = guards(id, entry).and_then(|guards| own_macs(id, guards, &mut owners));
            match guards {
                Ok(guards) => all.extend(guards),
                Err(trouble) => drop(unguarded.insert(id, trouble)),
            }
        }
        self.firewall.guard(&all).await.map_err(|err| Trouble {
            reason: "NetworkRules",
            message: kit::chain(&err),
            retryable: true,
        })?;
        Ok(unguarded)
    }

    async fn define_entry(&self, entry: &InstanceSpec, told: Told<'_>) -> Result<(), Trouble> {
        let hardware = match &self.gpus {
            _ if entry.gpu_device_ids.is_empty() => None,
            Some(hardware) => Some(hardware),
            None => {
                let message =
                    "this host hands no GPUs to its instances: its IOMMU is off, or vfio-pci is not loaded";
                let message = message.to_owned();
                return Err(Trouble { reason: "NoGpuPassthrough", message, retryable: false });
            }
        };
        let image = self.image(&image_ref(entry)?)?;
        let gpus = match hardware {
            Some(hardware) => gpus::find(&**hardware, entry).await?,
            None => Vec::new(),
        };
        let instance = Instance { gpus, ..instance(entry, image)? };
        // One that has its seed keeps it.
        let none = UserData::none();
        let seed = match told {
            Told::Nothing => SeedInput::UserData(&none),
            Told::Before => SeedInput::Keep,
            Told::Now(user_data) => SeedInput::UserData(user_data),
        };
        self.runtime.define(&instance, seed).await.map_err(trouble)
    }

    /// To an address that the loaded rules bind to a card of this instance, and to no other: whoever answers there is it.
    async fn dial(&self, id: InstanceId, port: u16) -> Result<TcpStream, Trouble> {
        let refused = |reason, message: String| Trouble { reason, message, retryable: true };
        let own = self.runtime.observe(id).await.map_err(trouble)?;
        if own.is_none_or(|own| own.state != DomainState::Running) {
            return Err(refused("NotRunning", "the instance does not run here".to_owned()));
        }
        let tap = name::tap(id, 0);
        let bound = self.firewall.bound();
        let address = bound.iter().find(|(_, of)| **of == tap).map(|(address, _)| *address);
        let Some(address) = address else {
            let message = "the instance has no address that this host vouches for: its pool gives it none, or its rules are not loaded";
            return Err(refused("NoAddress", message.to_owned()));
        };
        let to = SocketAddr::new(address, port);
        let failed = |err: &std::io::Error| {
            refused("NotReached", format!("the instance does not take connections at port {port}: {err}"))
        };
        let socket = network::tcp_socket(self.namespace.as_deref(), address).map_err(|err| failed(&err))?;
        socket.connect(to).await.map_err(|err| failed(&err))
    }

    fn image(&self, image: &ImageRef) -> Result<Image, Trouble> {
        match self.images.want(image) {
            Wanted::Here(image) => Ok(image),
            coming @ Wanted::Coming { .. } => {
                Err(Trouble { reason: "ImageComing", message: coming.to_string(), retryable: true })
            }
            Wanted::Failed(err) => {
                let (reason, retryable) = (err.reason(), !err.is_lasting());
                Err(Trouble { reason, message: told(reason, kit::chain(&*err)), retryable })
            }
        }
    }

    async fn start_instance(&self, id: InstanceId, reserved_bytes: u64) -> Result<(), Trouble> {
        let domains = self.runtime.list().await.map_err(trouble)?;
        let own = domains.iter().find(|domain| domain.instance == Some(id));
        // What is paused has its memory, and what runs needs none.
        if let Some(own) = own.filter(|own| !own.state.is_active()) {
            let active =
                domains.iter().filter(|domain| domain.instance.is_some() && domain.state.is_active());
            let promised =
                active.fold(Promised::default(), |sum, one| sum.instance(one.memory_bytes, &one.place));
            let (host, promised) = ((self.memory)(), promised.hold(reserved_bytes));
            match admission::admit(host.as_ref(), promised, own.memory_bytes, &own.place) {
                Admission::Fits => {}
                Admission::Unchecked => {
                    tracing::warn!("this host's memory is not known: a start is unchecked")
                }
                Admission::Exhausted(exhausted) => {
                    let message = exhausted.to_string();
                    return Err(Trouble { reason: admission::EXHAUSTED, message, retryable: true });
                }
            }
        }
        self.runtime.start(id).await.map_err(trouble)
    }
}

fn trouble(err: RuntimeError) -> Trouble {
    let of = err.trouble();
    let message = match of {
        // Its own words say it all, and begin as they should.
        runtimes::Trouble::NoDisk(exhausted) => exhausted.to_string(),
        _ => told(of.reason(), kit::chain(&err)),
    };
    Trouble { reason: of.reason(), retryable: of.retryable(), message }
}

/// What the host has too little of is told in words that begin alike.
fn told(reason: &str, message: String) -> String {
    if reason == admission::EXHAUSTED { format!("{reason}: {message}") } else { message }
}

fn invalid(what: &str, why: impl std::fmt::Display) -> Trouble {
    Trouble { reason: "InvalidInstance", message: format!("{what}: {why}"), retryable: false }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(what: &str, text: &str) -> Result<T, Trouble> {
    text.parse().map_err(|err| invalid(what, err))
}

fn all<T: FromStr<Err: std::fmt::Display>>(what: &str, texts: &[String]) -> Result<Vec<T>, Trouble> {
    texts.iter().map(|text| parsed(what, text)).collect()
}

/// Its gateways as addresses of the host's, each in the network that the card is in.
fn own_gateways(nic: &Nic) -> BTreeSet<Cidr> {
    let of = |gateway: &IpAddr| {
        nic.addresses.iter().find(|own| own.contains(*gateway)).map(|own| own.with(*gateway))
    };
    nic.gateways.iter().filter_map(of).collect()
}

fn image_ref(entry: &InstanceSpec) -> Result<ImageRef, Trouble> {
    let image = entry.image.as_ref().ok_or_else(|| invalid("image", "there is none"))?;
    let InstanceImage { url, sha256, .. } = image;
    let format = match image.format() {
        WireFormat::Qcow2 => ImageFormat::Qcow2,
        WireFormat::Raw => ImageFormat::Raw,
        WireFormat::Iso => ImageFormat::Iso,
        WireFormat::Unspecified => {
            return Err(invalid("image format", "this daemon does not know it: update it"));
        }
    };
    let digest = hex::decode(sha256).ok().and_then(|bytes| bytes.try_into().ok());
    let sha256 = digest.ok_or_else(|| invalid("image digest", "it is no SHA-256"))?;
    Ok(ImageRef { sha256, format, url: url.clone() })
}

fn nic(nic: &InstanceNic) -> Result<Nic, Trouble> {
    Ok(Nic {
        mac: parsed("MAC address", &nic.mac)?,
        bridge: parsed("bridge", &nic.bridge)?,
        addresses: all("address", &nic.addresses)?,
        gateways: all("gateway", &nic.gateways)?,
        nameservers: all("nameserver", &nic.nameservers)?,
    })
}

/// One for each of its cards.
fn guards(id: InstanceId, entry: &InstanceSpec) -> Result<Vec<Guard>, Trouble> {
    let policy = match entry.network_policy() {
        WirePolicy::Unspecified | WirePolicy::Egress => NetworkPolicy::Egress,
        WirePolicy::Private => NetworkPolicy::Private,
        WirePolicy::None => NetworkPolicy::Isolated,
    };
    let of_card = |(at, card): (usize, &InstanceNic)| {
        let Nic { mac, bridge, addresses, .. } = nic(card)?;
        let ssh_from_host_only = entry.ssh_from_host_only;
        let guard = Guard { tap: name::tap(id, at), bridge, mac, addresses, policy, ssh_from_host_only };
        match guard.is_expressible() {
            true => Ok(guard),
            false => Err(invalid(
                "network policy",
                "an instance without an address of its pool can have none but egress",
            )),
        }
    };
    entry.nics.iter().enumerate().map(of_card).collect()
}

/// The cards, when no other instance has a card of their addresses on their bridges. Of two the first entry has it, which is the
/// older one.
fn own_macs(
    id: InstanceId,
    guards: Vec<Guard>,
    owners: &mut BTreeMap<(Bridge, Mac), InstanceId>,
) -> Result<Vec<Guard>, Trouble> {
    for guard in &guards {
        let owner = *owners.entry((guard.bridge.clone(), guard.mac)).or_insert(id);
        if owner != id {
            let message =
                format!("instance {owner} of this host has a card with the MAC address {} too", guard.mac);
            return Err(Trouble { reason: "DuplicateMac", message, retryable: false });
        }
    }
    Ok(guards)
}

fn instance(entry: &InstanceSpec, image: Image) -> Result<Instance, Trouble> {
    let keys = entry.ssh_keys.iter().map(|key| AuthorizedKey::parse(key));
    Ok(Instance {
        id: parsed("instance id", &entry.instance_id)?,
        vcpus: entry.vcpus,
        memory_bytes: entry.memory_bytes,
        disk_bytes: entry.disk_bytes,
        image,
        nics: entry.nics.iter().map(nic).collect::<Result<_, _>>()?,
        hostname: parsed("host name", &entry.hostname)?,
        ssh_keys: keys.collect::<Result<_, _>>().map_err(|err| invalid("SSH key", err))?,
        placement: placement(entry)?,
        gpus: Vec::new(),
        disk_backed_bytes: entry.disk_backed_bytes,
    })
}

fn placement(entry: &InstanceSpec) -> Result<Placement, Trouble> {
    let Some(placement) = &entry.placement else { return Ok(Placement::default()) };
    let list = |what, text: &str| {
        // Longer than any list that the kernel writes.
        if text.len() > CPU_LIST_BYTES_MAX {
            return Err(invalid(what, format_args!("a list of {} bytes", text.len())));
        }
        Ok(parsed::<CpuList>(what, text)?.iter().collect::<Vec<u32>>())
    };
    Ok(Placement {
        cpus: list("CPUs", &placement.cpus)?,
        memory: MemoryPlace {
            mems: list("NUMA nodes", &placement.mems)?,
            hugepage_bytes: placement.hugepage_bytes,
        },
    })
}

fn held(domain: &Domain) -> Option<Held> {
    let power = match domain.state {
        DomainState::Incomplete => Power::Incomplete,
        DomainState::Stopped | DomainState::Crashed => Power::Stopped,
        DomainState::Running => Power::Running,
        DomainState::Paused => Power::Paused,
    };
    Some(Held { id: domain.instance?, power })
}

impl Hypervisor for Hosted {
    fn id(&self) -> &str {
        self.runtime.id()
    }

    fn hands_gpus(&self) -> bool {
        self.gpus.is_some()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Held>, Trouble>> {
        async move {
            let domains = self.runtime.list().await.map_err(trouble)?;
            Ok(domains.iter().filter_map(held).collect())
        }
        .boxed()
    }

    fn guard<'a>(&'a self, entries: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<Unguarded, Trouble>> {
        self.guard_entries(entries).boxed()
    }

    fn define<'a>(&'a self, entry: &'a InstanceSpec, told: Told<'a>) -> BoxFuture<'a, Result<(), Trouble>> {
        self.define_entry(entry, told).boxed()
    }

    fn start(&self, id: InstanceId, reserved_bytes: u64) -> BoxFuture<'_, Result<(), Trouble>> {
        self.start_instance(id, reserved_bytes).boxed()
    }

    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Stopping, Trouble>> {
        async move {
            match self.runtime.stop(id).await.map_err(trouble)? {
                Progress::Done => Ok(Stopping::Done),
                Progress::Waiting { .. } => Ok(Stopping::Waits),
            }
        }
        .boxed()
    }

    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), Trouble>> {
        async move { self.runtime.destroy(id).await.map_err(trouble) }.boxed()
    }

    fn reach(&self, id: InstanceId, door: Door) -> BoxFuture<'_, Result<Box<dyn ByteStream>, Trouble>> {
        async move {
            let stream: Box<dyn ByteStream> = match door {
                Door::Console => Box::new(self.runtime.console(id).await.map_err(trouble)?),
                Door::Port(port) => Box::new(self.dial(id, port).await?),
            };
            Ok(stream)
        }
        .boxed()
    }

    fn tidy<'a>(&'a self, entries: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<(), Trouble>> {
        async move {
            // An entry that cannot be read asks for no image that could be here.
            let wanted: Vec<ImageRef> = entries.iter().filter_map(|entry| image_ref(entry).ok()).collect();
            let based = self.runtime.bases().await.map_err(trouble)?;
            self.images.tidy(&wanted, &based).await.map_err(|err| Trouble {
                reason: "DiskTrouble",
                message: kit::chain(&err),
                retryable: true,
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
