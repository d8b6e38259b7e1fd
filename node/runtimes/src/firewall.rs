//! What may pass the cards of instances, as rules of the host's kernel, and whether they are there.
//!
//! ```text
//!   guards --> Ruleset --load--> three tables --counted--> trusted
//!                 ^                                           |
//!                 |    taps down, loaded anew, taps up        | every 5 s, and at each change that
//!                 +-------------------------------------------+ somebody makes of one of the tables
//! ```
//!
//! Rules go by a tap's name, which is known before the tap is there: they are loaded before an instance starts. Somebody who
//! flushes them takes them from everybody, so a guarded tap is down as long as its rules are not what was loaded.

mod fake;
mod kernel;
mod rules;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use kit::Clock;

use crate::name::Bridge;

pub use fake::FakeKernel;
pub use kernel::Nft;
pub use rules::{Guard, HostAddresses, NetworkPolicy, Ruleset};
pub use watch::Changes;

/// How often rules are counted with nobody saying that they changed.
pub const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A socket that fails again and again is not asked without a pause.
const MISSED_PAUSE: Duration = Duration::from_millis(100);

/// The kernel's side: tables, links and addresses of the host.
pub trait Kernel: Send + Sync {
    /// Puts these tables in the place of those of the same names, all of it or nothing.
    fn load<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<(), FirewallError>>;

    /// How many rules each of our tables has, in the order of [`rules::TABLES`]. A table that is not there has none.
    fn count(&self) -> BoxFuture<'_, Result<[usize; 3], FirewallError>>;

    /// Sets links up or down. One that is not there is left out.
    fn set_links<'a>(&'a self, names: &'a [String], up: bool) -> BoxFuture<'a, Result<(), FirewallError>>;

    /// Has the host ask anew whose these addresses are, each on its bridge. One of which it remembers nothing is left out.
    fn forget<'a>(&'a self, neighbours: &'a [(Bridge, IpAddr)]) -> BoxFuture<'a, Result<(), FirewallError>>;

    /// The host's own addresses on these bridges. A bridge that is not there has none.
    fn addresses<'a>(
        &'a self,
        bridges: &'a BTreeSet<Bridge>,
    ) -> BoxFuture<'a, Result<HostAddresses, FirewallError>>;
}

