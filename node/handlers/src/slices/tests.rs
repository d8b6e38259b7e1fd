//! One suite for both sides of the port. systemd's side runs over a folder and a stand-in for `systemctl` that makes
//! the cgroup files the real one would; the real one is tried where systemd runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hw::{CommandError, CommandOutput, Commands};
use kit::ManualClock;
use model::Timestamp;

use super::*;

fn allocation(number: u128) -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(number))
}

fn limits() -> SliceLimits {
    SliceLimits {
        cpu_millis: 2500,
        memory_bytes: 4 << 30,
        cpus: "0".parse().unwrap(),
        mems: "0".parse().unwrap(),
        hugepages_1gi: 2,
    }
}

/// What `systemctl` does to cgroups, as far as slices go.
struct StandIn {
    root: PathBuf,
    ran: Mutex<Vec<String>>,
}

impl StandIn {
    fn dir(&self, slice: &str) -> PathBuf {
        self.root.join("sys/fs/cgroup/bcd.slice/bcd-alloc.slice").join(slice)
    }

    fn pending(&self, slice: &str) -> PathBuf {
        self.root.join("run/systemd/system.control").join(slice)
    }

    fn realize(&self, slice: &str) {
        let (dir, properties) = (self.dir(slice), self.pending(slice));
        if !dir.is_dir() {
            return;
        }
        for property in std::fs::read_to_string(properties).unwrap_or_default().lines() {
            let (key, value) = property.split_once('=').unwrap();
            let max = |value: &str| if value == "infinity" { "max".to_owned() } else { value.to_owned() };
            let (file, value) = match key {
                "CPUQuota" => (
                    "cpu.max",
                    value.strip_suffix('%').map_or("max 100000".into(), |percent| {
                        format!("{} 100000", percent.parse::<u64>().unwrap() * 1000)
                    }),
                ),
                "MemoryMax" => ("memory.max", max(value)),
                "MemorySwapMax" => ("memory.swap.max", max(value)),
                "AllowedCPUs" => ("cpuset.cpus", value.to_owned()),
                "AllowedMemoryNodes" => ("cpuset.mems", value.to_owned()),
                "TasksMax" => ("pids.max", value.to_owned()),
                _ => continue,
            };
            std::fs::write(dir.join(file), format!("{value}\n")).unwrap();
        }
    }

    fn act(&self, args: &[&str]) {
        match args {
            ["set-property", "--runtime", slice, properties @ ..] => {
                let pending = self.pending(slice);
                std::fs::create_dir_all(pending.parent().unwrap()).unwrap();
                std::fs::write(pending, properties.join("\n")).unwrap();
                self.realize(slice);
            }
            ["start", slice] => {
                let dir = self.dir(slice);
                if !dir.is_dir() {
                    std::fs::create_dir_all(&dir).unwrap();
                    std::fs::write(dir.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
                    std::fs::write(dir.join("hugetlb.1GB.max"), "max\n").unwrap();
                }
                self.realize(slice);
            }
            ["stop", slice] => {
                let _ = std::fs::remove_dir_all(self.dir(slice));
            }
            ["revert", slice] => {
                let _ = std::fs::remove_file(self.pending(slice));
            }
            other => panic!("systemctl {other:?}"),
        }
    }
}

impl Commands for StandIn {
    fn run<'a>(
        &'a self,
        program: &'a str,
        args: &'a [&'a str],
    ) -> hw::BoxFuture<'a, Result<CommandOutput, CommandError>> {
        assert_eq!(program, "systemctl");
        self.ran.lock().unwrap().push(args.join(" "));
        self.act(args);
        Box::pin(async { Ok(CommandOutput::ok("")) })
    }
}

fn host(root: &Path) -> (Arc<StandIn>, SystemdSlices) {
    std::fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    std::fs::create_dir_all(root.join("sys/fs/cgroup")).unwrap();
    std::fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n")
        .unwrap();
    let stand_in = Arc::new(StandIn { root: root.into(), ran: Mutex::default() });
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    (stand_in.clone(), SystemdSlices::new(root, stand_in, clock))
}

/// What holds for every side of the port. `populate` starts or ends something in a slice.
async fn conforms(slices: &dyn Slices, limits: SliceLimits, populate: &dyn Fn(AllocationId, bool)) {
    let (one, two) = (allocation(1), allocation(2));
    slices.support().unwrap();
    assert_eq!(slices.list().await.unwrap(), []);
    assert!(!slices.in_force(one, &limits).await.unwrap());
    assert_eq!(slices.remove(one).await.unwrap(), Removal::Gone);

    slices.apply(one, &limits).await.unwrap();
    slices.apply(one, &limits).await.unwrap();
    slices.apply(two, &SliceLimits { memory_bytes: 1 << 30, ..SliceLimits::default() }).await.unwrap();
    assert_eq!(slices.list().await.unwrap(), [one, two]);
    assert!(slices.in_force(one, &limits).await.unwrap());

    let less = SliceLimits { cpu_millis: 0, hugepages_1gi: 0, ..limits.clone() };
    assert!(!slices.in_force(one, &less).await.unwrap());
    slices.apply(one, &less).await.unwrap();
    assert!(slices.in_force(one, &less).await.unwrap());

    populate(one, true);
    assert_eq!(slices.remove(one).await.unwrap(), Removal::InUse);
    assert!(slices.in_force(one, &less).await.unwrap());
    populate(one, false);
    assert_eq!(slices.remove(one).await.unwrap(), Removal::Gone);
    assert_eq!(slices.list().await.unwrap(), [two]);
}

