//! A guest as clouds have them: Debian with systemd and the real cloud-init, which finds its seed by itself. It boots from a disk
//! with a boot loader, as any image does.

use std::path::PathBuf;

use crate::Debian;

/// With what Debian's own cloud images configure their network by.
const PACKAGES: &str = "systemd-sysv,udev,dbus,iproute2,kmod,cloud-init,netplan.io,systemd-resolved,openssh-server,\
                        cloud-guest-utils,fdisk,e2fsprogs";
const SCRIPT: &str = include_str!("cloud.sh");
const RAMDISK: &str = include_str!("cloud-ramdisk.sh");
/// What cloud-init does there. The rest costs time and needs what is not installed.
const CONFIG: &str = include_str!("cloud.cfg");

const TOOLS: [(&str, &str); 4] =
    [("qemu-img", "qemu-utils"), ("mkfs.vfat", "dosfstools"), ("mcopy", "mtools"), ("syslinux", "syslinux")];

#[derive(Debug, Clone)]
pub struct CloudImage {
    dir: PathBuf,
}

impl CloudImage {
    /// Whom it lets its SSH keys log in as.
    pub const USER: &str = "debian";

    /// The image, built below the target folder when it is not there.
    pub fn built() -> anyhow::Result<Self> {
        let debian = Debian {
            name: "cloud",
            packages: PACKAGES,
            script: SCRIPT,
            sources: &[("init", RAMDISK), ("cloud.cfg", CONFIG)],
            tools: &TOOLS,
        };
        Ok(Self { dir: debian.built()? })
    }

    /// The disk, as qcow2. Its root file system is the last on it, and grows.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("cloud.qcow2")
    }
}