#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    #[error("{doing}: {said}; install nftables and iproute2")]
    Missing { doing: &'static str, said: String },
    #[error("{doing}: {said}")]
    Refused { doing: &'static str, said: String },
    #[error("{doing}: what it says is not understood")]
    Unreadable { doing: &'static str },
    #[error("load the rules of instances: the kernel has {found:?} of {loaded:?} rules")]
    NotAsLoaded { loaded: [usize; 3], found: [usize; 3] },
    #[error("{doing}")]
    Files {
        doing: &'static str,
        #[source]
        source: kit::fs::FsError,
    },
    #[error("listen for changes of rules")]
    Listen(#[source] std::io::Error),
}

/// What a look at the rules found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// Nothing was loaded yet.
    Nothing,
    AsLoaded,
    /// Somebody had changed them. Links were down for so long.
    Restored {
        after: Duration,
    },
}

/// The rules of this host's instances. One for a host.
pub struct Firewall {
    kernel: Arc<dyn Kernel>,
    clock: Arc<dyn Clock>,
    /// Held for as long as anything is changed, so that a look never sees half of a load.
    loaded: tokio::sync::Mutex<Option<Loaded>>,
    /// Read by those who dial instances; empty while rules are not what was loaded.
    bound: Mutex<Arc<BTreeMap<IpAddr, String>>>,
}

struct Loaded {
    ruleset: Ruleset,
    /// Guarded taps are down, since the rules could not be loaded again.
    down: bool,
}

impl Firewall {
    pub fn new(kernel: Arc<dyn Kernel>, clock: Arc<dyn Clock>) -> Self {
        Self { kernel, clock, loaded: tokio::sync::Mutex::new(None), bound: Mutex::default() }
    }

    /// The tap that each guarded address is bound to, by rules that are there. An address of two taps is of neither.
    pub fn bound(&self) -> Arc<BTreeMap<IpAddr, String>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn trust(&self, bound: BTreeMap<IpAddr, String>) {
        *self.bound.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(bound);
    }

    /// Has the kernel guard these cards and no others. It is done when the rules are there, and counted.
    ///
    /// # Errors
    /// When they are not: what was loaded before is still there, or nothing is trusted.
    pub async fn guard(&self, guards: &[Guard]) -> Result<(), FirewallError> {
        let mut loaded = self.loaded.lock().await;
        let bridges = guards.iter().map(|guard| guard.bridge.clone()).collect();
        let host = self.kernel.addresses(&bridges).await?;
        let ruleset = Ruleset::of(guards, &host);
        let same = loaded.as_ref().is_some_and(|loaded| loaded.ruleset == ruleset && !loaded.down);
        if same && self.kernel.count().await? == ruleset.counts() {
            return Ok(());
        }
        self.put(&ruleset).await?;
        // An address that was another card's a moment ago is remembered with that one's MAC for up to a minute.
        let before = loaded.as_ref().map(|loaded| loaded.ruleset.bound()).unwrap_or_default();
        let moved: Vec<(Bridge, IpAddr)> = guards
            .iter()
            .flat_map(|guard| guard.addresses.iter().map(move |cidr| (guard, cidr.address())))
            .filter(|(guard, address)| before.get(address) != Some(&guard.tap))
            .map(|(guard, address)| (guard.bridge.clone(), address))
            .collect();
        let was_down = loaded.replace(Loaded { ruleset, down: false }).is_none_or(|loaded| loaded.down);
        // Without it an address is found later, and no rule is less there.
        if let Err(err) = self.kernel.forget(&moved).await {
            tracing::warn!(
                err = kit::chain(&err),
                "the host may take addresses of instances for others' for a while"
            );
        }
        // Also those that an earlier process of the daemon had set down.
        if was_down && let Some(Loaded { ruleset, down }) = &mut *loaded {
            *down = true;
            self.kernel.set_links(ruleset.taps(), true).await?;
            *down = false;
        }
        Ok(())
    }

    /// Whether the rules are what was loaded; where they are not, guarded taps are down until they are again.
    pub async fn check(&self) -> Result<Checked, FirewallError> {
        let mut loaded = self.loaded.lock().await;
        let Some(Loaded { ruleset, down }) = &mut *loaded else { return Ok(Checked::Nothing) };
        // Who cannot count knows nothing, and cuts nobody off for that.
        let found = self.kernel.count().await?;
        if !*down && found == ruleset.counts() {
            return Ok(Checked::AsLoaded);
        }
        let since = self.clock.monotonic();
        self.trust(BTreeMap::new());
        // Down first: what passes meanwhile passes unguarded.
        *down = true;
        let set_down = self.kernel.set_links(ruleset.taps(), false).await;
        let down_after = self.clock.monotonic().saturating_sub(since);
        self.put(ruleset).await?;
        set_down?;
        self.kernel.set_links(ruleset.taps(), true).await?;
        *down = false;
        let after = self.clock.monotonic().saturating_sub(since);
        tracing::warn!(
            ?found, loaded = ?ruleset.counts(), down_after_ms = down_after.as_millis(),
            restored_after_ms = after.as_millis(), "the rules of instances had been changed and were loaded again"
        );
        Ok(Checked::Restored { after })
    }

    async fn put(&self, ruleset: &Ruleset) -> Result<(), FirewallError> {
        self.kernel.load(ruleset.text()).await?;
        let found = self.kernel.count().await?;
        if found != ruleset.counts() {
            self.trust(BTreeMap::new());
            return Err(FirewallError::NotAsLoaded { loaded: ruleset.counts(), found });
        }
        self.trust(ruleset.bound());
        Ok(())
    }

    /// Looks at each change and every [`CHECK_EVERY`], until it is dropped.
    pub async fn watch(&self, mut changes: Changes) {
        loop {
            // Both arms are cancel-safe: a change that is not read stays in the socket.
            tokio::select! {
                heard = changes.next() => {
                    if let Err(err) = heard {
                        // A socket that overflowed has lost changes, which a look makes up for.
                        tracing::debug!(err = kit::chain(&err), "changes of rules were missed");
                        self.clock.sleep(MISSED_PAUSE).await;
                    }
                }
                () = self.clock.sleep(CHECK_EVERY) => {}
            }
            self.look().await;
        }
    }

    /// The same without anybody who tells of changes.
    pub async fn watch_blindly(&self) {
        loop {
            self.clock.sleep(CHECK_EVERY).await;
            self.look().await;
        }
    }

    async fn look(&self) {
        if let Err(err) = self.check().await {
            tracing::warn!(err = kit::chain(&err), "failed to look at the rules of instances");
        }
    }
}

#[cfg(test)]
mod tests;
