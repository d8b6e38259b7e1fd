//! Systems of Debian's packages, as `mmdebstrap` unpacks them and a script makes disks of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::bail;

use crate::{built, programs};

const SUITE: &str = "bookworm";
/// What `mmdebstrap` is told besides. Nobody reads manuals in there.
const OPTIONS: [&str; 6] = [
    "--variant=minbase",
    "--mode=root",
    "--aptopt=Acquire::Languages \"none\"",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
];

const TOOLS: [(&str, &str); 4] = [
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
];

/// What a system is made of.
#[derive(Debug, Clone, Copy)]
pub struct Debian<'a> {
    /// Of its folder below the target folder, which holds nothing else.
    pub name: &'a str,
    pub packages: &'a str,
    /// Run with the root folder, the folder of the sources, and the folder for what it makes.
    pub script: &'a str,
    /// Names and contents of files that the script takes.
    pub sources: &'a [(&'a str, &'a str)],
    /// Programs that the script runs on this machine, and the package each is of.
    pub tools: &'a [(&'a str, &'a str)],
}

impl Debian<'_> {
    /// The folder of what the script made, which it does when that is not there.
    pub fn built(&self) -> anyhow::Result<PathBuf> {
        programs::check(&[&TOOLS, self.tools].concat())?;
        built::once(&built::below_target(self.name)?, self.recipe(), |work, out| self.make(work, out))
    }

    /// Names it by all that goes into it, but for the versions of the packages.
    fn recipe(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (SUITE, OPTIONS, self.packages, self.script, self.sources).hash(&mut hash);
        hash.finish()
    }

    fn make(&self, work: &Path, out: &Path) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "only root can make the image {}; run this test as root once, and it is kept in {}",
                self.name,
                work.parent().unwrap_or(work).display()
            );
        }
        let started = Instant::now();
        let temp = work.join("temp");
        std::fs::create_dir_all(&temp)?;
        for (name, content) in [&[("make.sh", self.script)], self.sources].concat() {
            std::fs::write(work.join(name), content)?;
        }
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
        let hook = format!("sh {0}/make.sh \"$1\" {0} {1}", quoted(work), quoted(out));
        // In mounts and process ids of its own: when the test ends, so does all that was started, and nothing stays mounted
        // below the folder.
        let made = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--pid", "--mount-proc", "--fork", "--kill-child"])
            .args(["mmdebstrap", "--quiet"])
            .args(OPTIONS)
            .arg(format!("--include={}", self.packages))
            .arg(format!("--customize-hook={hook}"))
            .args([SUITE, "/dev/null"])
            .env("TMPDIR", &temp)
            .env("PATH", programs::path_with_sbin())
            .stdin(Stdio::null())
            .output()?;
        if !made.status.success() {
            bail!(
                "mmdebstrap could not make the image {}:\n{}",
                self.name,
                String::from_utf8_lossy(&made.stderr)
            );
        }
        eprintln!("made the image {} in {:.0} s", self.name, started.elapsed().as_secs_f64());
        Ok(())
    }
}
