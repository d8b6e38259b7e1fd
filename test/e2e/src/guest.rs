//! A whole Debian machine: its own kernel, systemd as PID 1, every controller of cgroup v2, and a reboot that is one.
//! QEMU emulates it without hardware virtualization, so it runs wherever the tests do.
//!
//! The machine has no way out of itself but to this host's loopback addresses, which it reaches as [`HOST`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::program::{Done, Running};

mod channel;
mod image;

use channel::Channel;
pub use image::Image;

/// This host's loopback address, as a guest reaches it.
pub const HOST: &str = "10.0.2.2";

/// From power on until the agent answers: half a minute on two idle cores, and builds may have both.
const BOOT_WITHIN: Duration = Duration::from_secs(240);
/// How often it is looked whether a guest that does not answer yet has stalled.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// What the kernel says when its timer does not wake it: on a host that was too busy just when it measured that timer, it took the
/// wrong rate for it, and gets nowhere from then on.
const STALLED: &str = "rcu_preempt detected stalls";
/// Times that such a guest is switched on.
const POWER_ONS_MAX: u32 = 3;
/// What a script gets when its caller says nothing.
const SCRIPT_WITHIN: Duration = Duration::from_secs(60);
/// Up to here a failure shows the console.
const CONSOLE_LINES_MAX: usize = 60;

/// One guest at a time: two that share the cores take more than twice as long, and each wants its memory.
static TURN: Mutex<()> = Mutex::new(());

/// What the machine is made of.
#[derive(Debug, Clone)]
pub struct Options {
    pub memory_mib: u32,
    pub cpus: u32,
    /// Memory and CPUs are shared out evenly among them.
    pub numa_nodes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory_mib: 1024, cpus: 2, numa_nodes: 1 }
    }
}

/// A running machine. It ends when this is dropped, and when the thread that booted it ends.
pub struct Guest {
    // Fields drop in order: the machine ends before its folder goes.
    qemu: Running,
    channel: Channel,
    console: PathBuf,
    _dir: TempDir,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Guest {
    /// Boots the image on a disk of its own, and waits until the machine answers. Before that it waits for other guests of this
    /// process to end, so a test has one at a time.
    pub fn boot(image: &Image, options: &Options) -> anyhow::Result<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tries = 1;
        loop {
            let mut guest = Self::power_on(image, options)?;
            match guest.wait_first() {
                Ok(()) => {
                    guest._turn = Some(turn);
                    return Ok(guest);
                }
                Err(err) if tries == POWER_ONS_MAX || !guest.has_stalled() => return Err(err),
                Err(_) => tries += 1,
            }
            eprintln!("the guest's kernel took a wrong rate for its timer, and is switched on anew");
        }
    }

    fn power_on(image: &Image, options: &Options) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("bc-guest-").tempdir()?;
        let disk = dir.path().join("disk.qcow2");
        overlay(&image.disk(), &disk)?;
        let socket = dir.path().join("agent");
        let console = dir.path().join("console");
        let mut command = qemu(image, options, dir.path());
        let errors = std::fs::File::create(dir.path().join("qemu.err"))?;
        command.stdout(Stdio::null()).stderr(errors);
        let mut qemu = Running::start("qemu-system-x86_64", &mut command)?;
        let started = Instant::now();
        let stream = loop {
            if let Ok(stream) = std::os::unix::net::UnixStream::connect(&socket) {
                break stream;
            }
            if let Some(status) = qemu.has_ended()? {
                let said = std::fs::read_to_string(dir.path().join("qemu.err")).unwrap_or_default();
                bail!("qemu ended at once, {status}: {said}");
            }
            if started.elapsed() > BOOT_WITHIN {
                bail!("qemu did not open its socket within {BOOT_WITHIN:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        Ok(Self { qemu, channel: Channel::new(stream), console, _dir: dir, _turn: None })
    }

    /// Until the machine answers for the first time, or it is known that it will not.
    fn wait_first(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let Err(err) = self.channel.wait_hello(LOOK_EVERY) else { return Ok(()) };
            let over = started.elapsed() > BOOT_WITHIN || self.has_stalled();
            if over || self.qemu.has_ended()?.is_some() {
                return Err(err).with_context(|| self.told("the guest did not boot"));
            }
        }
    }

    fn has_stalled(&self) -> bool {
        let said = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&said).contains(STALLED)
    }

    /// Waits until systemd has started everything, and returns what it makes of it: `running`, or `degraded` with the units
    /// that failed.
    pub fn wait_boot(&mut self) -> anyhow::Result<String> {
        const SCRIPT: &str =
            "systemctl is-system-running --wait; systemctl list-units --failed --plain --no-legend";
        let said = self.run_within(BOOT_WITHIN, SCRIPT)?.ok()?;
        Ok(said.trim().to_owned())
    }

