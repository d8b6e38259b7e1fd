//! What a history is made of.

use proptest::collection::vec;
use proptest::prelude::*;

/// One operation on both stores. Numbers name gateways, nodes and what was made before, counted back from the newest.
#[derive(Debug, Clone)]
pub enum Step {
    // What gateways do, each under the `lease` that many registrations ago.
    Register { gateway: u8 },
    Renew { lease: u8 },
    Deregister { lease: u8 },
    Open { lease: u8, hello: Hello },
    OpenMany { lease: u8, hellos: Vec<Hello> },
    Close { lease: u8, session: u8 },
    CloseMany { lease: u8, sessions: Vec<u8> },
    Heartbeats { lease: u8, sessions: Vec<u8> },
    Ended { lease: u8 },
    EndedOf { lease: u8, sessions: Vec<u8> },
    Claim { lease: u8, lanes: Vec<(u8, u8, u8)> },
    Cancels { lease: u8, sessions: Vec<u8> },
    Updates { lease: u8, updates: Vec<Update> },
    Events { lease: u8, session: u8, journal: u8, from: u8, count: u8, every: u8 },
    EventsOfMany { lease: u8, batches: Vec<Batch> },
    Statuses { lease: u8, statuses: Vec<Status> },
    Inventory { lease: u8, session: u8, section: u8, hash: u8 },
    SpecsBehind { lease: u8, sent: Vec<(u8, u8)> },
    Spec { lease: u8, session: u8 },
    Counts { node: u8, cert: u8 },
    Ask { lease: u8, kind: u8, refused: bool },
    // What the rest of the control plane does.
    Enqueue { node: u8, kind: u8, body: Body },
    Cancel { command: u8 },
    PutSpec { node: u8 },
    RevokeNode { node: u8 },
    RevokeCertificate { node: u8, cert: u8 },
    Quarantine { node: u8 },
    ObserveOnly { on: bool },
    TrustBundle,
    Expire { gateway: u8 },
    Pass { seconds: u16 },
}

/// What a node says of itself when its stream opens.
#[derive(Debug, Clone)]
pub struct Hello {
    pub node: u8,
    /// 0 and 1 are its own; 2 is nobody's.
    pub cert: u8,
    pub journal: u8,
    pub boot: u8,
    /// Below its newest spec by this much, or above it when negative.
    pub behind: i8,
    pub observed: u8,
    pub ahead_of_epoch: bool,
    pub trust: u8,
    pub inventory: Vec<(u8, u8)>,
}

#[derive(Debug, Clone)]
pub struct Update {
    pub session: u8,
    pub command: u8,
    /// Of the wire: acked, running, succeeded, failed, rejected, cancelled, busy.
    pub state: u8,
    pub boot: u8,
}

/// Events of one session, beside others.
#[derive(Debug, Clone)]
pub struct Batch {
    pub session: u8,
    pub journal: u8,
    pub from: u8,
    pub count: u8,
}

#[derive(Debug, Clone)]
pub struct Status {
    pub session: u8,
    pub applied: u8,
    pub observed: u8,
    pub key: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    Right,
    /// It names another node.
    Others,
    Garbage,
    /// Right, and over in a minute.
    Short,
}

pub const NODES: u8 = 4;
pub const GATEWAYS: u8 = 3;
pub const JOURNALS: u8 = 3;

fn back() -> impl Strategy<Value = u8> {
    // Mostly the newest: what is older is mostly lost.
    prop_oneof![8 => Just(0_u8), 3 => 1_u8..4, 1 => 4_u8..12]
}

fn hello() -> impl Strategy<Value = Hello> {
    let cert = prop_oneof![12 => Just(0_u8), 3 => Just(1), 1 => Just(2)];
    let behind = prop_oneof![8 => Just(0_i8), 4 => 1_i8..4, 1 => -2_i8..0];
    let inventory = vec((0_u8..3, 0_u8..3), 0..3);
    (0..NODES, cert, 0..JOURNALS, 0_u8..3, behind, 0_u8..6, prop::bool::weighted(0.03), 0_u8..3, inventory)
        .prop_map(|(node, cert, journal, boot, behind, observed, ahead_of_epoch, trust, inventory)| Hello {
            node,
            cert,
            journal,
            boot,
            behind,
            observed,
            ahead_of_epoch,
            trust,
            inventory,
        })
}

