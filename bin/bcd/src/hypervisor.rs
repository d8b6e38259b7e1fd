//! What runs instances on this host, if anything does.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::config::{InstancesAccel, InstancesConfig};
use agent::identity::FileIdentity;
use agent::link::ImageLink;
use handlers::images::{FromAddress, FromGateway, Guard, HostLookup, Sources};
use handlers::node::NodePorts;
use handlers::sections::instances::hosted::Hosted;
use handlers::sections::instances::port::Hypervisor;
use hw::{Commands, Hardware, HostCommands, HostHardware, InNetwork, Root};
use kit::{Clock, Supervisor, TaskKind, Waker};
use runtimes::accel::Accel;
use runtimes::admission::{FreePages, HostMemory};
use runtimes::firewall::{Changes, Firewall, Nft};
use runtimes::images::Images;
use runtimes::libvirt::{HostFacts, Options};
use runtimes::nat::NatBridge;
use runtimes::vfio::{Passthrough, Pci, SysfsPci, VFIO};
use runtimes::{Libvirt, canary};

const MEMINFO_BYTES_MAX: u64 = 64 * 1024;
const SYS: &str = "/sys";

/// Libvirt, where its tools are. `arrived` is woken when an image has come, or will not.
pub async fn of_host(
    data_dir: &Path,
    config: &InstancesConfig,
    link: Arc<dyn ImageLink>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
    arrived: Waker,
) -> anyhow::Result<Option<Arc<dyn Hypervisor>>> {
    let commands: Arc<dyn Commands> = Arc::new(HostCommands::new());
    if !on_path("virsh") || !on_path("qemu-img") {
        tracing::info!("this host runs no instances: virsh or qemu-img is not installed");
        return Ok(None);
    }
    let boot_id = HostHardware::new(Root::host(), commands.clone()).boot_id().await?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = canary::host_kernel(Path::new("/boot"), &release);
    let facts =
        HostFacts { boot_id: &boot_id, has_kvm: Path::new("/dev/kvm").exists(), kernel: kernel.as_deref() };
    let asked = match config.accel {
        InstancesAccel::Auto => Accel::Auto,
        InstancesAccel::Kvm => Accel::Kvm,
        InstancesAccel::Tcg => Accel::Tcg,
    };
    // The accelerator is chosen below.
    let mut options = Options::host(data_dir, runtimes::accel::Accelerator::Tcg);
    if let Some(dir) = &config.dir {
        (options.dir, options.reach_from) = (dir.clone(), dir.clone());
    }
    let instances_dir = options.dir.join("instances");
    let hardware = NodePorts::hardware_with_instances(commands.clone(), options.dir.clone());
    if let Some(uri) = &config.libvirt_uri {
        options.uri.clone_from(uri);
    }
    let images_dir = options.dir.join("images");
    let (runtime, choice) = Libvirt::open(options, asked, facts, commands.clone(), clock.clone()).await?;
    tracing::info!(accelerator = %choice, "this host runs instances");
    let pci = Arc::new(SysfsPci::at(Path::new(SYS)));
    let hands_gpus = has_iommu() && pci.has_driver(VFIO);
    // Also where it hands none now: what was handed goes back.
    let runtime = runtime.with_passthrough(Passthrough::new(pci, commands.clone(), clock.clone()));
    let identity = Arc::new(FileIdentity::new(data_dir));
    let guard = Guard::new(Arc::new(HostLookup), config.image_networks.clone());
    let sources = Sources {
        store: Arc::new(FromGateway::new(link, identity)),
        address: Arc::new(FromAddress::new(guard, None)),
    };
    let sources = Arc::new(sources);
    let images =
        Images::new(images_dir, sources, clock.clone(), supervisor.clone(), Arc::new(move || arrived.wake()));
    let images = images.beside(Box::new(move || promised(&instances_dir)));
    let dir = data_dir.join("firewall");
    let namespace = config.network_namespace.clone();
    let commands: Arc<dyn Commands> = match &namespace {
        Some(path) => Arc::new(InNetwork::new(commands, path)),
        None => commands,
    };
    let nat_bridge = config.nat_bridge.as_deref().map(str::parse).transpose()?;
    let nat =
        nat_bridge.map(|bridge| NatBridge::new(bridge, commands.clone(), dir.clone(), namespace.clone()));
    let kernel = Arc::new(Nft::new(commands, dir));
    let firewall = Arc::new(Firewall::new(kernel, clock));
    watch(firewall.clone(), namespace.clone(), &supervisor);
    let runtime = Arc::new(runtime);
    let hosted = Hosted::new(runtime, images, firewall, nat, Box::new(memory), namespace);
    let hosted = if hands_gpus { hosted.with_gpus_of(hardware) } else { hosted };
    Ok(Some(Arc::new(hosted)))
}

/// Whether the system's libvirt does.
pub async fn answers() -> bool {
    let virsh = ["--connect", runtimes::libvirt::SYSTEM_URI, "version"];
    on_path("virsh") && HostCommands::new().run("virsh", &virsh).await.is_ok_and(|said| said.success())
}

/// Looks after the rules for as long as the daemon runs.
fn watch(firewall: Arc<Firewall>, namespace: Option<PathBuf>, supervisor: &Supervisor) {
    supervisor.spawn(TaskKind::fatal("firewall_watch"), move |stop| async move {
        match Changes::open(namespace.as_deref()) {
            Ok(changes) => {
                stop.run_until_cancelled(firewall.watch(changes)).await;
            }
            Err(err) => {
                tracing::warn!(
                    err = kit::chain(&err),
                    "changes of instances' rules are looked for every few seconds"
                );
                stop.run_until_cancelled(firewall.watch_blindly()).await;
            }
        }
        Ok::<(), Infallible>(())
    });
}

/// Whether it is on: groups are the kernel's only then.
fn has_iommu() -> bool {
    let groups = std::fs::read_dir(Path::new(SYS).join("kernel/iommu_groups"));
    groups.is_ok_and(|mut groups| groups.next().is_some())
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir: PathBuf| dir.join(program)).any(|file| file.is_file())
}

fn memory() -> Option<HostMemory> {
    let bytes = kit::fs::read_bounded(Path::new("/proc/meminfo"), MEMINFO_BYTES_MAX).ok()?;
    let info = hw::proc::meminfo(&String::from_utf8_lossy(&bytes));
    let free_pages = hw::section::free_huge_pages(&Root::host());
    let free_pages = free_pages.into_iter().map(|pool| FreePages {
        numa_node: pool.numa_node,
        page_bytes: pool.page_bytes,
        pages: pool.pages,
    });
    let hugetlb_bytes = info.hugetlb.unwrap_or(0);
    Some(HostMemory { total_bytes: info.total?, hugetlb_bytes, free_pages: free_pages.collect() })
}

/// Where instances' files are.
pub fn dir(data_dir: &Path, config: &InstancesConfig) -> PathBuf {
    config.dir.clone().unwrap_or_else(|| Options::host(data_dir, runtimes::accel::Accelerator::Tcg).dir)
}

/// What cannot be looked at is not known to be little: nothing more is taken meanwhile.
fn promised(instances: &Path) -> u64 {
    runtimes::libvirt::promised(instances, None).unwrap_or_else(|err| {
        tracing::warn!(err = kit::chain(&err), "disks of instances cannot be looked at");
        u64::MAX
    })
}
