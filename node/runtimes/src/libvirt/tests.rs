//! Over a real libvirtd and a real guest.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use guests::{Libvirtd, Tiny};
use hw::{CommandError, CommandOutput, HostCommands};
use kit::SystemClock;
use tempfile::TempDir;

use super::*;
use crate::accel::{CANARY_WITHIN, Tried};
use crate::conformance::{self, Bench, SSH_KEY, USER_DATA, sample};
use crate::instance::{Image, ImageFormat, MemoryPlace, Placement};
use crate::seed::UserData;
use crate::vfio::fake::FakePci;
use crate::vfio::{self, Passthrough, PciAddress};

mod guest;
mod shared;

struct Host {
    libvirtd: Libvirtd,
    tiny: Tiny,
    dir: TempDir,
    runtime: Libvirt,
}

impl Host {
    fn start() -> Self {
        let tiny = Tiny::built().expect("the tiny image can be built");
        let libvirtd = Libvirtd::start().expect("libvirtd starts");
        let dir = tempfile::Builder::new().prefix("bc-rt-").tempdir().expect("a folder");
        let runtime = runtime(&libvirtd, dir.path(), Arc::new(HostCommands::new()));
        std::fs::create_dir_all(dir.path().join("images")).expect("a folder");
        std::fs::copy(tiny.disk(), dir.path().join("images/tiny.qcow2")).expect("a copy");
        Self { libvirtd, tiny, dir, runtime }
    }

    fn tiny_image(&self) -> Image {
        Image { path: self.dir.path().join("images/tiny.qcow2"), format: ImageFormat::Qcow2 }
    }

    /// Everything that instances leave on a host.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let domains = self.libvirtd.virsh_ok(&["list", "--all", "--name"]).expect("libvirtd answers");
        left.extend(domains.lines().filter(|name| !name.is_empty()).map(|name| format!("domain {name}")));
        let links = self.libvirtd.links().expect("its links can be listed");
        left.extend(links.into_iter().filter(|link| link != "lo" && link != Libvirtd::BRIDGE));
        left.extend(
            self.libvirtd
                .hypervisors()
                .expect("processes can be listed")
                .into_iter()
                .filter(|line| line.contains("bc-")),
        );
        for folder in ["instances", "canary"] {
            let entries = std::fs::read_dir(self.runtime.options.dir.join(folder)).into_iter().flatten();
            left.extend(entries.flatten().map(|entry| entry.path().display().to_string()));
        }
        left
    }
}

fn runtime(libvirtd: &Libvirtd, dir: &Path, commands: Arc<dyn Commands>) -> Libvirt {
    let options = Options {
        dir: dir.join("libvirt"),
        reach_from: dir.to_owned(),
        uri: libvirtd.uri(),
        accelerator: Accelerator::Tcg,
        shutdown_within: SHUTDOWN_WITHIN,
        kept_bytes_min: 0,
    };
    Libvirt::new(options, commands, Arc::new(SystemClock::new()))
}

impl Bench for Host {
    fn runtime(&self) -> &dyn Runtime {
        &self.runtime
    }

    fn image(&self) -> Image {
        self.tiny_image()
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A guest that answers has read its seed, and heard everything that is in it.
    fn wait_booted(&self, id: InstanceId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let owner = std::fs::metadata(self.tiny_image().path).expect("the image").uid();
            assert_eq!(owner, 0, "QEMU's user became the owner of an image that instances share");
            let script = "hostname; cat /seed/meta-data /seed/user-data /.ssh/authorized_keys /etc/resolv.conf; \
                          ip -o addr show; ip route";
            let started = Instant::now();
            let said = guest::ask(&self.runtime, id, script).await;
            eprintln!("the guest answered after {:.1} s", started.elapsed().as_secs_f64());
            let instance = sample(1);
            assert_eq!(instance.id, id);
            let address = instance.nics[0].addresses[0].to_string();
            for expected in [
                "tiny-1",
                &format!("instance-id: {id}"),
                USER_DATA.trim_end(),
                SSH_KEY,
                "nameserver 10.88.7.1",
                &format!("inet {address}"),
                "default via 10.88.7.1",
            ] {
                assert!(said.contains(expected), "no {expected:?} in what the guest says:\n{said}");
            }
        })
    }

    fn add_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        let path = self.dir.path().join("stranger.xml");
        let text = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64'>hvm</type></os></domain>"
        );
        std::fs::write(&path, text).expect("a file");
        self.libvirtd.virsh_ok(&["define", path_text(&path)]).expect("it can be defined");
        Box::pin(std::future::ready(()))
    }

    fn remove_stranger<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        self.libvirtd.virsh_ok(&["undefine", name]).expect("it can be removed");
        Box::pin(std::future::ready(()))
    }

    fn wait(&self, look_in: Duration) -> BoxFuture<'_, ()> {
        self.runtime.clock.sleep(look_in.min(Duration::from_millis(200)))
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(std::future::ready(self.left()))
    }
}

