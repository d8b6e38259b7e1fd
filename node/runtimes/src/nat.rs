//! A network for instances on a host that has none for them: a bridge of the daemon's own, on which the host is the router and
//! speaks to the world in their name.
//!
//! The host's address is the gateway of the instances' pool, so nothing is configured here but the bridge's name. It is there
//! while an instance is to have a card on it, and goes with the last.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hw::{CommandError, CommandOutput, Commands};
use kit::fs;
use serde::Deserialize;

use crate::libvirt::said;
use crate::name::{Bridge, Cidr};
use crate::network;

const IP: &str = "ip";
const NFT: &str = "nft";
const RULES: &str = "nat.nft";
const TABLE: &str = "bcd_nat";
/// Whether this host passes on what is not for itself.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// Says of a bridge that it is ours: what has not got it was made by somebody else.
const ALIAS: &str = "better-compute: instances";

#[derive(Debug, thiserror::Error)]
pub enum NatError {
    #[error("{doing} {bridge}: {said}")]
    Refused { doing: &'static str, bridge: String, said: String },
    #[error(
        "use bridge {bridge} for instances: it is there and not the daemon's; name another in [instances] nat_bridge"
    )]
    Foreign { bridge: String },
    #[error("let the host pass on what instances send")]
    Forwarding(#[source] std::io::Error),
    #[error("write the rules of bridge {bridge}")]
    Rules {
        bridge: String,
        #[source]
        source: fs::FsError,
    },
}

pub struct NatBridge {
    bridge: Bridge,
    commands: Arc<dyn Commands>,
    /// Where rules are written for nft to read.
    dir: PathBuf,
    /// The network in which instances are, when it is not this process's.
    namespace: Option<PathBuf>,
    /// What this process has seen to last: the same again costs one look.
    done: tokio::sync::Mutex<Option<BTreeSet<Cidr>>>,
}

#[derive(Deserialize)]
struct Link {
    #[serde(default)]
    ifalias: String,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    local: Option<IpAddr>,
}

impl NatBridge {
    /// `dir` is the daemon's own. `commands` run in `namespace`, where there is one.
    pub fn new(
        bridge: Bridge,
        commands: Arc<dyn Commands>,
        dir: PathBuf,
        namespace: Option<PathBuf>,
    ) -> Self {
        Self { bridge, commands, dir, namespace, done: tokio::sync::Mutex::new(None) }
    }

    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// The bridge is there, with these as the host's addresses, each the gateway of its network; without any it goes.
    pub async fn ensure(&self, gateways: &BTreeSet<Cidr>) -> Result<(), NatError> {
        let mut done = self.done.lock().await;
        let found = self.look().await?;
        if gateways.is_empty() {
            if found.is_some() {
                self.remove().await?;
            }
            *done = Some(BTreeSet::new());
            return Ok(());
        }
        let has = |cidr: &Cidr| found.as_ref().is_some_and(|addresses| addresses.contains(&cidr.address()));
        if done.as_ref() == Some(gateways) && gateways.iter().all(has) && self.is_loaded(gateways).await? {
            return Ok(());
        }
        *done = None;
        if found.is_none() {
            self.make().await?;
        }
        for cidr in gateways {
            self.ip(
                "give an address to",
                &["address", "replace", &cidr.to_string(), "dev", self.bridge.as_str()],
            )
            .await?;
        }
        self.ip("set up", &["link", "set", "dev", self.bridge.as_str(), "up"]).await?;
        self.let_pass(gateways)?;
        self.load(gateways).await?;
        *done = Some(gateways.clone());
        Ok(())
    }

    /// The host's addresses on the bridge, when it is there.
    async fn look(&self) -> Result<Option<BTreeSet<IpAddr>>, NatError> {
        let name = self.bridge.as_str();
        // Of a link only `link` tells the alias, and only `address` the addresses.
        let link = self.run("look at", IP, &["-json", "link", "show", "dev", name]).await?;
        if !link.success() {
            return Ok(None);
        }
        if links(&link).iter().any(|link| link.ifalias != ALIAS) {
            return Err(NatError::Foreign { bridge: name.to_owned() });
        }
        let shown = self.run("look at", IP, &["-json", "address", "show", "dev", name]).await?;
        let addresses = links(&shown).into_iter().flat_map(|link| link.addr_info);
        Ok(shown.success().then(|| addresses.filter_map(|address| address.local).collect()))
    }

