//! From the section to sshd's files, and from what is there to what must change. Pure.

use std::collections::{BTreeMap, BTreeSet};

use model::{NodeId, Timestamp};
use pki::ssh::{Krl, Principal, SshPublicKey};
use wire::proto::agent::AccessSection;

use crate::files::{Account, FILE_BYTES_MAX, HostFile};

/// A CA, its successor, and as many again for a merge of two deployments.
const CA_KEYS_MAX: usize = 16;
/// Local accounts people log in to.
const ACCOUNTS_MAX: usize = 256;
const PRINCIPALS_MAX: usize = 256;

/// What the host should have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Everything but the drop-in.
    pub files: BTreeMap<HostFile, Vec<u8>>,
    pub drop_in: Option<Vec<u8>>,
    /// Principals that are valid and not for this node or account.
    pub ignored: BTreeSet<String>,
}

/// What the host has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    pub files: BTreeMap<HostFile, Vec<u8>>,
    pub drop_in: Option<Vec<u8>>,
    /// sshd may not have read the drop-in as it is.
    pub reload_owed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Write(HostFile, Vec<u8>),
    Remove(HostFile),
    WriteDropIn(Vec<u8>),
    RemoveDropIn,
    Reload,
}

/// The section, checked. Its keys and principals become lines of sshd's files: anything that could add a line is refused
/// as a whole and never repaired.
pub fn parse(section: &AccessSection, node_id: NodeId) -> Result<Access, String> {
    let over = |what: &str, count: usize, max: usize| -> Result<(), String> {
        if count > max { Err(format!("{count} {what}, at most {max}")) } else { Ok(()) }
    };
    over("CA keys", section.ssh_ca_keys.len(), CA_KEYS_MAX)?;
    over("accounts", section.accounts.len(), ACCOUNTS_MAX)?;
    let mut keys: Vec<SshPublicKey> = Vec::new();
    for (at, line) in section.ssh_ca_keys.iter().enumerate() {
        let key = line.parse().map_err(|err| format!("CA key {}: {err}", at + 1))?;
        keys.push(key);
    }
    let (principals, ignored) = principals(section, node_id)?;
    let krl = revocations(&keys, &section.revoked_serials)?;
    if keys.is_empty() {
        // Nothing is trusted, so there is nothing to revoke or to let in.
        return Ok(Access { ignored, ..Access::default() });
    }
    let mut files = BTreeMap::from([(HostFile::SshCa, lines(keys.iter().map(SshPublicKey::line)))]);
    files.insert(HostFile::SshKrl, krl);
    for (account, principals) in principals {
        files.insert(HostFile::SshPrincipals(account), lines(principals.iter().map(String::as_str)));
    }
    Ok(Access { files, drop_in: Some(drop_in()), ignored })
}

type Principals = BTreeMap<Account, BTreeSet<String>>;

fn principals(section: &AccessSection, node_id: NodeId) -> Result<(Principals, BTreeSet<String>), String> {
    let mut wanted = Principals::new();
    let mut ignored = BTreeSet::new();
    for entry in &section.accounts {
        let account: Account =
            entry.account.parse().map_err(|err| format!("account {:?}: {err}", shown(&entry.account)))?;
        if entry.principals.len() > PRINCIPALS_MAX {
            return Err(format!("account {:?} has more than {PRINCIPALS_MAX} principals", account.as_str()));
        }
        let of_account = wanted.entry(account.clone()).or_default();
        for text in &entry.principals {
            let principal: Principal =
                text.parse().map_err(|err| format!("principal {:?}: {err}", shown(text)))?;
            if principal.node_id() == node_id && principal.account() == account.as_str() {
                of_account.insert(principal.to_string());
            } else {
                ignored.insert(principal.to_string());
            }
        }
    }
    wanted.retain(|_, principals| !principals.is_empty());
    Ok((wanted, ignored))
}

/// Equal serials give equal bytes, so that a pass over a converged host writes nothing.
fn revocations(keys: &[SshPublicKey], serials: &[u64]) -> Result<Vec<u8>, String> {
    let revoked: Vec<_> = keys.iter().map(|key| (key, serials)).collect();
    let krl =
        Krl { version: serials.len() as u64, generated_at: Timestamp::from_micros(0), revoked: &revoked };
    let bytes = krl.render().map_err(|err| err.to_string())?;
    match bytes.len() > FILE_BYTES_MAX {
        true => {
            Err(format!("{} revoked serials are more than a file of {FILE_BYTES_MAX} bytes", serials.len()))
        }
        false => Ok(bytes),
    }
}

fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text.into_bytes()
}

pub const CA_FILE: &str = "/etc/ssh/bc_ca.pub";

fn drop_in() -> Vec<u8> {
    b"# Written by bcd: break-glass logins with certificates of the deployment's CAs.\n\
      TrustedUserCAKeys /etc/ssh/bc_ca.pub\n\
      AuthorizedPrincipalsFile /etc/ssh/bc_principals/%u\n\
      RevokedKeys /etc/ssh/bc_krl\n"
        .to_vec()
}

/// For a message: short, and its control characters visible when quoted.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The order that never leaves sshd with a drop-in that names a missing file: it would then refuse every key.
pub fn plan(access: &Access, observed: &Observed) -> Vec<Step> {
    let changed = access.files.iter().filter(|(file, bytes)| observed.files.get(file) != Some(bytes));
    let mut steps: Vec<Step> =
        changed.map(|(file, bytes)| Step::Write(file.clone(), bytes.clone())).collect();
    match &access.drop_in {
        Some(wanted) if observed.drop_in.as_ref() != Some(wanted) => {
            steps.push(Step::WriteDropIn(wanted.clone()))
        }
        None if observed.drop_in.is_some() => steps.push(Step::RemoveDropIn),
        Some(_) | None => {}
    }
    let changes = matches!(steps.last(), Some(Step::WriteDropIn(_) | Step::RemoveDropIn));
    if changes || observed.reload_owed {
        steps.push(Step::Reload);
    }
    let over = observed.files.keys().filter(|file| !access.files.contains_key(file));
    let (accounts, others): (Vec<_>, Vec<_>) =
        over.cloned().partition(|file| matches!(file, HostFile::SshPrincipals(_)));
    // Who may no longer log in goes at once, whatever becomes of the rest.
    let mut ordered: Vec<Step> = accounts.into_iter().map(Step::Remove).collect();
    ordered.append(&mut steps);
    ordered.extend(others.into_iter().map(Step::Remove));
    ordered
}

#[cfg(test)]
mod tests;
