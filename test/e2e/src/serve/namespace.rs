//! A network of its own for one process, joined to this one by two wires: one that stays and one that can be cut.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::bail;

/// A hardware address nobody has: what is sent there is lost, and nobody is told.
const NOBODY: &str = "02:00:00:00:00:99";

static NEXT: AtomicU8 = AtomicU8::new(1);

pub struct Namespace {
    name: String,
    kept: Wire,
    cut: Wire,
}

struct Wire {
    outside: Ipv4Addr,
    inside: Ipv4Addr,
    device: String,
}

impl Namespace {
    /// `None`, said aloud, where this user may make none.
    pub fn new() -> anyhow::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return Ok(None);
        }
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let tag = std::process::id() % 64;
        let wire = |device: &str, third: u32| {
            // 10.200.0.0/16 and its neighbours are private and rarely used.
            let second = 192 + u8::try_from(tag).unwrap_or(0);
            let third = u8::try_from(third).unwrap_or(0);
            Wire {
                outside: Ipv4Addr::new(10, second, third, 1),
                inside: Ipv4Addr::new(10, second, third, 2),
                device: format!("bce{device}{}-{nth}", std::process::id()),
            }
        };
        let namespace = Self {
            name: format!("bc-e2e-{}-{nth}", std::process::id()),
            kept: wire("k", u32::from(nth) * 2),
            cut: wire("c", u32::from(nth) * 2 + 1),
        };
        ip(&["netns", "add", &namespace.name])?;
        namespace.inside(&["link", "set", "lo", "up"])?;
        for wire in [&namespace.kept, &namespace.cut] {
            let peer = wire.peer();
            ip(&[
                "link",
                "add",
                &wire.device,
                "type",
                "veth",
                "peer",
                "name",
                &peer,
                "netns",
                &namespace.name,
            ])?;
            ip(&["addr", "add", &format!("{}/30", wire.outside), "dev", &wire.device])?;
            ip(&["link", "set", &wire.device, "up"])?;
            namespace.inside(&["addr", "add", &format!("{}/30", wire.inside), "dev", &peer])?;
            namespace.inside(&["link", "set", &peer, "up"])?;
        }
        Ok(Some(namespace))
    }

    /// Where it is reached from outside, for good.
    pub fn address(&self) -> Ipv4Addr {
        self.kept.inside
    }

    /// What it reaches outside over the wire that can be cut.
    pub fn outside(&self) -> Ipv4Addr {
        self.cut.outside
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Loses everything on that wire, both ways, without a word to either end.
    pub fn cut(&self) -> anyhow::Result<()> {
        let (peer, wire) = (self.cut.peer(), &self.cut);
        let outside = wire.outside.to_string();
        self.inside(&["neigh", "replace", &outside, "lladdr", NOBODY, "dev", &peer, "nud", "permanent"])?;
        let inside = wire.inside.to_string();
        ip(&["neigh", "replace", &inside, "lladdr", NOBODY, "dev", &wire.device, "nud", "permanent"])
    }

    pub fn mend(&self) -> anyhow::Result<()> {
        let (peer, wire) = (self.cut.peer(), &self.cut);
        self.inside(&["neigh", "del", &wire.outside.to_string(), "dev", &peer])?;
        ip(&["neigh", "del", &wire.inside.to_string(), "dev", &wire.device])
    }

    fn inside(&self, args: &[&str]) -> anyhow::Result<()> {
        ip(&[&["-n", self.name.as_str()], args].concat())
    }
}

impl Wire {
    fn peer(&self) -> String {
        format!("{}p", self.device)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The wires go with their inner ends.
        let _ = ip(&["link", "del", &self.kept.device]);
        let _ = ip(&["link", "del", &self.cut.device]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(args).output()?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
