//! A kernel in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt};

use super::rules::TABLES;
use super::{FirewallError, HostAddresses, Kernel};
use crate::name::{Bridge, Mac};

#[derive(Default)]
pub struct FakeKernel {
    host: Mutex<Host>,
}

#[derive(Default)]
struct Host {
    text: String,
    /// Of all links that were set.
    links: BTreeMap<String, bool>,
    addresses: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Whom the host takes addresses for.
    neighbours: BTreeMap<IpAddr, Mac>,
    refuses: bool,
}

impl FakeKernel {
    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As somebody else's `nft flush ruleset` does.
    pub fn flush(&self) {
        self.host().text.clear();
    }

    /// What is loaded now.
    pub fn text(&self) -> String {
        self.host().text.clone()
    }

    /// From here on every load is refused, or none is.
    pub fn refuse(&self, refuses: bool) {
        self.host().refuses = refuses;
    }

    pub fn set_addresses(&self, bridge: &Bridge, addresses: impl IntoIterator<Item = IpAddr>) {
        self.host().addresses.insert(bridge.as_str().to_owned(), addresses.into_iter().collect());
    }

    /// The host has spoken with this one.
    pub fn remember(&self, address: IpAddr, mac: Mac) {
        self.host().neighbours.insert(address, mac);
    }

    /// Whom it takes for the address without asking.
    pub fn remembers(&self, address: IpAddr) -> Option<Mac> {
        self.host().neighbours.get(&address).copied()
    }

    /// None for a link that nobody set.
    pub fn is_up(&self, link: &str) -> Option<bool> {
        self.host().links.get(link).copied()
    }
}

/// Rules of one table in the text: what is in a chain and no hook.
fn rules(text: &str, (family, name): (&str, &str)) -> usize {
    let head = format!("table {family} {name} {{");
    let mut lines = text.lines().skip_while(|line| *line != head).skip(1);
    let table = lines.by_ref().take_while(|line| *line != "}");
    table.filter(|line| line.starts_with("    ") && !line.trim_start().starts_with("type ")).count()
}

impl Kernel for FakeKernel {
    fn load<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<(), FirewallError>> {
        let mut host = self.host();
        let loaded = if host.refuses {
            Err(FirewallError::Refused {
                doing: "load the rules of instances",
                said: "told to fail".to_owned(),
            })
        } else {
            text.clone_into(&mut host.text);
            Ok(())
        };
        std::future::ready(loaded).boxed()
    }

    fn count(&self) -> BoxFuture<'_, Result<[usize; 3], FirewallError>> {
        let host = self.host();
        std::future::ready(Ok(TABLES.map(|table| rules(&host.text, table)))).boxed()
    }

    fn set_links<'a>(&'a self, names: &'a [String], up: bool) -> BoxFuture<'a, Result<(), FirewallError>> {
        self.host().links.extend(names.iter().map(|name| (name.clone(), up)));
        std::future::ready(Ok(())).boxed()
    }

    fn forget<'a>(&'a self, neighbours: &'a [(Bridge, IpAddr)]) -> BoxFuture<'a, Result<(), FirewallError>> {
        let mut host = self.host();
        host.neighbours.retain(|known, _| !neighbours.iter().any(|(_, address)| address == known));
        std::future::ready(Ok(())).boxed()
    }

    fn addresses<'a>(
        &'a self,
        bridges: &'a BTreeSet<Bridge>,
    ) -> BoxFuture<'a, Result<HostAddresses, FirewallError>> {
        let host = self.host();
        let of = bridges.iter().filter_map(|bridge| host.addresses.get(bridge.as_str()));
        std::future::ready(Ok(HostAddresses(of.flatten().copied().collect()))).boxed()
    }
}
