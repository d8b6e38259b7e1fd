//! The running system.

use wire::inventory::{CgroupInfo, Distribution, OsSection};

use crate::root::{ReadError, Root};
use crate::text::{Notes, clean};

pub fn read(root: &Root) -> OsSection {
    let mut notes = Notes::default();
    let boot_id = notes.take("bootId", boot_id(root));
    let iommu_units = root.exists("sys").then(|| root.list("sys/class/iommu"));
    let iommu_units = iommu_units.and_then(|units| notes.take("iommuUnits", units.map(Some)));
    OsSection {
        kernel: notes.text(root, "kernel", "proc/sys/kernel/osrelease"),
        distribution: distribution(root, &mut notes),
        boot_id,
        hostname: notes.text(root, "hostname", "proc/sys/kernel/hostname"),
        cgroup: cgroup(root, &mut notes),
        kvm: root.exists("dev").then(|| root.exists("dev/kvm")),
        iommu_units: iommu_units.and_then(|units| u32::try_from(units.len()).ok()),
        unread: notes.finish(),
    }
}

/// The kernel's id of this boot, if it looks like one.
pub fn boot_id(root: &Root) -> Result<Option<String>, ReadError> {
    let id = root.text("proc/sys/kernel/random/boot_id")?;
    let shaped = |id: &String| {
        id.split('-').map(str::len).eq([8, 4, 4, 4, 12])
            && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    match id {
        Some(id) if !shaped(&id) => Err(ReadError::Io("not a UUID".into())),
        id => Ok(id),
    }
}

/// `os-release(5)`: the administrator's file before the vendor's.
fn distribution(root: &Root, notes: &mut Notes) -> Option<Distribution> {
    let text = notes
        .take("distribution", root.text("etc/os-release"))
        .or_else(|| notes.take("distribution", root.text("usr/lib/os-release")))?;
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let value = line.trim().strip_prefix(name)?.strip_prefix('=')?;
            clean(value.trim_matches(['"', '\'']))
        })
    };
    Some(Distribution { id: field("ID"), version_id: field("VERSION_ID"), pretty_name: field("PRETTY_NAME") })
}

fn cgroup(root: &Root, notes: &mut Notes) -> Option<CgroupInfo> {
    let mut controllers: Vec<String>;
    let version;
    // Only the unified hierarchy has this file; a machine with both hierarchies is judged by its usual place.
    if let Some(text) = notes.take("cgroup", root.text("sys/fs/cgroup/cgroup.controllers")) {
        version = 2;
        controllers = text.split_whitespace().filter_map(clean).collect();
    } else if root.exists("sys/fs/cgroup/cgroup.controllers") {
        version = 2;
        controllers = Vec::new();
    } else {
        let text = notes.take("cgroup", root.text("proc/cgroups"))?;
        version = 1;
        controllers = text
            .lines()
            .filter(|line| !line.starts_with('#') && line.split_whitespace().last() == Some("1"))
            .filter_map(|line| clean(line.split_whitespace().next()?))
            .collect();
    }
    controllers.sort_unstable();
    controllers.truncate(64);
    Some(CgroupInfo { version, controllers })
}