    /// Runs a bash script as root.
    pub fn run(&mut self, script: &str) -> anyhow::Result<Done> {
        self.run_within(SCRIPT_WITHIN, script)
    }

    /// The same with another bound, at which the script is killed with exit code 124.
    pub fn run_within(&mut self, within: Duration, script: &str) -> anyhow::Result<Done> {
        self.channel.run(script, within).with_context(|| self.told(&format!("run in the guest: {script}")))
    }

    /// The script's output without the last line break; an error when it failed.
    pub fn output(&mut self, script: &str) -> anyhow::Result<String> {
        let done = self.run(script)?.ok().with_context(|| format!("in the guest: {script}"))?;
        Ok(done.trim_end_matches('\n').to_owned())
    }

    /// Writes a file. Its folder must be there, and no part of the path may hold a blank.
    pub fn put(&mut self, path: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
        self.channel.put(path, bytes, mode).with_context(|| self.told(&format!("write {path} in the guest")))
    }

    /// This boot's id, as the kernel tells it.
    pub fn boot_id(&self) -> &str {
        self.boots().last().map_or("", String::as_str)
    }

    /// The ids of all boots that were seen, in order.
    pub fn boots(&self) -> &[String] {
        self.channel.boots()
    }

    /// Waits until the machine answers from another boot than this one.
    pub fn wait_reboot(&mut self, before: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.boot_id() == before {
            let left = BOOT_WITHIN.saturating_sub(started.elapsed());
            self.channel.wait_hello(left).with_context(|| self.told("the guest did not come back"))?;
        }
        Ok(())
    }

    /// The end of a unit's journal since the image was made.
    pub fn journal(&mut self, unit: &str) -> String {
        match self.run(&format!("journalctl --no-pager --output=short-monotonic --lines=200 --unit={unit}")) {
            Ok(done) => done.stdout,
            Err(err) => format!("{err:#}"),
        }
    }

    fn told(&self, what: &str) -> String {
        format!("{what}\n--- the guest's console ends so:\n{}", tail(&self.console))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The harness shows this only when the test failed.
        eprintln!(
            "--- boots of the guest: {:?}; its console ends so:\n{}",
            self.boots(),
            tail(&self.console)
        );
    }
}

/// A disk that holds only what differs from the image, so it grows to the image's size at most.
fn overlay(base: &Path, disk: &Path) -> anyhow::Result<()> {
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(base)
        .arg(disk)
        .output()?;
    Done::from(made).ok().context("make the guest's disk")?;
    Ok(())
}

fn qemu(image: &Image, options: &Options, dir: &Path) -> Command {
    // A test's threads may end without a word; the machine must not outlive them. Builds beside it go first.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "nice", "-n", "5", "qemu-system-x86_64"]);
    command.args(["-machine", "q35", "-accel", "tcg,thread=multi"]);
    // Without the virtualization that the emulated CPU claims, for which the guest would load a driver.
    command.args(["-cpu", "qemu64,svm=off"]);
    command.args(["-m", &options.memory_mib.to_string(), "-smp", &options.cpus.to_string()]);
    for node in 0..options.numa_nodes {
        let memory = options.memory_mib / options.numa_nodes;
        let cpus = options.cpus / options.numa_nodes;
        let (first, last) = (node * cpus, node * cpus + cpus - 1);
        command.arg("-object").arg(format!("memory-backend-ram,id=memory{node},size={memory}M"));
        command.arg("-numa").arg(format!("node,nodeid={node},cpus={first}-{last},memdev=memory{node}"));
    }
    command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    command.arg("-serial").arg(with_path("file:", &dir.join("console")));
    command.arg("-kernel").arg(image.kernel());
    command.args(["-append", &kernel_line()]);
    command.arg("-drive").arg(with_path(
        "if=none,id=root,format=qcow2,cache=unsafe,discard=unmap,file=",
        &dir.join("disk.qcow2"),
    ));
    command.args(["-device", "nvme,drive=root,serial=root"]);
    command.args(["-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="]);
    command.args(["-device", "virtio-rng-pci"]);
    command.arg("-chardev").arg(with_path("socket,id=agent,server=on,wait=off,path=", &dir.join("agent")));
    command.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=test-agent"]);
    command
}

fn with_path(option: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(option);
    text.push(path);
    text
}

/// A machine id of its own, as two machines of one image would otherwise be one. The rest saves seconds of emulation.
fn kernel_line() -> String {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(0));
    let id = (half() << 64) | half() | 1;
    format!(
        "root=/dev/nvme0n1 rw console=ttyS0 quiet net.ifnames=0 systemd.machine_id={id:032x} \
         tsc=reliable no_timer_check nokaslr mitigations=off"
    )
}

fn tail(console: &Path) -> String {
    let bytes = std::fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(CONSOLE_LINES_MAX)..].join("\n")
}
