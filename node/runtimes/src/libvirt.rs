//! Virtual machines by libvirt and QEMU, reached through `virsh`.
//!
//! Below its folder each instance has one of its own, and what is in there says how far its definition got:
//!
//! ```text
//! instances/<id>/disk.qcow2    what differs from the image
//!                seed.iso      what the guest is told
//!                record        what the disk is based on
//!                domain.xml    the definition that libvirt took
//!                tty           the serial console, while it runs
//!                gpus          what it has of the host's devices, and how they were before
//! canary/                      the machine that shows whether KVM boots one
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use hw::Commands;
use kit::Clock;
use kit::fs::FsError;
use model::InstanceId;
use tokio::net::UnixStream;

use crate::accel::Accelerator;
use crate::admission::KEPT_BYTES_MIN;
use crate::disk;
use crate::instance::Instance;
use crate::name::{self, Mac};
use crate::record::{self, InstanceRecord};
use crate::runtime::{
    Console, Domain, DomainState, Progress, Reboot, Runtime, RuntimeError, SeedInput, Trouble, about,
};
use crate::seed;
use crate::vfio::{Passthrough, PciAddress};

mod files;
mod gpus;
mod inventory;
mod space;
mod trial;
mod virsh;
mod xml;

use files::{Files, image_of, path_text, record_of};
pub use gpus::{gpu_record, handed};
use inventory::Found;
pub use space::promised;
pub use trial::HostFacts;
use virsh::Virsh;
pub(crate) use virsh::said;
use xml::{Boot, Definition};

/// The hypervisor of the host.
pub const SYSTEM_URI: &str = "qemu:///system";
/// How long a guest may take to shut down before it is powered off.
pub const SHUTDOWN_WITHIN: Duration = Duration::from_secs(60);
/// A guest that boots does not hear the power button yet: it is pressed again.
const ASK_EVERY: Duration = Duration::from_secs(5);
const LOOK_IN: Duration = Duration::from_secs(1);
/// A definition is about 3 KiB; each card adds some hundred bytes.
const DEFINITION_BYTES_MAX: u64 = 64 * 1024;

/// How this host's libvirt is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where instances' files are; absolute and short enough for a socket's path below it. QEMU's own user must be able to
    /// reach it: see `reach_from`.
    pub dir: PathBuf,
    /// Every folder from here down to an instance's files lets others through, without letting them list it.
    pub reach_from: PathBuf,
    pub uri: String,
    pub accelerator: Accelerator,
    pub shutdown_within: Duration,
    /// Of the file system that instances are on, kept from their disks, where a twentieth of it is less.
    pub kept_bytes_min: u64,
}

impl Options {
    /// For this host's own libvirt, with everything below the daemon's data folder.
    pub fn host(data_dir: &Path, accelerator: Accelerator) -> Self {
        Self {
            dir: data_dir.join("libvirt"),
            reach_from: data_dir.to_owned(),
            uri: SYSTEM_URI.to_owned(),
            accelerator,
            shutdown_within: SHUTDOWN_WITHIN,
            kept_bytes_min: KEPT_BYTES_MIN,
        }
    }
}

/// When a guest was asked to shut down, first and last.
#[derive(Debug, Clone, Copy)]
struct Asked {
    first: Duration,
    last: Duration,
}

pub struct Libvirt {
    options: Options,
    commands: Arc<dyn Commands>,
    clock: Arc<dyn Clock>,
    virsh: Virsh,
    stopping: Mutex<BTreeMap<InstanceId, Asked>>,
    /// None on a host that hands no devices to guests.
    passthrough: Option<Passthrough>,
}

impl Libvirt {
    pub const ID: &str = "libvirt-kvm";

    pub fn new(options: Options, commands: Arc<dyn Commands>, clock: Arc<dyn Clock>) -> Self {
        let virsh = Virsh::new(commands.clone(), options.uri.clone());
        Self { options, commands, clock, virsh, stopping: Mutex::default(), passthrough: None }
    }

    /// Hands GPUs to its guests, and takes them back.
    pub fn with_passthrough(self, passthrough: Passthrough) -> Self {
        Self { passthrough: Some(passthrough), ..self }
    }

    fn instances(&self) -> PathBuf {
        self.options.dir.join("instances")
    }

    fn files(&self, id: InstanceId) -> Files {
        Files { dir: self.instances().join(id.to_string()) }
    }

    async fn find(&self, id: InstanceId) -> Result<Option<Found>, Trouble> {
        let found = inventory::look(&self.virsh, &self.instances()).await?;
        found.get(id).map_err(|name| Trouble::Foreign { name })
    }

