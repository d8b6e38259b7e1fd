//! The host's kernel, by `nft` and `ip`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use hw::{CommandError, CommandOutput, Commands};
use kit::fs;
use serde::Deserialize;

use super::rules::TABLES;
use super::{FirewallError, HostAddresses, Kernel};
use crate::libvirt::said;
use crate::name::Bridge;

const NFT: &str = "nft";
const IP: &str = "ip";
const RULES: &str = "rules.nft";
const LINKS: &str = "links.ip";
const NEIGHBOURS: &str = "neighbours.ip";

pub struct Nft {
    commands: Arc<dyn Commands>,
    /// Where what is loaded is written first: both programs read it from a file.
    dir: PathBuf,
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

/// One of many kinds of objects.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    table: Option<Table>,
    #[serde(default)]
    rule: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Table {
    family: String,
    name: String,
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    addr_info: Vec<LinkAddress>,
}

#[derive(Deserialize)]
struct LinkAddress {
    local: Option<IpAddr>,
}

impl Nft {
    /// `dir` is the daemon's own.
    pub fn new(commands: Arc<dyn Commands>, dir: PathBuf) -> Self {
        Self { commands, dir }
    }

    async fn run(
        &self,
        doing: &'static str,
        program: &str,
        words: &[&str],
    ) -> Result<CommandOutput, FirewallError> {
        self.commands.run(program, words).await.map_err(|err| match err {
            CommandError::NotFound { .. } => FirewallError::Missing { doing, said: kit::chain(&err) },
            CommandError::PermissionDenied { .. }
            | CommandError::TimedOut { .. }
            | CommandError::TooMuchOutput { .. }
            | CommandError::Io { .. } => FirewallError::Refused { doing, said: kit::chain(&err) },
        })
    }

    /// With `text` in a file of which the name is the last word.
    async fn run_file(
        &self,
        doing: &'static str,
        program: &str,
        words: &[&str],
        (name, text): (&str, &str),
    ) -> Result<CommandOutput, FirewallError> {
        let path = self.dir.join(name);
        let written =
            fs::create_dir(&self.dir, 0o700).and_then(|()| fs::write_atomic(&path, text.as_bytes(), 0o600));
        written.map_err(|source| FirewallError::Files { doing, source })?;
        let path = path.to_str().ok_or(FirewallError::Unreadable { doing })?;
        self.run(doing, program, &[words, &[path]].concat()).await
    }

    /// Has `ip` do each line. It goes on past what is not there, and says that it had to.
    async fn batch(&self, doing: &'static str, file: (&str, &str)) -> Result<(), FirewallError> {
        let done = self.run_file(doing, IP, &["-force", "-batch"], file).await;
        // Nobody reads it again, and the next one is written anew.
        let _ = std::fs::remove_file(self.dir.join(file.0));
        done.map(drop)
    }

    async fn list(&self, words: &[&str]) -> Result<Vec<Object>, FirewallError> {
        let doing = "count the rules of instances";
        let listed = self.run(doing, NFT, &[&["-j", "list"], words].concat()).await?;
        if !listed.success() {
            return Err(FirewallError::Refused { doing, said: said(&listed.stderr) });
        }
        let listing: Result<Listing, _> = serde_json::from_slice(&listed.stdout);
        listing.map(|listing| listing.nftables).map_err(|_| FirewallError::Unreadable { doing })
    }

    /// None of a table that is not among those that are there.
    async fn rules_of(&self, there: &[Object], family: &str, name: &str) -> Result<usize, FirewallError> {
        let is_it = |table: &Table| table.family == family && table.name == name;
        if !there.iter().filter_map(|object| object.table.as_ref()).any(is_it) {
            return Ok(0);
        }
        let objects = self.list(&["table", family, name]).await?;
        Ok(objects.iter().filter(|object| object.rule.is_some()).count())
    }
}

impl Kernel for Nft {
    fn load<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<(), FirewallError>> {
        Box::pin(async move {
            let doing = "load the rules of instances";
            let loaded = self.run_file(doing, NFT, &["-f"], (RULES, text)).await?;
            match loaded.success() {
                true => Ok(()),
                false => Err(FirewallError::Refused { doing, said: said(&loaded.stderr) }),
            }
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<[usize; 3], FirewallError>> {
        Box::pin(async move {
            // What nft says of a table that is not there it says in words, and fails for other reasons too.
            let there = &self.list(&["tables"]).await?;
            let [a, b, c] = TABLES.map(|(family, name)| self.rules_of(there, family, name));
            let (a, b, c) = futures::try_join!(a, b, c)?;
            Ok([a, b, c])
        })
    }

    fn set_links<'a>(&'a self, names: &'a [String], up: bool) -> BoxFuture<'a, Result<(), FirewallError>> {
        Box::pin(async move {
            if names.is_empty() {
                return Ok(());
            }
            let doing = if up { "set taps up" } else { "set taps down" };
            let state = if up { "up" } else { "down" };
            let lines: String = names.iter().map(|name| format!("link set dev {name} {state}\n")).collect();
            self.batch(doing, (LINKS, &lines)).await
        })
    }

    fn forget<'a>(&'a self, neighbours: &'a [(Bridge, IpAddr)]) -> BoxFuture<'a, Result<(), FirewallError>> {
        Box::pin(async move {
            if neighbours.is_empty() {
                return Ok(());
            }
            let lines: String = neighbours
                .iter()
                .map(|(bridge, address)| format!("neigh del {address} dev {}\n", bridge.as_str()))
                .collect();
            self.batch("forget neighbours", (NEIGHBOURS, &lines)).await
        })
    }

    fn addresses<'a>(
        &'a self,
        bridges: &'a BTreeSet<Bridge>,
    ) -> BoxFuture<'a, Result<HostAddresses, FirewallError>> {
        Box::pin(async move {
            let doing = "list the host's addresses";
            let mut all = BTreeSet::new();
            for bridge in bridges {
                let listed =
                    self.run(doing, IP, &["-json", "address", "show", "dev", bridge.as_str()]).await?;
                if !listed.success() {
                    continue;
                }
                let links: Vec<Link> = serde_json::from_slice(&listed.stdout)
                    .map_err(|_| FirewallError::Unreadable { doing })?;
                all.extend(
                    links.into_iter().flat_map(|link| link.addr_info).filter_map(|address| address.local),
                );
            }
            Ok(HostAddresses(all))
        })
    }
}