#[tokio::test]
async fn a_real_libvirt_conforms() {
    let host = Host::start();
    conformance::conforms(&host).await;
}

#[tokio::test]
async fn a_kernel_reaches_userspace_or_is_said_not_to() {
    let host = Host::start();
    let emulated = host.runtime.try_kernel(&host.tiny.kernel(), Accelerator::Tcg, CANARY_WITHIN).await;
    eprintln!("emulated: {emulated:?}");
    assert!(matches!(emulated, Tried::Booted { .. }), "{emulated:?}");
    // Whether KVM boots one depends on the machine that the tests run on; that it is found out does not.
    let virtualized = host.runtime.try_kernel(&host.tiny.kernel(), Accelerator::Kvm, CANARY_WITHIN).await;
    eprintln!("with KVM: {virtualized:?}");
    assert!(!matches!(virtualized, Tried::NotTried { .. }), "{virtualized:?}");
    let missing = host.runtime.try_kernel(Path::new("/nonexistent"), Accelerator::Tcg, CANARY_WITHIN).await;
    assert!(matches!(missing, Tried::NotTried { .. }), "{missing:?}");
    let speechless = host.runtime.try_kernel(&host.tiny.disk(), Accelerator::Tcg, CANARY_WITHIN).await;
    assert!(matches!(speechless, Tried::DidNotBoot { .. }), "{speechless:?}");
    assert_eq!(host.left(), Vec::<String>::new());
}

/// The host's programs, until one of them is not run any more: as when the daemon is killed there.
struct CutShort {
    programs: HostCommands,
    left: AtomicUsize,
}

impl Commands for CutShort {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> hw::BoxFuture<'a, Result<CommandOutput, CommandError>> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => self.programs.run(program, args),
            Err(_) => Box::pin(std::future::ready(Err(CommandError::NotFound { program: program.into() }))),
        }
    }
}

