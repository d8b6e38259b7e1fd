//! Network interfaces with a device behind them, from `/sys/class/net`.

use std::path::Path;

use wire::inventory::{NICS_MAX, Nic, NicSection, PciAddress, Sriov};

use crate::root::Root;
use crate::text::{Notes, clean};

pub fn read(root: &Root) -> NicSection {
    let mut notes = Notes::default();
    let mut names = notes.take("nics", root.list("sys/class/net").map(Some)).unwrap_or_default();
    names.retain(|name| root.exists(&format!("sys/class/net/{name}/device")));
    notes.bound("nics", &mut names, NICS_MAX);
    let nics = names.iter().map(|name| nic(root, name, &mut notes)).collect();
    NicSection { nics, unread: notes.finish() }
}

fn nic(root: &Root, name: &str, notes: &mut Notes) -> Nic {
    let folder = format!("sys/class/net/{name}");
    let numa: Option<i64> = number(root, &format!("{folder}/device/numa_node"));
    Nic {
        name: clean(name).unwrap_or_default(),
        mac: notes.text(root, format!("{name}: mac"), &format!("{folder}/address")).and_then(mac),
        // Reading the speed of a link that is down fails or gives -1: neither is a fault.
        speed_mbps: number::<i64>(root, &format!("{folder}/speed"))
            .and_then(|speed| u64::try_from(speed).ok())
            .filter(|speed| *speed > 0 && *speed < u64::from(u32::MAX)),
        driver: root.link_name(&format!("{folder}/device/driver")),
        pci_address: pci_address(root, &format!("{folder}/device")),
        numa_node: numa.and_then(|node| u32::try_from(node).ok()),
        sriov: sriov(root, &folder),
        rdma_devices: root.list(&format!("{folder}/device/infiniband")).unwrap_or_default(),
    }
}

fn number<T: std::str::FromStr>(root: &Root, path: &str) -> Option<T> {
    root.text(path).ok()??.parse().ok()
}

/// Ethernet has six octets, InfiniBand twenty.
fn mac(text: String) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let octet = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let count = text.split(':').count();
    let zero = text.bytes().all(|byte| byte == b'0' || byte == b':');
    (text.split(':').all(octet) && (count == 6 || count == 20) && !zero).then_some(text)
}

/// The nearest PCI device above: a virtio interface's own device is one step below it.
fn pci_address(root: &Root, device: &str) -> Option<PciAddress> {
    let path = root.resolved(device)?;
    Path::new(&path)
        .ancestors()
        .filter_map(|ancestor| ancestor.file_name()?.to_str())
        .find_map(|name| name.contains('.').then(|| name.parse().ok())?)
}

fn sriov(root: &Root, folder: &str) -> Option<Sriov> {
    let vfs_max = number(root, &format!("{folder}/device/sriov_totalvfs")).filter(|max| *max > 0)?;
    Some(Sriov { vfs_max, vfs: number(root, &format!("{folder}/device/sriov_numvfs")).unwrap_or(0) })
}
