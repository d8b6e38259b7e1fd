//! Images of strangers that would have the hypervisor open other files, or are none: refused, and nothing that they name is ever
//! opened, by whichever process.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use e2e::dev::eventually;
use e2e::footprint::database_of_dev;
use guests::Libvirtd;
use rustix::fs::inotify;

use super::{dev_with_host, grounds, make_flavor, text};

/// Where a header has what.
const ENCRYPTION: u64 = 32;
const INCOMPATIBLE_FEATURES: u64 = 72;

/// Sees every opening and every reading of files, by any process of this machine.
struct Watch(OwnedFd);

impl Watch {
    fn of(paths: &[&Path]) -> anyhow::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK)?;
        for path in paths {
            inotify::add_watch(&watch, *path, inotify::WatchFlags::OPEN | inotify::WatchFlags::ACCESS)?;
        }
        Ok(Self(watch))
    }

    fn seen(&self) -> usize {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        std::iter::from_fn(|| reader.next().ok().map(drop)).count()
    }
}

fn qemu_img(args: &[&str]) -> anyhow::Result<()> {
    let done = Command::new("qemu-img").args(args).output()?;
    ensure!(done.status.success(), "qemu-img {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// A qcow2 that is based on `secret`, but for `change`.
fn based(
    at: &Path,
    secret: &str,
    change: impl FnOnce(&std::fs::File) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let path = at.to_str().context("a path")?;
    qemu_img(&["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", secret, path, "8M"])?;
    let file = std::fs::OpenOptions::new().write(true).open(at)?;
    Ok(change(&file)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_host_file_that_an_image_names_is_opened_and_the_image_is_refused() -> anyhow::Result<()> {
    let libvirtd = Libvirtd::start()?;
    let mut dev = dev_with_host(&libvirtd)?;
    let (host, database) = (dev.data_dir.join("host"), database_of_dev(&dev.data_dir).await?);
    let grounds = grounds(&dev, &host, &libvirtd, &database);
    let before = grounds.settled().await?;
    make_flavor(&dev, "small", 128, 1)?;

    let files = tempfile::tempdir()?;
    // QEMU's own user could read all that is in there.
    std::fs::set_permissions(files.path(), std::fs::Permissions::from_mode(0o755))?;
    let at = |name: &str| files.path().join(name);
    let (secret, data) = (at("secret"), at("data"));
    let named = secret.to_str().context("a path")?;
    std::fs::write(&secret, vec![b's'; 8 << 20])?;
    based(&at("backing"), named, |_| Ok(()))?;
    based(&at("feature"), named, |file| {
        file.write_all_at(&(1u64 << 40).to_be_bytes(), INCOMPATIBLE_FEATURES)
    })?;
    based(&at("encrypted"), named, |file| file.write_all_at(&1u32.to_be_bytes(), ENCRYPTION))?;
    // In the middle of its tables.
    based(&at("truncated"), named, |file| file.set_len(65_536 + 8))?;
    let options = format!("data_file={},data_file_raw=on", data.display());
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        &options,
        at("outside").to_str().context("a path")?,
        "8M",
    ])?;

    let watch = Watch::of(&[&secret, &data])?;
    for name in ["backing", "outside", "feature", "encrypted", "truncated"] {
        let path = at(name);
        let path = path.to_str().context("a path")?;
        dev.json(&["images", "import", path, "--name", name, "--format", "qcow2"])?;
        let of = ["--pool", "host", "--flavor", "small", "--image", name, "--name", name];
        let made = dev.json(&[&["instances", "create"], &of[..]].concat())?;
        let id = text(&made, "id")?;
        eventually(Duration::from_secs(30), &format!("the image {name} is refused"), || {
            let told = dev.json(&["instances", "get", id])?;
            let refused = told["state"] == "error" && told.to_string().contains("ImageRefused");
            Ok(if refused { Ok(()) } else { Err(told.to_string()) })
        })?;
        let domains = libvirtd.virsh_ok(&["list", "--all", "--name"])?;
        ensure!(domains.trim().is_empty(), "{name}: {domains}");
        ensure!(libvirtd.hypervisors()?.is_empty(), "{name}: {:?}", libvirtd.hypervisors()?);
        let deleted = dev.json(&["instances", "delete", id, "--wait", "--yes"])?;
        ensure!(deleted["state"] == "deleted", "{deleted}");
        ensure!(watch.seen() == 0, "a file that the image {name} names was opened");
    }
    grounds.back_to(&before).await?;
    ensure!(watch.seen() == 0, "a file that an image names was opened");

    // Whoever trusted them would have been seen.
    for name in ["backing", "outside"] {
        let path = at(name);
        qemu_img(&[
            "convert",
            "-O",
            "raw",
            path.to_str().context("a path")?,
            at("out").to_str().context("a path")?,
        ])?;
        ensure!(watch.seen() > 0, "QEMU opened what {name} names, and nobody saw it");
    }
    database.close();
    let status = dev.running.stop(Duration::from_secs(30))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
