//! Slices by systemd on cgroup v2.
//!
//! systemd needs no unit file for a slice: properties set at run time are drop-ins under `/run`, which a reboot drops,
//! and a start makes the cgroup with them in force. It knows nothing of huge pages, so that one limit is written into
//! the slice's own cgroup; systemd leaves controllers that it does not know alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hw::{CommandOutput, Commands};
use kit::Clock;
use model::AllocationId;

use super::{NoLimits, Removal, SliceError, SliceLimits, Slices, TASKS_MAX, allocation_of, name};

const CGROUPS: &str = "sys/fs/cgroup";
const PARENT: &str = "bcd.slice/bcd-alloc.slice";
/// systemd's default, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// systemd sets limits from its event loop, a moment after it answered.
const SETTLE_TRIES: u32 = 40;
const SETTLE_PERIOD: Duration = Duration::from_millis(50);

pub struct SystemdSlices {
    /// `/` on the host.
    root: PathBuf,
    commands: Arc<dyn Commands>,
    clock: Arc<dyn Clock>,
}

impl SystemdSlices {
    pub fn new(root: impl Into<PathBuf>, commands: Arc<dyn Commands>, clock: Arc<dyn Clock>) -> Self {
        Self { root: root.into(), commands, clock }
    }

    fn cgroups(&self) -> PathBuf {
        self.root.join(CGROUPS)
    }

    fn dir(&self, allocation: AllocationId) -> PathBuf {
        self.cgroups().join(PARENT).join(name(allocation))
    }

    async fn systemctl(
        &self,
        doing: &'static str,
        allocation: AllocationId,
        args: &[&str],
    ) -> Result<(), SliceError> {
        let slice = name(allocation);
        match self.commands.run("systemctl", args).await {
            Ok(output) if output.success() => Ok(()),
            Ok(output) => Err(SliceError::Refused { doing, slice, why: said(&output) }),
            Err(source) => Err(SliceError::Command { doing, slice, source }),
        }
    }

    /// Turns huge page accounting on down to the slice and writes its limit. Idempotent.
    fn limit_huge_pages(&self, allocation: AllocationId, pages: u64) -> Result<(), SliceError> {
        const DOING: &str = "limit the huge pages of";
        let slice = || name(allocation);
        let io = |source| SliceError::Io { doing: DOING, slice: slice(), source };
        let dir = self.dir(allocation);
        let file = dir.join("hugetlb.1GB.max");
        if !file.exists() {
            if pages == 0 {
                return Ok(());
            }
            let above = [self.cgroups(), self.cgroups().join("bcd.slice"), self.cgroups().join(PARENT)];
            for dir in above {
                write(&dir.join("cgroup.subtree_control"), "+hugetlb").map_err(io)?;
            }
            if !file.exists() {
                let why = "the kernel counts no pages of 1 GiB here".into();
                return Err(SliceError::Refused { doing: DOING, slice: slice(), why });
            }
        }
        write(&file, &huge_page_limit(pages)).map_err(io)
    }

    /// The first limit that is not in force, in words.
    fn amiss(&self, allocation: AllocationId, limits: &SliceLimits) -> Option<String> {
        let dir = self.dir(allocation);
        expected(limits).into_iter().find_map(|(file, wanted)| {
            let found = read(&dir.join(file)).ok();
            match (&found, wanted) {
                (None, Wanted::UnlimitedOrAbsent(_)) => None,
                (Some(found), Wanted::UnlimitedOrAbsent(text) | Wanted::Exactly(text)) if *found == text => {
                    None
                }
                (Some(found), Wanted::AtMostAPageBelow(bytes)) if close_below(found, bytes) => None,
                (Some(found), _) => Some(format!("{file} is {found:?}")),
                (None, _) => Some(format!("{file} is not there: its controller is off")),
            }
        })
    }

    fn is_populated(&self, allocation: AllocationId) -> Result<bool, SliceError> {
        let file = self.dir(allocation).join("cgroup.events");
        let io = |source| SliceError::Io { doing: "look at", slice: name(allocation), source };
        let text = read(&file).map_err(io)?;
        // Anything but a clear no keeps the slice.
        Ok(!text.lines().any(|line| line.trim() == "populated 0"))
    }
}

enum Wanted {
    Exactly(String),
    /// The kernel rounds bytes down to pages.
    AtMostAPageBelow(u64),
    /// No limit was asked for, so a controller that is off is as good.
    UnlimitedOrAbsent(String),
}

fn expected(limits: &SliceLimits) -> Vec<(&'static str, Wanted)> {
    let unlimited = |text: &str| Wanted::UnlimitedOrAbsent(text.to_owned());
    let cpu = match quota_percent(limits.cpu_millis) {
        None => unlimited(&format!("max {CPU_PERIOD_US}")),
        Some(percent) => {
            Wanted::Exactly(format!("{} {CPU_PERIOD_US}", percent.saturating_mul(CPU_PERIOD_US) / 100))
        }
    };
    let (memory, swap) = match limits.memory_bytes {
        0 => (unlimited("max"), unlimited("max")),
        bytes => (Wanted::AtMostAPageBelow(bytes), unlimited("0")),
    };
    let list = |list: &wire::inventory::CpuList| {
        if list.is_empty() { unlimited("") } else { Wanted::Exactly(list.to_string()) }
    };
    let pages = match limits.hugepages_1gi {
        0 => unlimited("max"),
        pages => Wanted::Exactly(huge_page_limit(pages)),
    };
    vec![
        ("cpu.max", cpu),
        ("memory.max", memory),
        ("memory.swap.max", swap),
        ("cpuset.cpus", list(&limits.cpus)),
        ("cpuset.mems", list(&limits.mems)),
        ("pids.max", Wanted::Exactly(TASKS_MAX.to_string())),
        ("hugetlb.1GB.max", pages),
    ]
}

