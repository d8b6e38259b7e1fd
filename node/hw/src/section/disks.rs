//! Disks, from `/sys/block`.

use std::path::Path;

use wire::inventory::{DISKS_MAX, Disk, DiskSection, Transport};

use crate::root::Root;
use crate::text::{Notes, clean};

/// Block devices that are no disks although some have a device behind them: CD drives, floppies, network disks.
const NO_DISKS: &[&str] = &["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd", "drbd", "zd"];
/// The kernel counts block devices in sectors of this size whatever theirs is.
const SECTOR_BYTES: u64 = 512;

pub fn read(root: &Root) -> DiskSection {
    let mut notes = Notes::default();
    let mut names = notes.take("disks", root.list("sys/block").map(Some)).unwrap_or_default();
    names.retain(|name| is_disk(root, name));
    notes.bound("disks", &mut names, DISKS_MAX);
    let disks = names.iter().map(|name| disk(root, name, &mut notes)).collect();
    DiskSection { disks, instances_bytes: None, unread: notes.finish() }
}

/// The size of the file system that a folder is on, or will be. In whole GiB: that of some moves with what is on others.
pub fn file_system_bytes(dir: &Path) -> std::io::Result<u64> {
    const GIB: u64 = 1 << 30;
    let there = dir.ancestors().find(|at| at.exists()).unwrap_or(Path::new("/"));
    let found = rustix::fs::statvfs(there)?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize) / GIB * GIB)
}

/// Paths of an NVMe multipath disk are hidden block devices of their own.
fn is_disk(root: &Root, name: &str) -> bool {
    let hidden = root.text(&format!("sys/block/{name}/hidden")).ok().flatten();
    !NO_DISKS.iter().any(|prefix| name.starts_with(prefix))
        && root.exists(&format!("sys/block/{name}/device"))
        && hidden.as_deref() != Some("1")
}

fn disk(root: &Root, name: &str, notes: &mut Notes) -> Disk {
    let folder = format!("sys/block/{name}");
    let mut text =
        |what: &str, path: &str| notes.text(root, format!("{name}: {what}"), &format!("{folder}/{path}"));
    let model = text("model", "device/model");
    let serial = text("serial", "device/serial").or_else(|| text("serial", "serial"));
    let wwn = text("wwn", "wwid").or_else(|| text("wwn", "device/wwid"));
    let serial = serial.or_else(|| vital_product_serial(root, &folder, name, notes));
    let sectors: Option<u64> = notes.number(root, &format!("{name}: size"), &format!("{folder}/size"));
    let rotational: Option<u8> =
        notes.number(root, &format!("{name}: rotational"), &format!("{folder}/queue/rotational"));
    Disk {
        name: name.to_owned(),
        model,
        serial,
        size_bytes: sectors.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES)),
        rotational: rotational.map(|value| value == 1),
        transport: transport(root, &folder, name),
        wwn,
    }
}

/// SCSI's unit serial number page: four bytes of header, the last two of them the length, then the text.
fn vital_product_serial(root: &Root, folder: &str, name: &str, notes: &mut Notes) -> Option<String> {
    let page = notes.take(format!("{name}: serial"), root.bytes(&format!("{folder}/device/vpd_pg80")))?;
    let len = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let serial = page.get(4..4 + len)?;
    clean(&String::from_utf8_lossy(serial))
}

fn transport(root: &Root, folder: &str, name: &str) -> Option<Transport> {
    let by_name = [("nvme", Transport::Nvme), ("vd", Transport::Virtio), ("mmcblk", Transport::Mmc)];
    if let Some((_, transport)) = by_name.into_iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return Some(transport);
    }
    let path = root.resolved(folder)?;
    // USB before the rest: a SATA disk in a USB case is on both.
    let by_path = [
        ("/usb", Transport::Usb),
        ("/ata", Transport::Sata),
        ("/end_device-", Transport::Sas),
        ("/virtio", Transport::Virtio),
    ];
    let known = by_path.into_iter().find(|(part, _)| path.contains(part)).map(|(_, transport)| transport);
    Some(known.unwrap_or(Transport::Other))
}