#[tokio::test]
async fn a_define_that_is_cut_short_can_be_completed_and_removed() {
    let host = Host::start();
    let instance = Instance { image: host.tiny_image(), ..sample(3) };
    let user_data = UserData::none();
    let seed = SeedInput::UserData(&user_data);
    let mut cuts = 0;
    loop {
        let programs = CutShort { programs: HostCommands::new(), left: AtomicUsize::new(cuts) };
        let cut = runtime(&host.libvirtd, host.dir.path(), Arc::new(programs));
        let defined = Runtime::define(&cut, &instance, seed).await;
        let seen = host.runtime.observe(instance.id).await.expect("it can be looked at");
        if defined.is_ok() {
            assert_eq!(seen.map(|domain| domain.state), Some(DomainState::Stopped));
            break;
        }
        assert!(seen.is_none_or(|domain| domain.state == DomainState::Incomplete), "after {cuts} programs");
        // Every other time it is removed instead of completed.
        if cuts % 2 == 0 {
            host.runtime.destroy(instance.id).await.expect("it can be removed");
            assert_eq!(host.left(), Vec::<String>::new(), "after {cuts} programs");
        }
        cuts += 1;
    }
    assert!(cuts >= 4, "two programs look, one makes the disk, one defines: {cuts}");
    host.runtime.destroy(instance.id).await.expect("it can be removed");
    assert_eq!(host.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_disk_that_its_guest_rewrote_does_not_start() {
    let host = Host::start();
    let instance = Instance { image: host.tiny_image(), ..sample(4) };
    let user_data = UserData::none();
    host.runtime.define(&instance, SeedInput::UserData(&user_data)).await.expect("it can be defined");
    let disk = host.runtime.files(instance.id).disk();
    let args = ["rebase", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/hostname", path_text(&disk)];
    let rebased = HostCommands::new().run("qemu-img", &args).await.expect("qemu-img is installed");
    assert!(rebased.success(), "{rebased:?}");
    let refused = host.runtime.start(instance.id).await.expect_err("it names a file of the host's");
    assert!(!refused.trouble().retryable(), "{refused:?}");
    assert_eq!(host.libvirtd.hypervisors().expect("processes can be listed"), Vec::<String>::new());
    host.runtime.destroy(instance.id).await.expect("it can be removed");
    assert_eq!(host.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_guest_runs_on_the_cpus_that_it_is_given() {
    let host = Host::start();
    let place = |cpus: &[u32]| Placement {
        cpus: cpus.to_vec(),
        memory: MemoryPlace { mems: vec![0], hugepage_bytes: 0 },
    };
    let instance = |number, vcpus, cpus: &[u32]| Instance {
        image: host.tiny_image(),
        vcpus,
        placement: place(cpus),
        ..sample(number)
    };
    let user_data = UserData::none();
    let pins = |id| {
        let domain = name::domain(id);
        let said = host.libvirtd.virsh_ok(&["vcpupin", &domain]).expect("it tells");
        let of = |line: &str| Some(line.split_once(char::is_whitespace)?.1.trim().to_owned());
        said.lines().filter_map(|line| of(line.trim_start())).collect::<Vec<_>>().join(" ")
    };
    // One vCPU for the last of two CPUs; and one that may be on both.
    for (number, vcpus, cpus, shown) in [(5, 1, &[1][..], "1"), (6, 1, &[0, 1][..], "0-1")] {
        let instance = instance(number, vcpus, cpus);
        host.runtime.define(&instance, SeedInput::UserData(&user_data)).await.expect("it can be defined");
        host.runtime.start(instance.id).await.expect("it can be started");
        let said = pins(instance.id);
        assert!(said.ends_with(shown), "{said}");
        let domain = name::domain(instance.id);
        let memory = host.libvirtd.virsh_ok(&["numatune", &domain]).expect("it tells");
        assert!(memory.contains("strict") && memory.contains("numa_nodeset"), "{memory}");
        host.runtime.destroy(instance.id).await.expect("it can be removed");
    }
    // What the host does not have is refused where it starts, and huge pages are understood.
    let paged =
        Placement { cpus: vec![4000], memory: MemoryPlace { mems: Vec::new(), hugepage_bytes: 2 << 20 } };
    let instance = Instance { placement: paged, ..instance(7, 1, &[0]) };
    host.runtime.define(&instance, SeedInput::UserData(&user_data)).await.expect("it can be defined");
    let listed = host.runtime.list().await.expect("it can be listed");
    assert_eq!(listed[0].place.hugepage_bytes, 2 << 20);
    let refused = host.runtime.start(instance.id).await.expect_err("there is no such CPU");
    assert_eq!(refused.trouble().reason(), "RuntimeRefused", "{refused:?}");
    host.runtime.destroy(instance.id).await.expect("it can be removed");
    assert_eq!(host.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_card_whose_address_a_strangers_domain_has_waits_until_that_is_gone() {
    let host = Host::start();
    let instance = Instance { image: host.tiny_image(), ..sample(5) };
    let (mac, bridge) = (instance.nics[0].mac, Libvirtd::BRIDGE);
    let path = host.dir.path().join("stranger.xml");
    let text = format!(
        "<domain type='qemu'><name>copied</name><memory unit='MiB'>64</memory>\
         <os><type arch='x86_64'>hvm</type></os><devices><interface type='bridge'>\
         <mac address='{mac}'/><source bridge='{bridge}'/></interface></devices></domain>"
    );
    std::fs::write(&path, text).expect("a file");
    host.libvirtd.virsh_ok(&["define", path_text(&path)]).expect("it can be defined");
    let user_data = UserData::none();
    let seed = SeedInput::UserData(&user_data);
    let taken = host.runtime.define(&instance, seed).await.expect_err("its address is taken");
    assert_eq!((taken.trouble().reason(), taken.trouble().retryable()), ("DuplicateMac", true));
    let said = kit::chain(&taken);
    assert!(said.contains("\"copied\"") && said.contains(&mac.to_string()), "{said}");
    assert_eq!(host.runtime.observe(instance.id).await.expect("it can be looked at"), None);
    host.libvirtd.virsh_ok(&["undefine", "copied"]).expect("it can be removed");
    host.runtime.define(&instance, seed).await.expect("nobody has its address any more");
    host.runtime.destroy(instance.id).await.expect("it can be removed");
    assert_eq!(host.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_guest_that_does_not_start_has_none_of_the_hosts_devices() {
    let host = Host::start();
    // One that is in no machine of today's: the kernel's files have nothing of it, so QEMU does not start.
    let address: PciAddress = "ffff:ff:1f.0".parse().expect("an address");
    let pci = Arc::new(FakePci::with_drivers(&["nvidia", vfio::VFIO]));
    pci.add(&address, 0x03_02_00, Some(1), Some("nvidia"));
    let before = pci.bindings();
    let commands: Arc<dyn Commands> = Arc::new(HostCommands::new());
    let passthrough = Passthrough::new(pci.clone(), commands.clone(), Arc::new(SystemClock::new()));
    let hands = runtime(&host.libvirtd, host.dir.path(), commands).with_passthrough(passthrough);
    let gpu = vfio::Gpu { uuid: "GPU-a".into(), address, persistence: false, facts: "{}".into() };
    let instance = Instance { image: host.tiny_image(), gpus: vec![gpu], ..sample(8) };
    let user_data = UserData::none();
    let seed = SeedInput::UserData(&user_data);
    let refused = host.runtime.define(&instance, seed).await.expect_err("this one hands over nothing");
    assert_eq!(refused.trouble().reason(), "NoGpuPassthrough");
    assert_eq!(host.left(), Vec::<String>::new());
    hands.define(&instance, seed).await.expect("libvirt takes it");
    let known = host.libvirtd.virsh_ok(&["dumpxml", &name::domain(instance.id)]).expect("it tells");
    assert!(known.contains("<hostdev mode='subsystem' type='pci' managed='no'>"), "{known}");
    assert!(known.contains("domain='0xffff' bus='0xff' slot='0x1f' function='0x0'"), "{known}");
    assert_eq!(pci.bindings(), before, "until it starts it has nothing");
    let instances = hands.options.dir.join("instances");
    let refused = hands.start(instance.id).await.expect_err("there is no such device");
    assert_eq!(refused.trouble().reason(), "RuntimeRefused", "{refused:?}");
    assert!(pci.changes() > 3, "it was taken before");
    assert_eq!((pci.bindings(), handed(&instances).expect("it is told")), (before.clone(), Vec::new()));
    // Taken by a daemon that died before it started: whoever destroys it gives back.
    hands.take_gpus(instance.id, &instance.gpus).await.expect("it can be had");
    assert_eq!(handed(&instances).expect("it is told"), ["{}"]);
    hands.destroy(instance.id).await.expect("it can be removed");
    assert_eq!(pci.bindings(), before);
    assert_eq!(host.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_hypervisor_that_does_not_answer_is_not_an_empty_host() {
    let dir = TempDir::new().expect("a folder");
    let options = Options {
        dir: dir.path().join("libvirt"),
        reach_from: dir.path().to_owned(),
        uri: format!("qemu:///system?socket={}", dir.path().join("nobody").display()),
        accelerator: Accelerator::Tcg,
        shutdown_within: SHUTDOWN_WITHIN,
        kept_bytes_min: 0,
    };
    let absent = Libvirt::new(options, Arc::new(HostCommands::new()), Arc::new(SystemClock::new()));
    let refused = absent.list().await.expect_err("nobody answers");
    assert!(refused.trouble().retryable(), "{refused:?}");
    assert!(absent.observe(sample(1).id).await.is_err());
    assert!(absent.destroy(sample(1).id).await.is_err());
}