    /// Whether the rules are there, and the host passes things on: either may have been taken away by others.
    async fn is_loaded(&self, gateways: &BTreeSet<Cidr>) -> Result<bool, NatError> {
        self.let_pass(gateways)?;
        let listed = self.run("look at the rules of", NFT, &["list", "table", "ip", TABLE]).await?;
        let rules = String::from_utf8_lossy(&listed.stdout).matches("masquerade").count();
        Ok(listed.success() && rules == gateways.len())
    }

    async fn make(&self) -> Result<(), NatError> {
        let name = self.bridge.as_str();
        // One that is cut short here has no alias, and is in the way: it goes at once.
        self.ip(
            "make",
            &[
                "link",
                "add",
                "name",
                name,
                "type",
                "bridge",
                "stp_state",
                "0",
                "forward_delay",
                "0",
                "no_linklocal_learn",
                "1",
            ],
        )
        .await?;
        let marked = self.ip("mark", &["link", "set", "dev", name, "alias", ALIAS]).await;
        if marked.is_err() {
            let _ = self.ip("remove", &["link", "delete", "dev", name]).await;
        }
        marked
    }

    async fn remove(&self) -> Result<(), NatError> {
        let gone = format!("table ip {TABLE}\ndelete table ip {TABLE}\n");
        self.nft(&gone).await?;
        // Before the bridge goes, by which it is seen that something is left to be done.
        fs::remove_if_present(&self.dir.join(RULES))
            .map_err(|source| NatError::Rules { bridge: self.bridge.as_str().to_owned(), source })?;
        self.ip("remove", &["link", "delete", "dev", self.bridge.as_str()]).await
    }

    fn let_pass(&self, gateways: &BTreeSet<Cidr>) -> Result<(), NatError> {
        if gateways.is_empty() {
            return Ok(());
        }
        // Which host's it is, goes by the thread that opens it.
        let changed = network::within(self.namespace.as_deref(), || {
            let is_off = std::fs::read(FORWARDING)?.starts_with(b"0");
            if is_off {
                std::fs::write(FORWARDING, "1\n")?;
            }
            Ok(is_off)
        });
        if changed.map_err(NatError::Forwarding)? {
            tracing::info!("this host passes on what its instances send from here on");
        }
        Ok(())
    }

    async fn load(&self, gateways: &BTreeSet<Cidr>) -> Result<(), NatError> {
        self.nft(&rules(&self.bridge, gateways)).await
    }

    async fn nft(&self, text: &str) -> Result<(), NatError> {
        let bridge = || self.bridge.as_str().to_owned();
        let path = self.dir.join(RULES);
        let written =
            fs::create_dir(&self.dir, 0o700).and_then(|()| fs::write_atomic(&path, text.as_bytes(), 0o600));
        written.map_err(|source| NatError::Rules { bridge: bridge(), source })?;
        let doing = "load the rules of";
        let loaded = self.run(doing, NFT, &["-f", &path.to_string_lossy()]).await?;
        match loaded.success() {
            true => Ok(()),
            false => Err(NatError::Refused { doing, bridge: bridge(), said: said(&loaded.stderr) }),
        }
    }

    async fn ip(&self, doing: &'static str, words: &[&str]) -> Result<(), NatError> {
        let done = self.run(doing, IP, words).await?;
        match done.success() {
            true => Ok(()),
            false => Err(NatError::Refused {
                doing,
                bridge: self.bridge.as_str().to_owned(),
                said: said(&done.stderr),
            }),
        }
    }

    async fn run(
        &self,
        doing: &'static str,
        program: &str,
        words: &[&str],
    ) -> Result<CommandOutput, NatError> {
        let refused = |err: CommandError| NatError::Refused {
            doing,
            bridge: self.bridge.as_str().to_owned(),
            said: format!("{}; install iproute2 and nftables", kit::chain(&err)),
        };
        self.commands.run(program, words).await.map_err(refused)
    }
}

fn links(shown: &CommandOutput) -> Vec<Link> {
    serde_json::from_slice(&shown.stdout).unwrap_or_default()
}

/// What instances send into the world is the host's there.
fn rules(bridge: &Bridge, gateways: &BTreeSet<Cidr>) -> String {
    let networks: BTreeSet<String> = gateways.iter().map(|cidr| cidr.network().to_string()).collect();
    let name = bridge.as_str();
    let masquerade: String = networks
        .iter()
        .map(|network| {
            format!("    ip saddr {network} ip daddr != {network} oifname != \"{name}\" masquerade\n")
        })
        .collect();
    format!(
        "table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n  chain postrouting {{\n    type nat hook postrouting \
         priority 100; policy accept;\n{masquerade}  }}\n}}\n"
    )
}

#[cfg(test)]
mod tests;
