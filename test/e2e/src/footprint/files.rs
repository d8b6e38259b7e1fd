//! Files of the daemon's: those below its folder, and those that it has open.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::Lines;

/// Their size is the daemon's own affair: what it has journaled and said, and its marks.
const GROW: [&str; 3] = ["journal", "log", "identity.json"];
/// Made with a host's first instance, and kept: folders, of which the contents are looked at, and a list in which nothing is.
const KEPT_FOLDERS: [&str; 2] = ["libvirt/images", "libvirt/instances"];
const KEPT_LIST: (&str, &[u8]) = ("instances.json", b"{}");
/// Written anew before each use; of a write that was cut short the next one takes what it left.
const SCRATCH: [&str; 2] = ["firewall/links.ip", "firewall/.links.ip.new"];
/// How lines of sockets begin.
pub const A_SOCKET: &str = "open by the daemon: socket";
/// The database of `dev`, to which connections are made as they are needed.
const DATABASE_SOCKET: &str = ".s.PGSQL.";

pub fn lines(dir: &Path, lines: &mut Lines) -> anyhow::Result<()> {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            // What goes meanwhile is gone.
            let Ok(found) = path.symlink_metadata() else { continue };
            let shown = path.strip_prefix(dir)?.display().to_string();
            let grows = GROW.iter().any(|name| shown.contains(name));
            let size = if found.is_file() && !grows { found.len().to_string() } else { String::new() };
            let is_kept_list =
                shown == KEPT_LIST.0 && std::fs::read(&path).is_ok_and(|list| list == KEPT_LIST.1);
            let is_own = SCRATCH.contains(&shown.as_str()) || KEPT_FOLDERS.contains(&shown.as_str());
            if !is_own && !is_kept_list {
                lines.add(format!("file {shown} {:o} {} {size}", found.mode(), found.uid()));
            }
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(())
}

/// By what they are; sockets by their kind, as each has a number of its own.
pub fn open_lines(daemon: u32, dir: &Path, lines: &mut Lines) -> anyhow::Result<()> {
    let sockets = sockets(daemon)?;
    for entry in std::fs::read_dir(format!("/proc/{daemon}/fd"))? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let text = target.display().to_string();
        let number = text.split_once(":[").map(|(_, number)| number.trim_end_matches(']').to_owned());
        let kind = match number {
            None if target.starts_with(dir) => target.strip_prefix(dir)?.display().to_string(),
            None => text,
            Some(number) if text.starts_with("socket:") => match sockets.get(&number).map(String::as_str) {
                Some(DATABASE_SOCKET) => continue,
                Some(kind) => format!("socket {kind}"),
                None => "socket in another network".to_owned(),
            },
            Some(_) => text.split(":[").next().unwrap_or_default().to_owned(),
        };
        lines.add(format!("open by the daemon: {kind}"));
    }
    Ok(())
}

/// By their numbers, in the daemon's network.
fn sockets(daemon: u32) -> anyhow::Result<HashMap<String, String>> {
    let mut found = HashMap::new();
    for (kind, column) in [("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9), ("netlink", 9)] {
        let table = std::fs::read_to_string(format!("/proc/{daemon}/net/{kind}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(number) = words.get(column) else { continue };
            let listens = kind.starts_with("tcp") && words.get(3) == Some(&"0A");
            found.insert(
                (*number).to_owned(),
                format!("{kind}{}", if listens { " that listens" } else { "" }),
            );
        }
    }
    // Netid State Recv-Q Send-Q path number peer's-path peer's-number
    let shown = Command::new("ss").args(["-x", "-a", "-n", "-H"]).output()?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let path_of: HashMap<&str, &str> =
        rows.iter().filter_map(|row| Some((*row.get(5)?, *row.get(4)?))).collect();
    for row in &rows {
        let (Some(path), Some(number)) = (row.get(4), row.get(5)) else { continue };
        let peer = row.get(7).and_then(|peer| path_of.get(peer)).copied().unwrap_or_default();
        let kind = match peer.contains(DATABASE_SOCKET) {
            true => DATABASE_SOCKET.to_owned(),
            false => format!("unix {path} to {peer}"),
        };
        found.insert((*number).to_owned(), kind);
    }
    Ok(found)
}
