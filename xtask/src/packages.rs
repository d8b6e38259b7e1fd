//! Debian packages that running or testing needs: installed when we may, else named in one command.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::run;

/// A package, and how to tell that it is not needed.
#[derive(Clone, Copy)]
pub struct Package {
    pub name: &'static str,
    pub why: &'static str,
    pub present: fn() -> bool,
}

pub const POSTGRESQL: Package =
    Package { name: "postgresql", why: "the private database", present: postgresql_present };
pub const OPENSSH_CLIENT: Package = Package {
    name: "openssh-client",
    why: "revocation lists are checked with ssh-keygen",
    present: || on_path("ssh-keygen"),
};
pub const OPENSSH_SERVER: Package = Package {
    name: "openssh-server",
    why: "logins on nodes are tried with a real sshd",
    present: || on_path("sshd"),
};
pub const OPENSSL: Package =
    Package { name: "openssl", why: "what handshakes are compared with", present: || on_path("openssl") };
pub const IPROUTE: Package =
    Package { name: "iproute2", why: "network namespaces for fault tests", present: || on_path("ip") };

pub const NFTABLES: Package =
    Package { name: "nftables", why: "what instances may send, by the kernel", present: || on_path("nft") };

pub const QEMU: Package = Package {
    name: "qemu-system-x86",
    why: "whole machines for end-to-end tests",
    present: || on_path("qemu-system-x86_64"),
};
pub const QEMU_UTILS: Package =
    Package { name: "qemu-utils", why: "the disks of those machines", present: || on_path("qemu-img") };
pub const MMDEBSTRAP: Package =
    Package { name: "mmdebstrap", why: "what is on those disks", present: || on_path("mmdebstrap") };

pub const LIBVIRT_DAEMON: Package = Package {
    name: "libvirt-daemon",
    why: "virtual machines as hosts run them",
    present: || on_path("libvirtd"),
};
pub const LIBVIRT_QEMU: Package = Package {
    name: "libvirt-daemon-driver-qemu",
    why: "the same",
    present: || {
        let library = "libvirt/connection-driver/libvirt_driver_qemu.so";
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib"].iter().any(|dir| Path::new(dir).join(library).is_file())
    },
};
pub const LIBVIRT_CLIENTS: Package =
    Package { name: "libvirt-clients", why: "virsh, which drives them", present: || on_path("virsh") };
pub const DOSFSTOOLS: Package =
    Package { name: "dosfstools", why: "the tiny guest's disk", present: || on_path("mkfs.vfat") };
pub const MTOOLS: Package = Package { name: "mtools", why: "what is on it", present: || on_path("mcopy") };
pub const SYSLINUX: Package =
    Package { name: "syslinux", why: "what boots it", present: || on_path("syslinux") };

/// What [`guests::Tiny`] is made with.
pub const TINY_IMAGE: [Package; 4] = [QEMU_UTILS, DOSFSTOOLS, MTOOLS, SYSLINUX];
/// What [`guests::Libvirtd`] runs.
pub const LIBVIRT: [Package; 4] = [QEMU, LIBVIRT_DAEMON, LIBVIRT_QEMU, LIBVIRT_CLIENTS];

fn postgresql_present() -> bool {
    if on_path("initdb") && on_path("postgres") {
        return true;
    }
    let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") else { return false };
    versions.flatten().any(|version| version.path().join("bin/initdb").exists())
}

pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).to_owned()))
        .any(|dir| dir.join(program).is_file())
}

/// Makes the packages be there. As root on Debian it installs them; otherwise it says what to run.
pub fn ensure(packages: &[Package]) -> anyhow::Result<()> {
    let mut missing: Vec<&Package> = packages.iter().filter(|package| !(package.present)()).collect();
    missing.sort_unstable_by_key(|package| package.name);
    missing.dedup_by_key(|package| package.name);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let root = rustix::process::geteuid().is_root();
    if !root || !on_path("apt-get") {
        for package in &missing {
            eprintln!("missing  {:<16} {}", package.name, package.why);
        }
        bail!(
            "run this, then try again:\n\n  sudo apt-get install -y --no-install-recommends {}\n",
            names.join(" ")
        );
    }
    eprintln!("installing {}", names.join(" "));
    // Debian would start its own cluster on port 5432, which nobody asked for.
    let policy = DebianPolicy::deny_services();
    run::must(Command::new("apt-get").args(["update", "-qq"]))?;
    let installed = install(&names, &[]).or_else(|refused| {
        // Those that are there may be of another release, like QEMU's tools of backports beside Debian's own QEMU.
        let Some(release) = release() else { return Err(refused) };
        let there: Vec<String> = packages
            .iter()
            .filter(|package| (package.present)())
            .map(|package| format!("{}/{release}", package.name))
            .collect();
        eprintln!("trying again, with those that are there as {release} has them");
        install(&names, &there)
    });
    drop(policy);
    installed?;
    match missing.iter().find(|package| !(package.present)()) {
        None => Ok(()),
        Some(package) => bail!("{} was installed and is still not found", package.name),
    }
}

/// Of what is there already, `instead` may become older.
fn install(names: &[&str], instead: &[String]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command
        // A package that somebody chose is not taken away for one of ours.
        .args(["install", "-y", "-qq", "--no-install-recommends", "--no-remove"])
        .args((!instead.is_empty()).then_some("--allow-downgrades"))
        .args(names)
        .args(instead)
        .env("DEBIAN_FRONTEND", "noninteractive");
    run::must(&mut command)
}

/// Debian's word for this machine's release, like `bookworm`: os-release(5).
fn release() -> Option<String> {
    let text = std::fs::read_to_string("/etc/os-release").ok()?;
    let word = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(word.trim_matches('"').to_owned())
}

/// Tells Debian's maintainer scripts to start no service while it lives. Left alone when an administrator has one.
struct DebianPolicy(Option<&'static str>);

impl DebianPolicy {
    const PATH: &str = "/usr/sbin/policy-rc.d";

    fn deny_services() -> Self {
        use std::os::unix::fs::PermissionsExt;
        if Path::new(Self::PATH).exists() {
            return Self(None);
        }
        let written = std::fs::write(Self::PATH, "#!/bin/sh\nexit 101\n")
            .and_then(|()| std::fs::set_permissions(Self::PATH, std::fs::Permissions::from_mode(0o755)));
        Self(written.ok().map(|()| Self::PATH))
    }
}

impl Drop for DebianPolicy {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
