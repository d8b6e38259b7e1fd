//! From which addresses an image may come. Its URL is a tenant's, so it must not lead the daemon to where the tenant cannot go
//! itself: to this host, to the networks that the host is in, to what a provider tells its machines.
//!
//! A name is judged by the addresses that are connected to, at that time. What a name was yesterday, or is to somebody else,
//! counts for nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock};

use agent::config::Network;
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::route;

/// More are not tried.
const ADDRESSES_MAX: usize = 16;

/// Whose an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Everybodys,
    /// Of a network apart from the internet: where the host's owner names the network.
    Private(&'static str),
    /// This host's: where its owner names just this address.
    Own(&'static str),
    /// No server's that an image could come from, whoever names it.
    Nobodys(&'static str),
}

use Whose::{Everybodys, Nobodys, Own, Private};

const METADATA: Whose = Nobodys("where a provider keeps what it tells its machines");
const LINK_LOCAL: Whose = Nobodys("a link-local address");
const PRIVATE: Whose = Private("a private address");
const PROTOCOL: Whose = Nobodys("an address of a protocol");

/// The first that holds an address says whose it is (IANA's registries of special-purpose addresses, and what providers say).
const NETWORKS: &[(&str, Whose)] = &[
    ("169.254.169.254/32", METADATA),
    ("168.63.129.16/32", METADATA),
    ("100.100.100.200/32", METADATA),
    ("192.0.0.192/32", METADATA),
    ("fd00:ec2::254/128", METADATA),
    ("fd20:ce::254/128", METADATA),
    ("0.0.0.0/8", Nobodys("no address of a machine")),
    ("10.0.0.0/8", PRIVATE),
    ("100.64.0.0/10", Private("an address inside a provider's network")),
    ("127.0.0.0/8", Own("a loopback address")),
    ("169.254.0.0/16", LINK_LOCAL),
    ("172.16.0.0/12", PRIVATE),
    ("192.0.0.0/24", PROTOCOL),
    ("192.0.2.0/24", Private("an address for documentation")),
    ("192.88.99.0/24", PROTOCOL),
    ("192.168.0.0/16", PRIVATE),
    ("198.18.0.0/15", Private("an address for benchmarks")),
    ("198.51.100.0/24", Private("an address for documentation")),
    ("203.0.113.0/24", Private("an address for documentation")),
    ("224.0.0.0/4", Nobodys("a multicast address")),
    ("255.255.255.255/32", Nobodys("a broadcast address")),
    ("240.0.0.0/4", Nobodys("a reserved address")),
    ("0.0.0.0/0", Everybodys),
    ("::/128", Nobodys("no address of a machine")),
    ("::1/128", Own("a loopback address")),
    ("64:ff9b:1::/48", Nobodys("an address of a translator")),
    ("2001::/32", Nobodys("an address of a tunnel")),
    ("2001::/23", PROTOCOL),
    ("2001:db8::/32", Private("an address for documentation")),
    ("3fff::/20", Private("an address for documentation")),
    ("2000::/3", Everybodys),
    ("fc00::/7", PRIVATE),
    ("fe80::/10", LINK_LOCAL),
    ("fec0::/10", PRIVATE),
    ("ff00::/8", Nobodys("a multicast address")),
    ("::/0", Nobodys("a reserved address")),
];

static WHOSE: LazyLock<Vec<(Network, Whose)>> = LazyLock::new(|| {
    let parsed = |&(text, whose): &(&str, Whose)| (text.parse().expect("they are networks"), whose);
    NETWORKS.iter().map(parsed).collect()
});

fn whose(address: IpAddr) -> Whose {
    let held = WHOSE.iter().find(|(network, _)| network.contains(address));
    held.map_or(Nobodys("an unknown address"), |(_, whose)| *whose)
}

/// The IPv4 address that an IPv6 address leads to: mapped, translated and compatible ones (RFC 4291, RFC 2765), those of NAT64
/// (RFC 6052) and of 6to4 (RFC 3056). Every other address leads to itself.
fn leads_to(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let last = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into();
    match v6.segments() {
        _ if v6.is_unspecified() || v6 == Ipv6Addr::LOCALHOST => address,
        [0, 0, 0, 0, 0 | 0xffff, 0, high, low]
        | [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => last(high, low),
        _ => address,
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum GuardError {
    #[error("{address} is {what}: no image is fetched from there")]
    Never { address: IpAddr, what: &'static str },
    #[error(
        "{address} is {what}, and [instances] image_networks of this host names no network with {network}"
    )]
    NotListed { address: IpAddr, what: &'static str, network: IpAddr },
    #[error("{address} is {what}, and [instances] image_networks of this host does not name {network}")]
    NotNamed { address: IpAddr, what: &'static str, network: String },
    #[error("look up {name:?}")]
    Lookup {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("{name:?} has no address")]
    Nowhere { name: String },
    #[error("every address of {name:?} is refused")]
    Name {
        name: String,
        #[source]
        why: Box<GuardError>,
    },
    #[error("ask the kernel whether {address} is this host's own")]
    Kernel {
        address: IpAddr,
        #[source]
        source: io::Error,
    },
}

impl GuardError {
    /// Somebody must change the URL, its name, or what this host allows.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Never { .. } | Self::NotListed { .. } | Self::NotNamed { .. } => true,
            Self::Name { why, .. } => why.is_lasting(),
            Self::Lookup { .. } | Self::Nowhere { .. } | Self::Kernel { .. } => false,
        }
    }
}

/// What the host knows of names and addresses.
pub trait Lookup: Send + Sync + 'static {
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
    /// Whether what is sent there stays on this host.
    fn is_own(&self, address: IpAddr) -> io::Result<bool>;
}

/// As the system resolves and routes.
pub struct HostLookup;

impl Lookup for HostLookup {
    fn addresses<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let found = tokio::net::lookup_host((name, 0));
        async move { Ok(found.await?.map(|address| address.ip()).collect()) }.boxed()
    }

    fn is_own(&self, address: IpAddr) -> io::Result<bool> {
        route::is_own(address)
    }
}

/// Resolves names for a client, which connects to what it is told here and to nothing else.
pub struct Guard {
    lookup: Arc<dyn Lookup>,
    listed: Vec<Network>,
}

impl Guard {
    /// `listed` are networks that the host's owner has images in.
    pub fn new(lookup: Arc<dyn Lookup>, listed: Vec<Network>) -> Self {
        Self { lookup, listed }
    }

    /// Whether an image may come from this address.
    pub(super) fn admit(&self, address: IpAddr) -> Result<(), GuardError> {
        let seen = leads_to(address);
        let of_kernel = |source| GuardError::Kernel { address, source };
        let whose = match whose(seen) {
            never @ Nobodys(_) => never,
            _ if self.lookup.is_own(seen).map_err(of_kernel)? => Own("this host's own address"),
            _ if seen != address && self.lookup.is_own(address).map_err(of_kernel)? => {
                Own("this host's own address")
            }
            known => known,
        };
        let mut listed = self.listed.iter().filter(|network| network.contains(seen));
        match whose {
            Everybodys => Ok(()),
            Private(_) if listed.next().is_some() => Ok(()),
            Own(_) if listed.any(|network| network.is_single()) => Ok(()),
            Private(what) => Err(GuardError::NotListed { address, what, network: seen }),
            Own(what) => {
                let bits = if seen.is_ipv4() { 32 } else { 128 };
                Err(GuardError::NotNamed { address, what, network: format!("{seen}/{bits}") })
            }
            Nobodys(what) => Err(GuardError::Never { address, what }),
        }
    }

    /// Those of a name that are admitted.
    async fn admitted(&self, name: &str) -> Result<Vec<IpAddr>, GuardError> {
        let named = || name.to_owned();
        let found = self.lookup.addresses(name).await;
        let found = found.map_err(|source| GuardError::Lookup { name: named(), source })?;
        let (mut admitted, mut refused) = (Vec::new(), None);
        for address in found.into_iter().take(ADDRESSES_MAX) {
            match self.admit(address) {
                Ok(()) => admitted.push(address),
                Err(err) => refused = refused.or(Some(err)),
            }
        }
        match refused {
            _ if !admitted.is_empty() => Ok(admitted),
            Some(why) => Err(GuardError::Name { name: named(), why: Box::new(why) }),
            None => Err(GuardError::Nowhere { name: named() }),
        }
    }
}

/// What a client asks when it connects.
#[derive(Clone)]
pub(super) struct Resolver(pub Arc<Guard>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.0.clone();
        Box::pin(async move {
            let admitted = guard.admitted(name.as_str()).await?;
            // The client puts its URL's port in the place of none.
            let addresses: Addrs = Box::new(admitted.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
