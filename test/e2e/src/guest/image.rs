//! A guest's kernel and disk, made of Debian packages once and kept in the target folder.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

const SUITE: &str = "bookworm";
const PACKAGES: &str = "systemd-sysv,udev,dbus,iproute2,kmod";
const SCRIPT: &str = include_str!("image.sh");
const AGENT: &str = include_str!("agent.sh");
/// What `mmdebstrap` is told besides. Nobody reads manuals in there.
const OPTIONS: [&str; 6] = [
    "--variant=minbase",
    "--mode=root",
    "--aptopt=Acquire::Languages \"none\"",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
];

/// Programs that guests need, and the package each is of.
const TOOLS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-img", "qemu-utils"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
];

#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
}

impl Image {
    /// The image, built when it is not there. Whoever else wants it meanwhile waits.
    pub fn built() -> anyhow::Result<Self> {
        check_tools()?;
        let guests = folder()?;
        std::fs::create_dir_all(&guests)?;
        let image = Self { dir: guests.join(recipe()) };
        let lock = File::create(guests.join("lock"))?;
        lock.lock().context("wait for another build of the guest's image")?;
        if !image.dir.is_dir() {
            remove_others(&guests)?;
            build(&guests, &image.dir)?;
        }
        Ok(image)
    }

    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.ext4")
    }
}

/// A program of the system's, by a name that `sudo`-less paths may not hold.
pub fn tool(name: &str) -> anyhow::Result<Command> {
    let path = find(name).with_context(|| format!("{name} is not installed"))?;
    Ok(Command::new(path))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

fn check_tools() -> anyhow::Result<()> {
    let mut packages: Vec<&str> =
        TOOLS.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    bail!(
        "a guest needs more packages; run this, then try again:\n\n  \
         sudo apt-get install -y --no-install-recommends {}\n",
        packages.join(" ")
    )
}

/// Beside the profiles' folders, which all use the same image.
fn folder() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // target/<profile>/deps/<test>
    let deps = test.parent().filter(|deps| deps.ends_with("deps"));
    let target =
        deps.and_then(|deps| deps.ancestors().nth(2)).context("the test lies in no target folder")?;
    Ok(target.join("guest"))
}

/// Names an image by all that goes into it, but for the versions of the packages.
fn recipe() -> String {
    let mut hash = DefaultHasher::new();
    (SUITE, PACKAGES, OPTIONS, SCRIPT, AGENT).hash(&mut hash);
    format!("{:016x}", hash.finish())
}

/// Images of older recipes, and what a build that was cut short left.
fn remove_others(guests: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(guests)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn build(guests: &Path, image: &Path) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "only root can make the guest's image; run this test as root once, and {} is kept",
            image.display()
        );
    }
    let started = Instant::now();
    let work = guests.join("building");
    let temp = work.join("temp");
    std::fs::create_dir_all(&temp)?;
    std::fs::write(work.join("image.sh"), SCRIPT)?;
    std::fs::write(work.join("agent.sh"), AGENT)?;
    let out = work.join("out");
    std::fs::create_dir(&out)?;
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
    let hook = format!("sh {0}/image.sh \"$1\" {0} {1}", quoted(&work), quoted(&out));
    // In mounts and process ids of its own: when the test ends, so does all that was started, and nothing stays mounted
    // below the folder.
    let built = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "mmdebstrap",
            "--quiet",
        ])
        .args(OPTIONS)
        .arg(format!("--include={PACKAGES}"))
        .arg(format!("--customize-hook={hook}"))
        .args([SUITE, "/dev/null"])
        .env("TMPDIR", &temp)
        .env("PATH", path_with_sbin())
        .stdin(Stdio::null())
        .output()?;
    if !built.status.success() {
        bail!("mmdebstrap could not make the guest's image:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    std::fs::rename(&out, image)?;
    std::fs::remove_dir_all(&work)?;
    eprintln!("made the guest's image in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn path_with_sbin() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}
