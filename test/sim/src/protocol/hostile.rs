//! What is done by those who hold a valid certificate and mean harm, and by those who speak another version.

use std::collections::{BTreeMap, VecDeque};

use wire::proto::agent::gateway_frame::Frame as Down;
use wire::proto::agent::node_frame::Frame as Up;
use wire::proto::agent::{DesiredState, GatewayFrame, Hello, NodeFrame};

use super::clock::{Micros, moment};
use super::plane::node_id;
use super::scenario::NODES_MAX;

/// Frames remembered for later, by node.
const CAPTURED: usize = 48;
pub(super) const HOUR_MS: u64 = 3_600_000;
/// How far a node's own clock may bear a lie out.
const BELIEVED_MICROS: i64 = 60 * 1_000_000;

type Hits = BTreeMap<&'static str, u64>;

#[derive(Default)]
pub struct Hostile {
    pub(super) captured: [VecDeque<GatewayFrame>; NODES_MAX],
    pub(super) welcome: [Option<Twist>; NODES_MAX],
    pub(super) hello: [Option<Twist>; NODES_MAX],
    pub(super) withhold: [u32; NODES_MAX],
    /// A frame goes out after the one that follows it: the next one, or this one.
    pub(super) swaps: [bool; NODES_MAX],
    swapped: [Option<GatewayFrame>; NODES_MAX],
    /// What goes out instead of the next spec.
    pub(super) stale: [Option<DesiredState>; NODES_MAX],
    /// Everything a node says goes out twice, this many times more.
    pub(super) twice: [u32; NODES_MAX],
    /// Connections whose Hello must not be answered by a Welcome, and what it said.
    unwelcome: BTreeMap<u64, &'static str>,
    specs_sent: BTreeMap<u64, u64>,
    /// The next Welcome acknowledges what was never sent.
    pub(super) high_ack: [bool; NODES_MAX],
    lied: [bool; NODES_MAX],
    misled: [bool; NODES_MAX],
}

/// What the next Hello or Welcome says instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Twist {
    OtherNode,
    HighGeneration,
    HighObserved,
    HighEpoch,
    OldVersion,
    NewVersion,
    Past,
    Future,
}

fn count(hits: &mut Hits, fault: &'static str) {
    *hits.entry(fault).or_default() += 1;
}

impl Hostile {
    /// Faults are over.
    pub fn stop(&mut self) {
        self.welcome = Default::default();
        self.hello = Default::default();
        self.withhold = Default::default();
        self.swaps = Default::default();
        self.swapped = Default::default();
        self.stale = Default::default();
        self.high_ack = Default::default();
        self.twice = Default::default();
    }

