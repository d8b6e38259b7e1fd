//! A guest's kernel and disk, made of Debian packages once and kept in the target folder.

use std::path::PathBuf;

use guests::Debian;

const PACKAGES: &str = "systemd-sysv,udev,dbus,iproute2,kmod";
const SCRIPT: &str = include_str!("image.sh");
const AGENT: &str = include_str!("agent.sh");
/// What runs it, beside what makes it.
const TOOLS: [(&str, &str); 2] = [("qemu-system-x86_64", "qemu-system-x86"), ("qemu-img", "qemu-utils")];

#[derive(Debug, Clone)]
pub struct Image {
    dir: PathBuf,
}

impl Image {
    /// The image, built when it is not there. Whoever else wants it meanwhile waits.
    pub fn built() -> anyhow::Result<Self> {
        let debian = Debian {
            name: "guest",
            packages: PACKAGES,
            script: SCRIPT,
            sources: &[("agent.sh", AGENT)],
            tools: &TOOLS,
        };
        Ok(Self { dir: debian.built()? })
    }

    pub fn kernel(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.ext4")
    }
}
