//! Connections as TCP gives them: what is sent arrives whole and in order, or the connection ends. What is chance is when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::proto::agent::{GatewayFrame, NodeFrame};
use wire::versions::Versions;

use super::clock::{MILLI, Micros, SECOND};
use super::draw::{Draw, For};

/// What is on its way.
#[derive(Debug)]
pub enum Packet<F> {
    Frame(Box<F>),
    /// The connection broke, perhaps in the middle of a frame.
    Broken,
    /// The other side closed.
    Closed,
}

#[derive(Debug)]
pub struct Pipe<F> {
    queue: VecDeque<(Micros, Packet<F>)>,
    /// Added to whatever is sent from now on.
    pub delay: Micros,
    sent: u64,
    /// Nothing is sent after an end.
    ended: bool,
}

impl<F> Default for Pipe<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), delay: 0, sent: 0, ended: false }
    }
}

impl<F> Pipe<F> {
    fn send(&mut self, packet: Packet<F>, at: Micros) {
        if self.ended {
            return;
        }
        self.ended = !matches!(packet, Packet::Frame(_));
        self.sent += 1;
        let after = self.queue.back().map_or(0, |(due, _)| *due);
        self.queue.push_back((at.max(after), packet));
    }

    /// Ends it after the first `keep` frames that are on their way: the next one is cut in two.
    fn cut(&mut self, keep: usize, now: Micros) -> bool {
        let cut = self.queue.len() > keep;
        self.queue.truncate(keep);
        self.ended = false;
        self.send(Packet::Broken, now);
        cut
    }
}

pub struct Connection {
    pub node: usize,
    pub gateway: usize,
    /// The gateway's process it is to; another one knows nothing of it.
    pub process: u64,
    pub up: Pipe<NodeFrame>,
    pub down: Pipe<GatewayFrame>,
    /// The node has let go of it.
    pub left: bool,
    /// Its gateway was not ours for a while.
    pub hostile: bool,
    /// The versions that its Hello offered, as the gateway read it.
    pub offered: Option<Versions>,
}

#[derive(Default)]
pub struct Network {
    pub connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Node, gateway and whether it is the way up.
    blocked: BTreeSet<(usize, usize, bool)>,
}

/// What arrives next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub at: Micros,
    pub connection: u64,
    pub up: bool,
}

impl Network {
    pub fn open(&mut self, node: usize, gateway: usize, process: u64) -> u64 {
        self.next += 1;
        let connection = Connection {
            node,
            gateway,
            process,
            up: Pipe::default(),
            down: Pipe::default(),
            left: false,
            hostile: false,
            offered: None,
        };
        self.connections.insert(self.next, connection);
        self.next
    }

    pub fn block(&mut self, node: usize, gateway: usize, up: bool, block: bool) {
        if block {
            self.blocked.insert((node, gateway, up));
        } else {
            self.blocked.remove(&(node, gateway, up));
        }
    }

    pub fn unblock_all(&mut self) {
        self.blocked.clear();
    }

    pub fn is_blocked(&self, node: usize, gateway: usize) -> bool {
        self.blocked.contains(&(node, gateway, true)) || self.blocked.contains(&(node, gateway, false))
    }

    fn latency(draw: Draw, connection: u64, nth: u64) -> Micros {
        draw.between(For::Latency, connection, nth, MILLI / 5, 20 * MILLI)
    }

    /// Sends a frame to the gateway.
    pub fn send_up(&mut self, id: u64, packet: Packet<NodeFrame>, now: Micros, draw: Draw) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = &mut connection.up;
        let at = now + pipe.delay + Self::latency(draw, id * 2, pipe.sent);
        pipe.send(packet, at);
    }

    /// Sends a frame to the node.
    pub fn send_down(&mut self, id: u64, packet: Packet<GatewayFrame>, now: Micros, draw: Draw) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = &mut connection.down;
        let at = now + pipe.delay + Self::latency(draw, id * 2 + 1, pipe.sent);
        pipe.send(packet, at);
    }

    /// Ends a connection for both sides. True when a frame was cut in two.
    pub fn cut(&mut self, id: u64, keep: usize, now: Micros) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let up = connection.up.cut(keep, now + MILLI);
        let down = connection.down.cut(keep, now + MILLI);
        up || down
    }

    pub fn next(&self) -> Option<Arrival> {
        let mut first: Option<Arrival> = None;
        for (id, connection) in &self.connections {
            let (node, gateway) = (connection.node, connection.gateway);
            let heads = [
                (true, connection.up.queue.front().map(|(at, _)| *at)),
                (false, connection.down.queue.front().map(|(at, _)| *at)),
            ];
            for (up, at) in heads {
                let Some(at) = at else { continue };
                if self.blocked.contains(&(node, gateway, up)) {
                    continue;
                }
                if first.is_none_or(|first| at < first.at) {
                    first = Some(Arrival { at, connection: *id, up });
                }
            }
        }
        first
    }

    pub fn take_up(&mut self, id: u64) -> Option<Packet<NodeFrame>> {
        self.connections.get_mut(&id)?.up.queue.pop_front().map(|(_, packet)| packet)
    }

    pub fn take_down(&mut self, id: u64) -> Option<Packet<GatewayFrame>> {
        self.connections.get_mut(&id)?.down.queue.pop_front().map(|(_, packet)| packet)
    }

    /// Takes the frame that would arrive next, at or before `by`, for a batch.
    pub fn take_down_by(&mut self, id: u64, by: Micros) -> Option<Packet<GatewayFrame>> {
        let connection = self.connections.get_mut(&id)?;
        if self.blocked.contains(&(connection.node, connection.gateway, false)) {
            return None;
        }
        let (at, _) = connection.down.queue.front()?;
        if *at > by { None } else { connection.down.queue.pop_front().map(|(_, packet)| packet) }
    }

    /// How long a connection attempt into a partition takes to fail.
    pub const fn dial_timeout() -> Micros {
        10 * SECOND
    }
}