fn update() -> impl Strategy<Value = Update> {
    (0_u8..5, 0_u8..10, 0_u8..7, 0_u8..3).prop_map(|(session, command, state, boot)| Update {
        session,
        command,
        state,
        boot,
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    (0_u8..5, 0..JOURNALS, 0_u8..9, 0_u8..5).prop_map(|(session, journal, from, count)| Batch {
        session,
        journal,
        from,
        count,
    })
}

fn status() -> impl Strategy<Value = Status> {
    (0_u8..5, 0_u8..6, 0_u8..8, 0_u8..3).prop_map(|(session, applied, observed, key)| Status {
        session,
        applied,
        observed,
        key,
    })
}

fn body() -> impl Strategy<Value = Body> {
    prop_oneof![12 => Just(Body::Right), 1 => Just(Body::Others), 1 => Just(Body::Garbage), 2 => Just(Body::Short)]
}

fn step() -> impl Strategy<Value = Step> {
    let sessions = || vec(0_u8..6, 1..4);
    prop_oneof![
        4 => (0..GATEWAYS).prop_map(|gateway| Step::Register { gateway }),
        3 => back().prop_map(|lease| Step::Renew { lease }),
        1 => back().prop_map(|lease| Step::Deregister { lease }),
        12 => (back(), hello()).prop_map(|(lease, hello)| Step::Open { lease, hello }),
        2 => (back(), 0_u8..6).prop_map(|(lease, session)| Step::Close { lease, session }),
        3 => (back(), sessions()).prop_map(|(lease, sessions)| Step::Heartbeats { lease, sessions }),
        2 => back().prop_map(|lease| Step::Ended { lease }),
        1 => (back(), sessions()).prop_map(|(lease, sessions)| Step::EndedOf { lease, sessions }),
        4 => (back(), vec(hello(), 1..4)).prop_map(|(lease, hellos)| Step::OpenMany { lease, hellos }),
        1 => (back(), sessions()).prop_map(|(lease, sessions)| Step::CloseMany { lease, sessions }),
        12 => (back(), vec((0_u8..6, 0_u8..3, 0_u8..4), 1..4)).prop_map(|(lease, lanes)| Step::Claim { lease, lanes }),
        3 => (back(), sessions()).prop_map(|(lease, sessions)| Step::Cancels { lease, sessions }),
        14 => (back(), vec(update(), 1..5)).prop_map(|(lease, updates)| Step::Updates { lease, updates }),
        8 => (back(), 0_u8..5, 0..JOURNALS, 0_u8..9, 0_u8..5, 1_u8..3).prop_map(
            |(lease, session, journal, from, count, every)| Step::Events { lease, session, journal, from, count, every }),
        6 => (back(), vec(batch(), 2..5)).prop_map(|(lease, batches)| Step::EventsOfMany { lease, batches }),
        4 => (back(), vec(status(), 1..4)).prop_map(|(lease, statuses)| Step::Statuses { lease, statuses }),
        3 => (back(), 0_u8..5, 0_u8..3, 0_u8..3).prop_map(
            |(lease, session, section, hash)| Step::Inventory { lease, session, section, hash }),
        3 => (back(), vec((0_u8..6, 0_u8..5), 1..4)).prop_map(|(lease, sent)| Step::SpecsBehind { lease, sent }),
        2 => (back(), 0_u8..5).prop_map(|(lease, session)| Step::Spec { lease, session }),
        1 => (0..NODES, 0_u8..3).prop_map(|(node, cert)| Step::Counts { node, cert }),
        1 => (back(), 0_u8..3, any::<bool>()).prop_map(|(lease, kind, refused)| Step::Ask { lease, kind, refused }),
        14 => (0..NODES, 0_u8..5, body()).prop_map(|(node, kind, body)| Step::Enqueue { node, kind, body }),
        4 => (0_u8..8).prop_map(|command| Step::Cancel { command }),
        6 => (0..NODES).prop_map(|node| Step::PutSpec { node }),
        1 => (0..NODES).prop_map(|node| Step::RevokeNode { node }),
        1 => (0..NODES, 0_u8..2).prop_map(|(node, cert)| Step::RevokeCertificate { node, cert }),
        1 => (0..NODES).prop_map(|node| Step::Quarantine { node }),
        1 => prop::bool::weighted(0.4).prop_map(|on| Step::ObserveOnly { on }),
        1 => Just(Step::TrustBundle),
        1 => (0..GATEWAYS).prop_map(|gateway| Step::Expire { gateway }),
        3 => prop_oneof![4 => 0_u16..8, 1 => 8_u16..90].prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// Every gateway has registered, so that there is somebody to do the rest.
pub fn history() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..90).prop_map(|steps| {
        let registered = (0..GATEWAYS).rev().map(|gateway| Step::Register { gateway });
        registered.chain(steps).collect()
    })
}
