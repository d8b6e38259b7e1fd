//! The smallest guest there is to log in to: Debian's kernel for clouds, BusyBox, and a script that reads its seed. It boots
//! from a disk, as any image does, or straight from its kernel.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::programs;

const SCRIPT: &str = include_str!("tiny.sh");
const INIT: &str = include_str!("init.sh");

const TOOLS: [(&str, &str); 7] = [
    ("qemu-img", "qemu-utils"),
    ("mkfs.vfat", "dosfstools"),
    ("mcopy", "mtools"),
    ("syslinux", "syslinux"),
    ("dpkg-deb", "dpkg"),
    ("gzip", "gzip"),
    ("setpriv", "util-linux"),
];

#[derive(Debug, Clone)]
pub struct Tiny {
    dir: PathBuf,
}

impl Tiny {
    /// What its script says on the serial console, on a line of its own, when it has read its seed.
    pub const READY: &str = "tiny: ready";

    /// The image, built below the target folder when it is not there.
    pub fn built() -> anyhow::Result<Self> {
        let test = std::env::current_exe()?;
        // target/<profile>/deps/<test>
        let deps = test.parent().filter(|deps| deps.ends_with("deps"));
        let target =
            deps.and_then(|deps| deps.ancestors().nth(2)).context("the test lies in no target folder")?;
        Self::built_in(&target.join("tiny"))
    }

    /// The same in a folder that holds nothing else. Whoever else wants it meanwhile waits.
    pub fn built_in(folder: &Path) -> anyhow::Result<Self> {
        programs::check(&TOOLS)?;
        std::fs::create_dir_all(folder)?;
        let image = Self { dir: folder.join(recipe()) };
        let lock = File::create(folder.join("lock"))?;
        lock.lock().context("wait for another build of the tiny image")?;
        if !image.dir.is_dir() {
            remove_others(folder)?;
            build(folder, &image.dir)?;
        }
        Ok(image)
    }

    /// The disk, as qcow2.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("tiny.qcow2")
    }

    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }
}

/// Names an image by all that goes into it, but for the versions of the packages.
fn recipe() -> String {
    let mut hash = DefaultHasher::new();
    (SCRIPT, INIT).hash(&mut hash);
    format!("{:016x}", hash.finish())
}

/// Images of older recipes, and what a build that was cut short left.
fn remove_others(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn build(folder: &Path, image: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    let work = folder.join("building");
    let out = work.join("out");
    std::fs::create_dir_all(&out)?;
    std::fs::write(work.join("tiny.sh"), SCRIPT)?;
    std::fs::write(work.join("init"), INIT)?;
    let built = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "sh", "tiny.sh", "out"])
        .current_dir(&work)
        .env("PATH", programs::path_with_sbin())
        .stdin(Stdio::null())
        .output()?;
    if !built.status.success() {
        bail!("the tiny image could not be made:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    std::fs::rename(&out, image)?;
    std::fs::remove_dir_all(&work)?;
    eprintln!("made the tiny image in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
