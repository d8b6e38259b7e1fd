//! Who the server runs as. PostgreSQL refuses to run as root.

use std::fs;
use std::path::Path;

/// The uid for a machine without a [`USERS`] entry. It is above what distributions, containers and systemd give
/// out, so that no other service has it, and it needs no entry in `/etc/passwd`.
const FALLBACK_UID: u32 = 0x7FFC_0000;
/// Users made for this server alone.
const USERS: [&str; 1] = ["bcpg"];
/// `initdb`, unlike the server, wants a uid that has a name: any unprivileged one, for a moment.
const INIT_USERS: [&str; 2] = ["postgres", "nobody"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
}

/// The users of one server.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    ours: Ids,
    runs_as: Option<Ids>,
    initialises_as: Option<Ids>,
}

impl Owner {
    pub(super) fn choose() -> Self {
        let ours = Ids { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        if ours.uid != 0 {
            return Self { ours, runs_as: None, initialises_as: None };
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let dedicated = USERS.iter().find_map(|name| lookup(&passwd, name));
        let runs_as = dedicated.unwrap_or(Ids { uid: FALLBACK_UID, gid: FALLBACK_UID });
        let initialises_as = dedicated.or_else(|| INIT_USERS.iter().find_map(|name| lookup(&passwd, name)));
        Self { ours, runs_as: Some(runs_as), initialises_as: initialises_as.or(Some(runs_as)) }
    }

    /// Whom to become; nobody else when we are not root.
    pub(super) fn runs_as(&self) -> Option<Ids> {
        self.runs_as
    }

    pub(super) fn initialises_as(&self) -> Option<Ids> {
        self.initialises_as
    }

    /// Whose files the cluster is.
    pub(super) fn effective(&self) -> Ids {
        self.runs_as.unwrap_or(self.ours)
    }

    pub(super) fn ours(&self) -> Ids {
        self.ours
    }
}

/// Gives the tree to `ids`, without following links.
pub(super) fn chown_tree(path: &Path, ids: Ids) -> std::io::Result<()> {
    std::os::unix::fs::lchown(path, Some(ids.uid), Some(ids.gid))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            chown_tree(&entry?.path(), ids)?;
        }
    }
    Ok(())
}

/// The ids of a user in the text of `/etc/passwd`; never root's.
fn lookup(passwd: &str, name: &str) -> Option<Ids> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let uid: u32 = fields.nth(1)?.parse().ok()?;
        let gid: u32 = fields.next()?.parse().ok()?;
        (uid != 0).then_some(Ids { uid, gid })
    })
}

#[cfg(test)]
mod tests;