    async fn define_instance(&self, instance: &Instance, seed: SeedInput<'_>) -> Result<(), Trouble> {
        instance.check()?;
        // What is refused leaves nothing behind.
        let devices = self.devices_of(instance)?;
        disk::check_size(&instance.image, instance.disk_bytes)?;
        let all = inventory::look(&self.virsh, &self.instances()).await?;
        let strangers = all.strangers();
        let found = all.get(instance.id).map_err(|name| Trouble::Foreign { name })?;
        let is_active = found.as_ref().is_some_and(|found| found.domain.state.is_active());
        if !is_active {
            self.check_macs(instance, strangers).await?;
        }
        let files = self.files(instance.id);
        files.socket()?;
        let has_seed = files.seed().is_file();
        if !has_seed && matches!(seed, SeedInput::Keep) {
            return Err(Trouble::NoSeed);
        }
        kit::fs::create_dir(&self.options.dir, 0o711)?;
        self.admit_disk(instance)?;
        kit::fs::create_dir(&files.dir, 0o711)?;
        self.let_through(&files.dir)?;
        if let Some(folder) =
            instance.image.path.parent().filter(|at| at.starts_with(&self.options.reach_from))
        {
            self.let_through(folder)?;
        }
        record::write(&files.record(), &record_of(instance))?;
        disk::ensure(&*self.commands, &files.disk(), &instance.image, instance.disk_bytes, is_active).await?;
        if let (false, SeedInput::UserData(user_data)) = (has_seed, seed) {
            kit::fs::write_atomic(&files.seed(), &seed::render(instance, user_data), 0o600)?;
        }
        let is_defined = found.is_some_and(|found| found.is_defined);
        self.define_domain(instance, &files, is_defined, &devices).await?;
        match is_active {
            true => self.grow_running(instance, &files).await,
            false => Ok(()),
        }
    }

    /// Two cards with one address on a bridge take each other's frames.
    async fn check_macs(&self, instance: &Instance, strangers: Vec<String>) -> Result<(), Trouble> {
        for name in strangers {
            let cards = match self.virsh.ok(&["domiflist", "--domain", &name]).await {
                Ok(cards) => cards,
                // It is gone since it was listed.
                Err(Trouble::Refused { .. }) => continue,
                Err(trouble) => return Err(trouble),
            };
            let has = |mac: &Mac| cards.split_whitespace().any(|word| word.parse() == Ok(*mac));
            if let Some(mac) = instance.nics.iter().map(|nic| nic.mac).find(has) {
                return Err(Trouble::MacTaken { mac, name });
            }
        }
        Ok(())
    }

    /// The file says what libvirt holds, so it changes after libvirt did.
    async fn define_domain(
        &self,
        instance: &Instance,
        files: &Files,
        is_defined: bool,
        devices: &[PciAddress],
    ) -> Result<(), Trouble> {
        let (disk, seed, console) = (files.disk(), files.seed(), files.console());
        let text = xml::render(&Definition {
            name: &name::domain(instance.id),
            uuid: instance.id.uuid(),
            accelerator: self.options.accelerator,
            vcpus: instance.vcpus,
            memory_bytes: instance.memory_bytes,
            boot: Boot::Disk { disk: &disk, image: &instance.image, seed: &seed },
            nics: &instance.nics,
            taps: (0..instance.nics.len()).map(|at| name::tap(instance.id, at)).collect(),
            console: &console,
            placement: &instance.placement,
            devices,
        });
        let held = kit::fs::read_if_present(&files.xml(), DEFINITION_BYTES_MAX)?;
        if is_defined && held.as_deref() == Some(text.as_bytes()) {
            return Ok(());
        }
        let new = files.dir.join("domain.new");
        kit::fs::write_atomic(&new, text.as_bytes(), 0o600)?;
        self.virsh.ok(&["define", "--file", path_text(&new)]).await?;
        std::fs::rename(&new, files.xml()).map_err(|source| FsError {
            doing: "rename over",
            path: files.xml(),
            source,
        })?;
        Ok(())
    }

    async fn grow_running(&self, instance: &Instance, files: &Files) -> Result<(), Trouble> {
        let has = disk::check_disk(&files.disk(), &instance.image)?.virtual_bytes;
        if has < instance.disk_bytes {
            let size = format!("{}B", instance.disk_bytes);
            self.virsh.ok(&["blockresize", &name::domain(instance.id), "vda", "--size", &size]).await?;
        }
        Ok(())
    }

