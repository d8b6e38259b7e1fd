//! Tickets: whether somebody is let in, and to what. Pure checks, in an order that is part of the protocol.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use model::{InstanceId, NodeId, Timestamp, TunnelId};
use pki::Pin;
use pki::Purpose;
use pki::worker::CommandVerifier;
use wire::proto::agent::{ExecTicket, TunnelOp};

use crate::link::Credentials;

/// Server time is known to within a round trip.
const EARLY_ALLOWANCE: Duration = Duration::from_secs(5);
/// No ticket is good for longer than a working day, whoever signed it.
const LASTS_MAX: Duration = Duration::from_secs(13 * 3600);
const USER_CHARS_MAX: usize = 128;

/// What a ticket lets somebody reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A shell of this node.
    NodeConsole,
    /// The SSH server of this node.
    NodePort(u16),
    /// The serial console of an instance.
    Console(InstanceId),
    /// A TCP port of an instance.
    Port(InstanceId, u16),
}

/// A ticket that is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    pub tunnel_id: TunnelId,
    pub target: Target,
    /// The key by which the other end is known inside the tunnel.
    pub client: Pin,
    /// Who asked, for the log.
    pub user: String,
    /// The last moment it may be used.
    pub open_until: Timestamp,
    /// What is open then is closed.
    pub ends_at: Timestamp,
}

/// Why nobody is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// As the ticket says; empty when it cannot be read.
    pub tunnel_id: String,
    /// One stable word.
    pub reason: &'static str,
    pub message: String,
}

/// What the checks need to know of the node.
pub struct Facts<'a> {
    pub node_id: NodeId,
    /// The highest deployment epoch of intent this node verified.
    pub deployment_epoch: u64,
    /// Server time.
    pub now: Timestamp,
    pub verifier: &'a CommandVerifier,
}

/// Whether to believe a ticket. Whether it was used before is for the journal to say.
pub fn judge(facts: &Facts<'_>, bytes: &[u8]) -> Result<Ticket, Refused> {
    let (signed, ticket) = wire::tunnel::ticket(bytes).map_err(|err| Refused {
        tunnel_id: String::new(),
        reason: "malformed",
        message: err.to_string(),
    })?;
    let refuse = |reason, message: &str| Refused {
        tunnel_id: ticket.tunnel_id.clone(),
        reason,
        message: message.to_owned(),
    };
    if ticket.node_id != facts.node_id.to_string() {
        return Err(refuse("other-node", "the ticket is for another node"));
    }
    let signature = signed.signature.as_ref().map_or(&[][..], |signature| &signature.value);
    facts
        .verifier
        .verify_bytes(Purpose::ExecTicket, &signed.ticket, signature, facts.now)
        .map_err(|refused| refuse("bad-signature", &refused.to_string()))?;
    if ticket.deployment_epoch < facts.deployment_epoch {
        return Err(refuse("stale", "the ticket is of an older deployment epoch than this node has seen"));
    }
    let open_until = at(ticket.open_until_ms);
    if facts.now > open_until {
        return Err(refuse("expired", "the ticket's time is over"));
    }
    if facts.now.saturating_add(EARLY_ALLOWANCE) < at(ticket.not_before_ms) {
        return Err(refuse("early", "the ticket's time has not come"));
    }
    let ends_at = at(ticket.ends_at_ms);
    if ends_at <= facts.now || ends_at.since(facts.now) > LASTS_MAX {
        return Err(refuse("malformed", "the ticket lasts longer than any may, or not at all"));
    }
    let tunnel_id = ticket.tunnel_id.parse().map_err(|_| refuse("malformed", "it names no tunnel"))?;
    let key: Result<[u8; 32], _> = ticket.client_key_sha256.as_ref().try_into();
    let client = Pin::from_bytes(key.map_err(|_| refuse("malformed", "it names no key of the other end"))?);
    let target =
        target(&ticket).ok_or_else(|| refuse("unsupported", "this daemon does not know what it is for"))?;
    let user = ticket.user.chars().filter(|c| !c.is_control()).take(USER_CHARS_MAX).collect();
    Ok(Ticket { tunnel_id, target, client, user, open_until, ends_at })
}

fn target(ticket: &ExecTicket) -> Option<Target> {
    let port = u16::try_from(ticket.port).ok().filter(|port| *port > 0);
    if ticket.instance_id.is_empty() {
        return match ticket.op() {
            TunnelOp::Console => Some(Target::NodeConsole),
            TunnelOp::Ssh => Some(Target::NodePort(port?)),
            TunnelOp::Tcp | TunnelOp::Unspecified => None,
        };
    }
    let instance: InstanceId = ticket.instance_id.parse().ok()?;
    match ticket.op() {
        TunnelOp::Console => Some(Target::Console(instance)),
        TunnelOp::Ssh | TunnelOp::Tcp => Some(Target::Port(instance, port?)),
        TunnelOp::Unspecified => None,
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// A tunnel to be opened.
#[derive(Debug, Clone)]
pub struct Order {
    pub ticket: Ticket,
    /// Where the gateway is that waits, when that is not where the session is.
    pub address: Option<String>,
    pub credentials: Credentials,
    /// What is left of its time.
    pub lasts: Duration,
    pub refusals: Refusals,
}

/// Where it is said that a tunnel did not come about, for the gateway that waits for it. Cheap to clone.
#[derive(Clone)]
pub struct Refusals(Arc<dyn Fn(Refused) + Send + Sync>);

impl Refusals {
    pub fn new(tell: impl Fn(Refused) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Whoever waits is told in vain when the session is gone, and waits no longer than it does anyway.
    pub fn tell(&self, refused: Refused) {
        (self.0)(refused);
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusals")
    }
}

/// What opens tunnels.
pub trait Tunnels: Send + Sync + 'static {
    /// Begins one, which goes on by itself. False when there are too many.
    fn open(&self, order: Order) -> bool;

    /// Closes all of them: this node is trusted no more.
    fn close_all(&self);
}

/// Lets nobody in.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTunnels;

impl Tunnels for NoTunnels {
    fn open(&self, _: Order) -> bool {
        false
    }

    fn close_all(&self) {}
}

#[cfg(test)]
mod tests;