    pub fn must_not_be_welcome(&self, connection: u64) -> Option<&'static str> {
        self.unwelcome.get(&connection).copied()
    }

    /// The generation sent last on a connection, before this one.
    pub fn spec_sent(&mut self, connection: u64, generation: u64) -> u64 {
        self.specs_sent.insert(connection, generation).unwrap_or(0)
    }

    /// Whether its last frame was changed on the way.
    pub fn take_misled(&mut self, n: usize) -> bool {
        std::mem::take(&mut self.misled[n])
    }

    pub fn take_lied(&mut self, n: usize) -> bool {
        std::mem::take(&mut self.lied[n])
    }

    /// A frame is handed to its node.
    pub fn delivered(&mut self, n: usize, frame: &GatewayFrame) {
        let kept = &mut self.captured[n];
        if matches!(
            frame.frame,
            Some(
                Down::Command(_) | Down::DesiredState(_) | Down::Ack(_) | Down::Welcome(_) | Down::Cancel(_)
            )
        ) {
            if kept.len() >= CAPTURED {
                kept.pop_front();
            }
            kept.push_back(frame.clone());
        }
    }

    /// A frame of a gateway, on its way to node `n`.
    pub fn passes(
        &mut self,
        n: usize,
        mut frame: GatewayFrame,
        skew: i64,
        hits: &mut Hits,
    ) -> Option<GatewayFrame> {
        if self.withhold[n] > 0 {
            self.withhold[n] -= 1;
            count(hits, "withhold");
            return None;
        }
        // A Welcome that does not come first is no session; what follows it is turned round.
        let greets = matches!(frame.frame, Some(Down::Welcome(_) | Down::Refusal(_)));
        if !greets && std::mem::take(&mut self.swaps[n]) {
            self.swapped[n] = Some(frame);
            return None;
        }
        if let Some(Down::DesiredState(desired)) = &mut frame.frame
            && let Some(stale) = self.stale[n].take()
        {
            // A binding, if there is one, stays beside it.
            *desired = DesiredState { fresh: desired.fresh.take(), ..stale };
            self.misled[n] = true;
            count(hits, "stale-spec");
        }
        if let Some(Down::Welcome(welcome)) = &mut frame.frame
            && let Some(twist) = self.welcome[n].take()
        {
            match twist {
                Twist::Past => {
                    welcome.server_time_ms = welcome.server_time_ms.saturating_sub(HOUR_MS / 6);
                    self.lied[n] = true;
                    self.misled[n] = true;
                    count(hits, "past-welcome");
                }
                // What a node's own clock bears out too, it cannot tell from the truth.
                Twist::Future if skew > BELIEVED_MICROS => {}
                Twist::Future => {
                    welcome.server_time_ms += HOUR_MS;
                    self.misled[n] = true;
                    count(hits, "future-welcome");
                }
                Twist::OldVersion => {
                    welcome.protocol = 0;
                    count(hits, "old-gateway");
                }
                Twist::OtherNode
                | Twist::HighGeneration
                | Twist::HighObserved
                | Twist::HighEpoch
                | Twist::NewVersion => {}
            }
        }
        Some(frame)
    }

    /// What was kept back until another frame had gone out.
    pub fn take_swapped(&mut self, n: usize) -> Option<GatewayFrame> {
        self.swapped[n].take()
    }

    /// What node `n` says on a connection, and what goes out instead.
    pub fn says(
        &mut self,
        n: usize,
        connection: u64,
        mut frame: NodeFrame,
        hits: &mut Hits,
    ) -> Vec<NodeFrame> {
        if let Some(Up::Hello(hello)) = &mut frame.frame
            && let Some(twist) = self.hello[n].take()
        {
            let mut more = Vec::new();
            if let Some((fault, why)) = twist_hello(twist, n, hello, &mut more) {
                count(hits, fault);
                if !why.is_empty() {
                    self.unwelcome.insert(connection, why);
                }
            }
            more.insert(0, frame);
            return more;
        }
        if self.twice[n] > 0 && !matches!(frame.frame, Some(Up::Hello(_))) {
            self.twice[n] -= 1;
            count(hits, "node-double");
            return vec![frame.clone(), frame];
        }
        vec![frame]
    }
}

/// A lie about time that the node's own clock bears out by the time it is heard is not told: nobody there could know better.
pub fn unless_borne_out(frame: &mut GatewayFrame, skew: i64, now: Micros) {
    let Some(Down::Welcome(welcome)) = &mut frame.frame else { return };
    let truth = u64::try_from(moment(now).millis()).unwrap_or(0);
    let ahead = i64::try_from(welcome.server_time_ms.saturating_sub(truth)).unwrap_or(i64::MAX);
    if skew > BELIEVED_MICROS && ahead.saturating_mul(1000) > BELIEVED_MICROS {
        welcome.server_time_ms = truth;
    }
}

/// How far above the last event a Welcome acknowledges. Only where no event waits, which would be forgotten: against that a node
/// has nothing.
const ACKED_TOO_FAR: u64 = 7;

pub fn acknowledge_too_far(frame: &mut GatewayFrame) -> bool {
    let Some(Down::Welcome(welcome)) = &mut frame.frame else { return false };
    welcome.acked_event_seq += ACKED_TOO_FAR;
    true
}

/// The fault it is counted as, and why a gateway must refuse it, if it must.
fn twist_hello(
    twist: Twist,
    n: usize,
    hello: &mut Hello,
    more: &mut Vec<NodeFrame>,
) -> Option<(&'static str, &'static str)> {
    match twist {
        Twist::OtherNode => {
            hello.node_id = node_id(n + 1).to_string();
            Some(("other-node", "that names another node"))
        }
        Twist::HighGeneration => {
            hello.applied_generation = 1 << 40;
            Some(("high-generation", "that holds a generation nobody made"))
        }
        Twist::HighObserved => {
            hello.observed_generation = 1 << 40;
            Some(("high-observed", ""))
        }
        Twist::HighEpoch => {
            hello.deployment_epoch = 1 << 40;
            Some(("high-epoch", "that has seen an epoch that does not exist"))
        }
        Twist::OldVersion => {
            (hello.protocol_min, hello.protocol_max) = (0, 0);
            Some(("old-agent", "of a version before the first"))
        }
        Twist::NewVersion => {
            hello.protocol_max = 9;
            more.push(NodeFrame { frame: None });
            Some(("new-agent", ""))
        }
        Twist::Past | Twist::Future => None,
    }
}
