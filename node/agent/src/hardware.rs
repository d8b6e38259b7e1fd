//! What the agent asks of the machine it runs on. Small ports, each with a fake.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::BoxFuture;
use wire::proto::agent::Pressure;

use crate::converge::Fact;

/// One section of the inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventorySection {
    /// SHA-256 of `json`, lowercase hex.
    pub hash: String,
    /// Canonical JSON of at most 1 MiB.
    pub json: Bytes,
}

/// Readings, as last taken: every call returns at once. Whoever refreshes them tells the agent through its handle.
pub trait Hardware: Send + Sync + 'static {
    /// The sections there are, by name, with their hashes.
    fn inventory_hashes(&self) -> BTreeMap<String, String>;
    fn inventory_section(&self, name: &str) -> Option<InventorySection>;
    /// The full set of facts the readers know; what is missing is gone.
    fn conditions(&self) -> Vec<Fact>;
    fn pressure(&self) -> Option<Pressure>;
    /// Names like `devices.limits`, advertised in Hello.
    fn capabilities(&self) -> Vec<String>;
}

/// What ends the process or the machine.
pub trait Host: Send + Sync + 'static {
    /// Reboots. `Ok` means that the machine is on its way down; the process may still run for a while.
    fn reboot(&self, reason: &str) -> BoxFuture<'static, Result<(), String>>;
}

/// A machine of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHardware;

impl Hardware for NoHardware {
    fn inventory_hashes(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn inventory_section(&self, _name: &str) -> Option<InventorySection> {
        None
    }

    fn conditions(&self) -> Vec<Fact> {
        Vec::new()
    }

    fn pressure(&self) -> Option<Pressure> {
        None
    }

    fn capabilities(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A host that cannot be rebooted from here.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn reboot(&self, _reason: &str) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(futures::future::ready(Err("this daemon cannot reboot its host".into())))
    }
}