    /// QEMU runs as a user of its own, and libvirt hands it files but no folders on the way to them.
    fn let_through(&self, to: &Path) -> Result<(), FsError> {
        let inside = |dir: &&Path| dir.starts_with(&self.options.reach_from);
        for dir in to.ancestors().take_while(inside) {
            let failed = |source| FsError { doing: "let others through", path: dir.to_owned(), source };
            let mode = std::fs::metadata(dir).map_err(failed)?.permissions().mode();
            if mode & 0o001 == 0 {
                std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode | 0o001))
                    .map_err(failed)?;
            }
        }
        Ok(())
    }

    async fn start_instance(&self, id: InstanceId) -> Result<(), Trouble> {
        let found = self.find(id).await?.filter(|found| found.is_defined).ok_or(Trouble::NotDefined)?;
        self.forget(id);
        let domain = name::domain(id);
        match found.domain.state {
            DomainState::Running => return Ok(()),
            DomainState::Paused => return self.virsh.ok(&["resume", &domain]).await.map(drop),
            DomainState::Incomplete => return Err(Trouble::NotDefined),
            DomainState::Stopped | DomainState::Crashed => {}
        }
        // Whoever ran it may have rewritten the disk's header.
        let record: InstanceRecord = record::read(&self.files(id).record())?.ok_or(Trouble::NotDefined)?;
        let image = image_of(&record)?;
        disk::check_image(&image)?;
        disk::check_disk(&self.files(id).disk(), &image)?;
        self.admit_started(id)?;
        self.take_gpus(id, &record.gpus).await?;
        let trouble = match self.virsh.ok(&["start", &domain]).await {
            Ok(_) => return Ok(()),
            // QEMU's own words, in the C locale: nothing else tells this failure from others.
            Err(Trouble::Refused { said }) if said.contains("Cannot allocate memory") => {
                Trouble::NoCapacity { said }
            }
            Err(trouble) => trouble,
        };
        // Who does not run has nothing of the host's. Whether it runs after all is looked at first.
        if !self.is_active(id).await? {
            self.give_back_gpus(id).await?;
        }
        Err(trouble)
    }

    async fn stop_instance(&self, id: InstanceId) -> Result<Progress, Trouble> {
        let found = self.find(id).await?;
        let domain = name::domain(id);
        let state = found.map(|found| found.domain.state);
        match state {
            Some(DomainState::Running | DomainState::Paused) => {}
            None | Some(DomainState::Incomplete | DomainState::Stopped | DomainState::Crashed) => {
                self.forget(id);
                return Ok(Progress::Done);
            }
        }
        let now = self.clock.monotonic();
        let asked = self.asked(id);
        if asked.is_some_and(|asked| now.saturating_sub(asked.first) >= self.options.shutdown_within) {
            self.power_off(id).await?;
            self.forget(id);
            return Ok(Progress::Done);
        }
        if asked.is_none_or(|asked| now.saturating_sub(asked.last) >= ASK_EVERY) {
            // Before it: a hypervisor that hangs has the guest powered off in time all the same.
            let first = asked.map_or(now, |asked| asked.first);
            self.locked().insert(id, Asked { first, last: now });
            if let Err(trouble) = self.ask_to_stop(&domain, state).await {
                return if self.is_active(id).await? { Err(trouble) } else { Ok(Progress::Done) };
            }
        }
        Ok(Progress::Waiting { look_in: LOOK_IN.min(self.options.shutdown_within) })
    }

    async fn ask_to_stop(&self, domain: &str, state: Option<DomainState>) -> Result<(), Trouble> {
        if state == Some(DomainState::Paused) {
            // A paused guest hears nothing.
            self.virsh.ok(&["resume", domain]).await?;
        }
        self.virsh.ok(&["shutdown", domain, "--mode", "acpi"]).await.map(drop)
    }

    async fn is_active(&self, id: InstanceId) -> Result<bool, Trouble> {
        Ok(self.find(id).await?.is_some_and(|found| found.domain.state.is_active()))
    }

    /// A guest may have ended by itself since it was looked at.
    async fn power_off(&self, id: InstanceId) -> Result<(), Trouble> {
        match self.virsh.ok(&["destroy", &name::domain(id)]).await {
            Err(trouble) if self.is_active(id).await? => Err(trouble),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn reboot_instance(&self, id: InstanceId, how: Reboot) -> Result<(), Trouble> {
        let found = self.find(id).await?.ok_or(Trouble::NotDefined)?;
        if found.domain.state != DomainState::Running {
            return Err(Trouble::NotRunning);
        }
        let domain = name::domain(id);
        let words: &[&str] = match how {
            Reboot::Graceful => &["reboot", &domain, "--mode", "acpi"],
            Reboot::Hard => &["reset", &domain],
        };
        self.virsh.ok(words).await.map(drop)
    }

    async fn destroy_instance(&self, id: InstanceId) -> Result<(), Trouble> {
        let Some(found) = self.find(id).await? else {
            self.forget(id);
            return Ok(());
        };
        let domain = name::domain(id);
        if found.domain.state.is_active() {
            self.power_off(id).await?;
        }
        if found.is_defined {
            self.virsh
                .ok(&["undefine", &domain, "--managed-save", "--snapshots-metadata", "--nvram"])
                .await?;
        }
        self.forget(id);
        self.give_back_gpus(id).await?;
        let dir = self.files(id).dir;
        match tokio::fs::remove_dir_all(&dir).await {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(FsError { doing: "remove folder", path: dir, source: err }.into())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn open_console(&self, id: InstanceId) -> Result<Box<dyn Console>, Trouble> {
        let found = self.find(id).await?.ok_or(Trouble::NotDefined)?;
        if !found.domain.state.is_active() {
            return Err(Trouble::NotRunning);
        }
        let path = self.files(id).console();
        let stream = UnixStream::connect(&path).await.map_err(|source| FsError {
            doing: "connect to console",
            path,
            source,
        })?;
        Ok(Box::new(stream))
    }

    /// A record is written before the disk that it is about.
    fn images_of_records(&self) -> Result<BTreeSet<PathBuf>, Trouble> {
        let mut images = BTreeSet::new();
        for id in inventory::folders(&self.instances())? {
            if let Some(record) = record::read::<InstanceRecord>(&self.files(id).record())? {
                images.insert(PathBuf::from(record.image_path));
            }
        }
        Ok(images)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, BTreeMap<InstanceId, Asked>> {
        self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self, id: InstanceId) -> Option<Asked> {
        self.locked().get(&id).copied()
    }

    fn forget(&self, id: InstanceId) {
        self.locked().remove(&id);
    }
}

impl Runtime for Libvirt {
    fn id(&self) -> &'static str {
        Self::ID
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Domain>, RuntimeError>> {
        Box::pin(async move {
            let found = inventory::look(&self.virsh, &self.instances()).await.map_err(RuntimeError::List)?;
            let mut domains = found.domains();
            for domain in &mut domains {
                let Some(id) = domain.instance else { continue };
                // One that cannot be read is taken to be in normal pages, which are more.
                let record = record::read::<InstanceRecord>(&self.files(id).record()).ok().flatten();
                domain.place = record.map(|record| record.place()).unwrap_or_default();
            }
            Ok(domains)
        })
    }

    fn observe(&self, id: InstanceId) -> BoxFuture<'_, Result<Option<Domain>, RuntimeError>> {
        Box::pin(async move {
            let found = about("look at", id, self.find(id).await)?;
            Ok(found.map(|found| found.domain))
        })
    }

    fn define<'a>(
        &'a self,
        instance: &'a Instance,
        seed: SeedInput<'a>,
    ) -> BoxFuture<'a, Result<(), RuntimeError>> {
        Box::pin(async move { about("define", instance.id, self.define_instance(instance, seed).await) })
    }

    fn back(&self, id: InstanceId, disk_bytes: u64) -> Result<(), RuntimeError> {
        about("keep room for the disk of", id, self.back_disk(id, disk_bytes))
    }

    fn start(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move { about("start", id, self.start_instance(id).await) })
    }

    fn stop(&self, id: InstanceId) -> BoxFuture<'_, Result<Progress, RuntimeError>> {
        Box::pin(async move { about("stop", id, self.stop_instance(id).await) })
    }

    fn reboot(&self, id: InstanceId, how: Reboot) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move { about("reboot", id, self.reboot_instance(id, how).await) })
    }

    fn destroy(&self, id: InstanceId) -> BoxFuture<'_, Result<(), RuntimeError>> {
        Box::pin(async move { about("destroy", id, self.destroy_instance(id).await) })
    }

    fn bases(&self) -> BoxFuture<'_, Result<BTreeSet<PathBuf>, RuntimeError>> {
        Box::pin(async move { self.images_of_records().map_err(RuntimeError::Bases) })
    }

    fn console(&self, id: InstanceId) -> BoxFuture<'_, Result<Box<dyn Console>, RuntimeError>> {
        Box::pin(async move { about("open the console of", id, self.open_console(id).await) })
    }
}

#[cfg(test)]
mod tests;