/// Every property each time, so that one no longer asked for is taken back.
fn properties(limits: &SliceLimits) -> Vec<String> {
    let percent = quota_percent(limits.cpu_millis);
    let (memory, swap) = match limits.memory_bytes {
        0 => ("infinity".to_owned(), "infinity"),
        bytes => (bytes.to_string(), "0"),
    };
    vec![
        format!("CPUQuota={}", percent.map(|percent| format!("{percent}%")).unwrap_or_default()),
        // Shares in proportion to what was booked, for when the host is busy.
        format!(
            "CPUWeight={}",
            percent.map(|percent| percent.clamp(1, 10_000).to_string()).unwrap_or_default()
        ),
        format!("MemoryMax={memory}"),
        format!("MemorySwapMax={swap}"),
        format!("AllowedCPUs={}", limits.cpus),
        format!("AllowedMemoryNodes={}", limits.mems),
        format!("TasksMax={TASKS_MAX}"),
    ]
}

/// Whole percent of one CPU, rounded up; none for no limit.
fn quota_percent(cpu_millis: u64) -> Option<u64> {
    (cpu_millis > 0).then(|| cpu_millis.div_ceil(10))
}

fn huge_page_limit(pages: u64) -> String {
    if pages == 0 { "max".into() } else { pages.saturating_mul(1 << 30).to_string() }
}

fn close_below(found: &str, bytes: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    found.parse::<u64>().is_ok_and(|found| found <= bytes && bytes - found < page)
}

fn read(path: &Path) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

/// cgroupfs takes a value in one write, and makes no files.
fn write(path: &Path, value: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

fn said(output: &CommandOutput) -> String {
    const SHOWN_MAX: usize = 300;
    let text = String::from_utf8_lossy(&output.stderr);
    let line: String =
        text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN_MAX).collect();
    if line.is_empty() { "systemctl refused without a word".into() } else { line }
}

impl Slices for SystemdSlices {
    fn support(&self) -> Result<(), NoLimits> {
        let no = |why: &str| Err(NoLimits { why: why.into() });
        if !self.root.join("run/systemd/system").is_dir() {
            return no("systemd does not run here");
        }
        let Ok(controllers) = read(&self.cgroups().join("cgroup.controllers")) else {
            return no("/sys/fs/cgroup is not cgroup v2");
        };
        for wanted in ["cpu", "memory", "pids"] {
            if !controllers.split_whitespace().any(|controller| controller == wanted) {
                return no(&format!("the {wanted} controller is not on cgroup v2"));
            }
        }
        Ok(())
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<AllocationId>, SliceError>> {
        Box::pin(async move {
            let io = |source| SliceError::Io { doing: "list", slice: "bcd-alloc.slice".into(), source };
            let entries = match std::fs::read_dir(self.cgroups().join(PARENT)) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries.map_err(io)?,
            };
            let mut found = Vec::new();
            for entry in entries {
                let name = entry.map_err(io)?.file_name();
                found.extend(name.to_str().and_then(allocation_of));
            }
            found.sort_unstable();
            Ok(found)
        })
    }

    fn in_force<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<bool, SliceError>> {
        Box::pin(async move {
            self.support()?;
            Ok(self.dir(allocation).is_dir() && self.amiss(allocation, limits).is_none())
        })
    }

    fn apply<'a>(
        &'a self,
        allocation: AllocationId,
        limits: &'a SliceLimits,
    ) -> BoxFuture<'a, Result<(), SliceError>> {
        Box::pin(async move {
            const DOING: &str = "set up";
            self.support()?;
            let slice = name(allocation);
            let properties = properties(limits);
            let mut args = vec!["set-property", "--runtime", slice.as_str()];
            args.extend(properties.iter().map(String::as_str));
            // Limits first: the slice never exists without them.
            self.systemctl(DOING, allocation, &args).await?;
            self.systemctl(DOING, allocation, &["start", &slice]).await?;
            self.limit_huge_pages(allocation, limits.hugepages_1gi)?;
            for _ in 0..SETTLE_TRIES {
                if self.amiss(allocation, limits).is_none() {
                    return Ok(());
                }
                self.clock.sleep(SETTLE_PERIOD).await;
            }
            let why = self.amiss(allocation, limits);
            why.map_or(Ok(()), |why| Err(SliceError::Refused { doing: DOING, slice, why }))
        })
    }

    fn remove(&self, allocation: AllocationId) -> BoxFuture<'_, Result<Removal, SliceError>> {
        Box::pin(async move {
            const DOING: &str = "remove";
            if self.support().is_err() || !self.dir(allocation).exists() {
                return Ok(Removal::Gone);
            }
            if self.is_populated(allocation)? {
                return Ok(Removal::InUse);
            }
            let slice = name(allocation);
            self.systemctl(DOING, allocation, &["stop", &slice]).await?;
            // The drop-ins that set-property left: without them gone a later slice of the name would start with them.
            // They vanish with the next boot anyway, so a refusal changes nothing.
            if let Err(err) = self.systemctl(DOING, allocation, &["revert", &slice]).await {
                tracing::debug!(err = %kit::chain(&err), "slice drop-ins kept");
            }
            Ok(Removal::Gone)
        })
    }
}