#[tokio::test]
async fn the_fake_conforms() {
    let slices = FakeSlices::new();
    conforms(&slices, limits(), &|allocation, populated| slices.set_populated(allocation, populated)).await;
}

#[tokio::test]
async fn systemd_conforms_over_a_stand_in() {
    let root = tempfile::tempdir().unwrap();
    let (stand_in, slices) = host(root.path());
    let populate = |allocation, populated: bool| {
        let file = stand_in.dir(&name(allocation)).join("cgroup.events");
        std::fs::write(file, format!("populated {}\n", u8::from(populated))).unwrap();
    };
    conforms(&slices, limits(), &populate).await;
}

#[tokio::test]
async fn the_limits_are_set_before_the_slice_starts() {
    let root = tempfile::tempdir().unwrap();
    let (stand_in, slices) = host(root.path());
    let one = allocation(1);
    slices.apply(one, &limits()).await.unwrap();
    let slice = name(one);
    assert_eq!(
        *stand_in.ran.lock().unwrap(),
        [
            format!(
                "set-property --runtime {slice} CPUQuota=250% CPUWeight=250 MemoryMax=4294967296 MemorySwapMax=0 \
                 AllowedCPUs=0 AllowedMemoryNodes=0 TasksMax=65536"
            ),
            format!("start {slice}"),
        ]
    );
    let max = std::fs::read_to_string(stand_in.dir(&slice).join("hugetlb.1GB.max")).unwrap();
    assert_eq!(max, "2147483648");
}

#[tokio::test]
async fn a_limit_that_does_not_come_into_force_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    host(root.path());
    // systemd takes every property of a controller that is off, and the cgroup has no file for it.
    let deaf = StandIn { root: root.path().join("elsewhere"), ran: Mutex::default() };
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    let slices = SystemdSlices::new(root.path(), Arc::new(deaf), clock);
    let one = allocation(1);
    let limits = SliceLimits { memory_bytes: 1 << 30, ..SliceLimits::default() };
    let error = slices.apply(one, &limits).await.unwrap_err();
    assert!(error.to_string().contains("memory.max is not there"), "{error}");
}

#[tokio::test]
async fn a_host_without_cgroup_v2_says_why() {
    let root = tempfile::tempdir().unwrap();
    let (_, slices) = host(root.path());
    std::fs::write(root.path().join("sys/fs/cgroup/cgroup.controllers"), "hugetlb\n").unwrap();
    assert_eq!(slices.support().unwrap_err().why, "the cpu controller is not on cgroup v2");
    std::fs::remove_file(root.path().join("sys/fs/cgroup/cgroup.controllers")).unwrap();
    assert_eq!(slices.support().unwrap_err().why, "/sys/fs/cgroup is not cgroup v2");
    std::fs::remove_dir_all(root.path().join("run")).unwrap();
    assert_eq!(slices.support().unwrap_err().why, "systemd does not run here");
    assert!(matches!(slices.apply(allocation(1), &limits()).await, Err(SliceError::NoLimits(_))));
}

#[test]
fn a_slice_name_reads_back() {
    assert_eq!(allocation_of(&name(allocation(9))), Some(allocation(9)));
    for other in ["bcd-alloc-.slice", "bcd-alloc-x.slice", "user.slice", "bcd-alloc-alloc_1.slice"] {
        assert_eq!(allocation_of(other), None);
    }
}

/// The real systemd, where it runs and cgroup v2 has the controllers. Its two slices carry ids nobody else uses.
#[tokio::test]
async fn systemd_itself_conforms_where_it_runs() {
    let clock = Arc::new(kit::SystemClock::new());
    let slices = SystemdSlices::new("/", Arc::new(hw::HostCommands::new()), clock);
    if let Err(none) = slices.support() {
        eprintln!("skipped: {none}");
        return;
    }
    if !rustix::process::geteuid().is_root() || !slices.list().await.unwrap().is_empty() {
        eprintln!("skipped: not root, or this host has holds");
        return;
    }
    let workload: Mutex<Option<std::process::Child>> = Mutex::new(None);
    let populate = |allocation, populated: bool| {
        let mut workload = workload.lock().unwrap();
        if populated {
            let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let procs = format!("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice/{}/cgroup.procs", name(allocation));
            std::fs::write(procs, child.id().to_string()).unwrap();
            *workload = Some(child);
        } else if let Some(mut child) = workload.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    };
    // Not every CPU has pages of 1 GiB.
    let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-1048576kB").exists();
    let limits = SliceLimits { hugepages_1gi: if pages { 2 } else { 0 }, ..limits() };
    conforms(&slices, limits, &populate).await;
    assert_eq!(slices.remove(allocation(2)).await.unwrap(), Removal::Gone);
}
