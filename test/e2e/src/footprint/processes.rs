//! What runs: in the namespaces of libvirt, and below the daemon; and the cgroups of all that.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use guests::Libvirtd;

use super::Lines;

pub fn lines(libvirtd: &Libvirtd, daemon: u32, lines: &mut Lines) -> anyhow::Result<()> {
    let inside = libvirtd.processes()?;
    for (_, line) in &inside {
        lines.add(format!("process beside libvirt: {line}"));
    }
    let mut all: Vec<u32> = inside.iter().map(|(id, _)| *id).collect();
    all.push(daemon);
    for child in children(daemon) {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        lines.add(format!("process of the daemon: {}", String::from_utf8_lossy(&line).replace('\0', " ")));
        all.push(child);
    }
    for folder in all.into_iter().flat_map(cgroups).collect::<BTreeSet<PathBuf>>() {
        lines.add(format!("cgroup {}", folder.display()));
        for below in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if below.path().is_dir() {
                lines.add(format!("cgroup {}", below.path().display()));
            }
        }
    }
    Ok(())
}

fn children(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_thread = |path: PathBuf| std::fs::read_to_string(path.join("children")).unwrap_or_default();
    let ids = |text: String| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>();
    threads.flat_map(|thread| ids(of_thread(thread.path()))).collect()
}

/// Its folders in all hierarchies, but for the roots, which everybody shares.
fn cgroups(process: u32) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = path.trim_start_matches('/');
        let mounted = mounts.lines().find_map(|mount| {
            let words: Vec<&str> = mount.split(' ').collect();
            let [_, at, kind, options, ..] = words.as_slice() else { return None };
            let is_it = match controllers {
                "" => *kind == "cgroup2",
                named => {
                    *kind == "cgroup" && named.split(',').all(|one| options.split(',').any(|own| own == one))
                }
            };
            is_it.then(|| Path::new(at).to_owned())
        });
        if let Some(at) = mounted.filter(|_| !path.is_empty()) {
            found.push(at.join(path));
        }
    }
    found
}
