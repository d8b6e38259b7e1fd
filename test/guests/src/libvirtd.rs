//! A libvirt daemon of a test's own, in namespaces of its own: its processes, its mounts, its network with one bridge. It
//! shares files with the test, so that both see the same disks and sockets, and it ends with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::programs;

const SCRIPT: &str = include_str!("libvirtd.sh");
/// Two seconds, most of them asking QEMU what it can; builds may have the cores.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

const TOOLS: [(&str, &str); 7] = [
    ("libvirtd", "libvirt-daemon"),
    ("virsh", "libvirt-clients"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];

pub struct Libvirtd {
    child: Child,
    /// Short, as sockets are in it.
    dir: TempDir,
}

/// What is known of one that goes on.
pub struct Left {
    pub uri: String,
    /// The file of its network namespace.
    pub network: PathBuf,
}

impl Libvirtd {
    /// The bridge in its network, with the address 10.88.7.1/24.
    pub const BRIDGE: &str = "br0";

    /// Starts it, and waits until it answers. Ends when the thread ends that calls this.
    pub fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("bc-lv-").tempdir()?;
        Self::start_in(dir)
    }

    /// For whatever this process becomes: it ends with that. Its files stay, in a folder that is emptied first.
    pub fn start_for_this_process(dir: &Path) -> anyhow::Result<Left> {
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir)?;
        // Made in `dir` so that it has a name that is known.
        let folder = tempfile::Builder::new().prefix("lv").rand_bytes(0).tempdir_in(dir)?;
        let libvirtd = Self::start_in(folder)?;
        let left = Left { uri: libvirtd.uri(), network: libvirtd.network()? };
        std::mem::forget(libvirtd);
        Ok(left)
    }

    fn start_in(dir: TempDir) -> anyhow::Result<Self> {
        programs::check(&TOOLS)?;
        if !rustix::process::geteuid().is_root() {
            bail!("only root can start a libvirt with a network of its own; run this test as root");
        }
        let script = dir.path().join("libvirtd.sh");
        std::fs::write(&script, SCRIPT)?;
        let log = File::create(dir.path().join("log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--pid", "--mount-proc"])
            .args(["--mount", "--net", "--ipc", "sh"])
            .args([&script, dir.path()])
            .env("PATH", programs::path_with_sbin())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut libvirtd = Self { child, dir };
        let started = Instant::now();
        while libvirtd.virsh(&["version"])?.status.code() != Some(0) {
            if libvirtd.child.try_wait()?.is_some() || started.elapsed() > STARTS_WITHIN {
                bail!("libvirtd does not answer:\n{}", libvirtd.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(libvirtd)
    }

    pub fn uri(&self) -> String {
        format!("qemu:///system?socket={}", self.dir.path().join("run/libvirt-sock").display())
    }

    /// The file of its network namespace, while it runs.
    pub fn network(&self) -> anyhow::Result<PathBuf> {
        Ok(format!("/proc/{}/ns/net", self.init()?).into())
    }

    /// A short path of files that end with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn virsh(&self, args: &[&str]) -> anyhow::Result<Output> {
        let uri = self.uri();
        Ok(Command::new("virsh").args(["--quiet", "--connect", &uri]).args(args).output()?)
    }

    /// What it prints, when it succeeds.
    pub fn virsh_ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let done = self.virsh(args)?;
        if !done.status.success() {
            bail!("virsh {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(String::from_utf8(done.stdout)?)
    }

    /// The names of interfaces in its network, in order.
    pub fn links(&self) -> anyhow::Result<Vec<String>> {
        let shown = Command::new("nsenter")
            .arg(format!("--net={}", self.network()?.display()))
            .args(["ip", "-o", "link"])
            .output()?;
        let text = String::from_utf8(shown.stdout)?;
        let name = |line: &str| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
        let mut names: Vec<String> = text.lines().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Command lines of the hypervisors that run.
    pub fn hypervisors(&self) -> anyhow::Result<Vec<String>> {
        let is_one = |line: &String| {
            line.split(' ').next().is_some_and(|program| program.ends_with("qemu-system-x86_64"))
        };
        Ok(self.processes()?.into_iter().map(|(_, line)| line).filter(is_one).collect())
    }

    /// Ids and command lines of all that runs in its namespaces, its own included.
    pub fn processes(&self) -> anyhow::Result<Vec<(u32, String)>> {
        let space = std::fs::read_link(format!("/proc/{}/ns/pid", self.init()?))?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let path = entry.path();
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // What ended meanwhile is no longer there to be read.
            let inside = std::fs::read_link(path.join("ns/pid")).is_ok_and(|other| other == space);
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            if inside && !line.is_empty() {
                found.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        Ok(found)
    }

    /// The end of what it wrote.
    pub fn log(&self) -> String {
        let text = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// The first process in its namespaces.
    fn init(&self) -> anyhow::Result<u32> {
        let unshare = self.child.id();
        let path = PathBuf::from(format!("/proc/{unshare}/task/{unshare}/children"));
        let children = std::fs::read_to_string(path)?;
        let first = children.split_whitespace().next().context("libvirtd has ended")?;
        Ok(first.parse()?)
    }
}

impl Drop for Libvirtd {
    fn drop(&mut self) {
        // Its namespaces end with their first process, and everything in them does.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The harness shows this only when the test failed.
        eprintln!("--- libvirtd's log ends so:\n{}", self.log());
    }
}
