//! A world: nodes, gateways, the network between them, one delivery store and one control plane, in one thread. Each step is the
//! earliest thing that is due.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent::engine::Input;
use gateway::drive::Refused;
use gateway::memory::MemoryDelivery;
use gateway::session::Peer;
use kernel::ports::delivery::InboxAnswer;
use pki::Purpose;
use wire::proto::agent::GatewayFrame;
use wire::proto::agent::gateway_frame::Frame as Down;
use wire::proto::agent::node_frame::Frame as Up;
use wire::versions::Versions;

use super::clock::{MILLI, Micros, SECOND, SimClock, Time, moment};
use super::draw::{Draw, For};
use super::gateways::{Gateway, Said};
use super::hostile::Hostile;
use super::invariants::{Invariant, STEPS_AT_ONCE_MAX, Violation};
use super::network::{Arrival, Network, Packet};
use super::nodes::{Node, Wire};
use super::plane::{Plane, Signer, keys, node_id};
use super::scenario::Scenario;
use super::skew::{self, Met};
use super::store::Store;
use super::told::Told;
use super::transcript::Transcript;
use super::watch::Watch;

/// The control plane's sweeper.
const SWEEP_PERIOD: Micros = 5 * SECOND;
/// A gateway that cannot register tries again after this.
const REGISTER_PAUSE: Micros = SECOND;

pub struct World {
    pub draw: Draw,
    pub seed: u64,
    pub now: Micros,
    pub time: Arc<Time>,
    pub nodes: Vec<Node>,
    pub gateways: Vec<Gateway>,
    pub net: Network,
    pub plane: Plane,
    pub delivery: MemoryDelivery,
    pub store: Arc<Store>,
    pub watch: Watch,
    pub told: Told,
    pub hostile: Hostile,
    pub transcript: Transcript,
    /// How each node's last Hello was answered.
    pub met: Vec<Met>,
    /// Faults that hit something, by name.
    pub hits: BTreeMap<&'static str, u64>,
    pub workers_until: Micros,
    /// A worker is about to look at the inbox.
    asked_at: Option<Micros>,
    next_sweep: Micros,
    /// When gateways hear that something may have to go out.
    poke_at: Option<Micros>,
    /// After a restore, when a worker looks for specs of the epoch before it.
    pub sign_again_at: Option<Micros>,
    pub heals: BTreeMap<(Micros, u64), Heal>,
    next_heal: u64,
    seen_calls: u64,
    seen_asks: u64,
    same_moment: u32,
    pub steps: u64,
    pub frames: u64,
    pub commits: u64,
}

/// What ends by itself.
#[derive(Debug, Clone, Copy)]
pub enum Heal {
    Unblock {
        node: usize,
        gateway: usize,
        up: bool,
    },
    /// A gateway that drained is replaced.
    Restart {
        gateway: usize,
    },
    /// A node's certificate counts again.
    Reinstate {
        node: usize,
    },
    /// A restored database is stood by.
    Confirm,
}

impl World {
    pub fn new(scenario: &Scenario) -> Self {
        let time = Arc::new(Time::default());
        let delivery = MemoryDelivery::new(Arc::new(SimClock::new(time.clone())));
        for n in 0..scenario.nodes {
            delivery.add_node(node_id(n), &keys().identities[n].serial.to_string());
        }
        Self {
            draw: Draw::new(scenario.seed),
            seed: scenario.seed,
            now: 0,
            nodes: (0..scenario.nodes).map(Node::new).collect(),
            gateways: (0..scenario.gateways).map(|slot| Gateway::new(slot, time.clone())).collect(),
            net: Network::default(),
            plane: Plane::new(),
            store: Arc::new(Store::new(delivery.clone(), time.clone())),
            delivery,
            time,
            watch: Watch::default(),
            told: Told::default(),
            hostile: Hostile::default(),
            transcript: Transcript::default(),
            met: vec![Met::default(); scenario.nodes],
            hits: BTreeMap::new(),
            workers_until: 0,
            asked_at: None,
            next_sweep: SWEEP_PERIOD,
            poke_at: None,
            sign_again_at: None,
            heals: BTreeMap::new(),
            next_heal: 0,
            seen_calls: 0,
            seen_asks: 0,
            same_moment: 0,
            steps: 0,
            frames: 0,
            commits: 0,
        }
    }

    pub fn hit(&mut self, fault: &'static str) {
        *self.hits.entry(fault).or_default() += 1;
    }

    pub fn heal_at(&mut self, at: Micros, heal: Heal) {
        self.next_heal += 1;
        self.heals.insert((at, self.next_heal), heal);
    }

    /// The control plane changed something that gateways send.
    pub fn poke_soon(&mut self) {
        self.poke_at.get_or_insert(self.now + 2 * MILLI);
    }

    /// When something is next due, not counting what a scenario does.
    pub fn next_due(&self) -> Micros {
        let mut due = self.next_sweep;
        due = due.min(self.net.next().map_or(Micros::MAX, |arrival| arrival.at));
        for node in &self.nodes {
            due = due.min(node.deadline(self.now));
        }
        for gateway in &self.gateways {
            due = due.min(gateway.deadline());
        }
        let others = [
            self.time.deadline(),
            self.asked_at,
            self.poke_at,
            self.sign_again_at,
            self.heals.keys().next().map(|(at, _)| *at),
        ];
        others.into_iter().flatten().fold(due, Micros::min).max(self.now)
    }

    pub fn move_to(&mut self, at: Micros) {
        if at > self.now {
            self.now = at;
            self.time.set(at);
            self.same_moment = 0;
        }
    }

    /// One step: the first thing that is due now.
    pub fn step(&mut self) {
        self.steps += 1;
        self.same_moment += 1;
        if self.same_moment > STEPS_AT_ONCE_MAX {
            self.watch.broken(Invariant::Rests, self.now, || "the world turns in a circle".to_owned());
        }
        let now = self.now;
        if let Some((key, heal)) = self.heals.first_key_value().map(|(key, heal)| (*key, *heal))
            && key.0 <= now
        {
            self.heals.remove(&key);
            match heal {
                Heal::Unblock { node, gateway, up } => self.net.block(node, gateway, up, false),
                Heal::Restart { gateway } => self.kill_gateway(gateway),
                Heal::Reinstate { node } => self.reinstate(node),
                Heal::Confirm => self.confirm(),
            }
        } else if let Some(arrival) = self.net.next().filter(|arrival| arrival.at <= now) {
            self.arrive(arrival);
        } else if let Some(n) = (0..self.nodes.len()).find(|n| self.nodes[*n].deadline(now) <= now) {
            self.node_turn(n);
        } else if self.next_sweep <= now {
            self.next_sweep = now + SWEEP_PERIOD;
            self.delivery.sweep(moment(now));
            self.look_at_store();
        } else if self.poke_at.is_some_and(|at| at <= now) {
            self.poke_at = None;
            self.gateways
                .iter()
                .filter_map(|gateway| gateway.running.as_ref())
                .for_each(|running| running.poke());
        } else if self.asked_at.is_some_and(|at| at <= now) {
            self.asked_at = None;
            self.work_inbox();
        } else if self.sign_again_at.is_some_and(|at| at <= now) {
            self.sign_again();
        }
        self.gateways_turn();
        if let Some(violation) = self.store.take_violation() {
            let Violation { invariant, at, detail } = violation;
            self.watch.broken(invariant, at, || detail);
        }
    }

    fn look_at_store(&mut self) {
        let nodes = self.nodes.len();
        self.watch.stored(&self.plane, &self.delivery, nodes, self.now);
    }

    /// A worker answers what nodes ask for, when one is there.
    fn work_inbox(&mut self) {
        if self.workers_until > self.now {
            self.hit("workers");
            self.asked_at = Some(self.workers_until);
            return;
        }
        while let Some(item) = futures::FutureExt::now_or_never(self.delivery.next_request()) {
            let trust: Vec<Signer> = (0..self.nodes.len()).map(|n| self.signer_of(n)).collect();
            let answer =
                self.plane.bind(&item.request.request, |n| trust.get(n).copied().unwrap_or(Signer::First));
            item.answer(answer.map_or(InboxAnswer::Refused("unknown".to_owned()), InboxAnswer::Reply));
        }
        for gateway in &mut self.gateways {
            gateway.running.iter_mut().for_each(super::gateways::Running::stir);
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let id = arrival.connection;
        if arrival.up {
            self.arrive_up(id)
        } else {
            self.arrive_down(id)
        }
        let Some(connection) = self.net.connections.get(&id) else { return };
        let slot = &self.gateways[connection.gateway];
        let held = slot.running.as_ref().is_some_and(|running| running.sessions.contains_key(&id));
        if connection.left && !held {
            self.net.connections.remove(&id);
        }
    }

    fn arrive_up(&mut self, id: u64) {
        let Some(packet) = self.net.take_up(id) else { return };
        let Some(connection) = self.net.connections.get_mut(&id) else { return };
        if let Packet::Frame(frame) = &packet {
            match &frame.frame {
                Some(Up::Hello(hello)) => {
                    let offered = Versions { min: hello.protocol_min, max: hello.protocol_max };
                    connection.offered.get_or_insert(offered);
                }
                None => *self.hits.entry("unknown-frame").or_default() += 1,
                Some(_) => {}
            }
        }
        let gateway = &mut self.gateways[connection.gateway];
        let Some(running) = gateway.running.as_mut().filter(|_| gateway.processes == connection.process)
        else {
            return;
        };
        let Some(inbox) = running.inbox(id) else { return };
        match packet {
            Packet::Frame(frame) => inbox.receive(*frame),
            Packet::Broken => inbox.break_off(),
            Packet::Closed => inbox.close(),
        }
    }

    fn arrive_down(&mut self, id: u64) {
        let Some(packet) = self.net.take_down(id) else { return };
        let n = self.net.connections[&id].node;
        let ours = matches!(&self.nodes[n].process, Some(process) if matches!(process.wire, Wire::Up(up) if up == id));
        if !ours {
            return;
        }
        self.hand_down(n, id, packet);
        // What else is there already goes into the same step, now and then.
        self.nodes[n].drawn += 1;
        let most = self.draw.between(For::Batch, n as u64, self.nodes[n].drawn, 0, 6);
        for _ in 0..most {
            let Some(packet) = self.net.take_down_by(id, self.now) else { break };
            self.hand_down(n, id, packet);
        }
    }

    fn hand_down(&mut self, n: usize, id: u64, packet: Packet<GatewayFrame>) {
        let input = match packet {
            Packet::Frame(frame) => {
                self.hostile.delivered(n, &frame);
                match &frame.frame {
                    Some(Down::Welcome(welcome))
                        if !self.nodes[n].release.versions().contain(welcome.protocol) =>
                    {
                        self.nodes[n].must_leave = Some(id);
                    }
                    None => self.hit("unknown-frame"),
                    _ => {}
                }
                Input::Frame(frame)
            }
            Packet::Broken | Packet::Closed => {
                let why = "the connection ended".to_owned();
                self.node_leaves(n, id, false);
                Input::Disconnected { why, pushback: None }
            }
        };
        if let Some(process) = &mut self.nodes[n].process {
            process.inputs.push(input);
        }
    }

    /// The node lets go of a connection; `says` when its kernel can tell the other side.
    pub fn node_leaves(&mut self, n: usize, id: u64, says: bool) {
        if let Some(process) = &mut self.nodes[n].process {
            process.wire = Wire::Down;
        }
        if let Some(connection) = self.net.connections.get_mut(&id) {
            connection.left = true;
        }
        if says {
            self.net.send_up(id, Packet::Closed, self.now, self.draw);
        }
    }

    /// A node's dial comes through, or does not.
    pub fn dialed(&mut self, n: usize, slot: usize) -> Input {
        let down = |why: &str| Input::Disconnected { why: why.to_owned(), pushback: None };
        let Some(process) = &mut self.nodes[n].process else { return Input::Tick };
        process.wire = Wire::Down;
        if self.net.is_blocked(n, slot) || self.gateways[slot].paused_until.is_some() {
            return down("no answer");
        }
        let gateway = &mut self.gateways[slot];
        let Some(running) = &mut gateway.running else { return down("refused") };
        let identity = &self.nodes[n].kept;
        let peer = Peer {
            node_id: identity.node_id,
            cert_serial: identity.serial.to_string(),
            cert_ends: identity.not_after,
        };
        let id = self.net.open(n, slot, gateway.processes);
        match running.connect(id, peer) {
            Ok(()) => {
                if let Some(process) = &mut self.nodes[n].process {
                    process.wire = Wire::Up(id);
                }
                Input::Connected
            }
            Err(refused) => {
                self.net.connections.remove(&id);
                let pushback = match refused {
                    Refused::Busy(wait) => wait,
                    Refused::Certificate => None,
                };
                Input::Disconnected { why: "refused".to_owned(), pushback }
            }
        }
    }

    fn gateways_turn(&mut self) {
        let mut said = Vec::new();
        for slot in 0..self.gateways.len() {
            let gateway = &mut self.gateways[slot];
            if gateway.paused_until.is_some_and(|until| until <= self.now) {
                gateway.paused_until = None;
                gateway.resumed_at = self.now;
            }
            if gateway.running.is_none() && gateway.starts_at.is_some_and(|at| at <= self.now) {
                let new_process = gateway.id.is_none();
                let started = gateway.start(&self.store, new_process);
                gateway.starts_at = if started { None } else { Some(self.now + REGISTER_PAUSE) };
            }
            if !gateway.is_up() {
                continue;
            }
            let clock = gateway.clock.clone();
            let Some(running) = &mut gateway.running else { continue };
            running.run(clock.as_ref(), &mut said);
            if let Some(crash) = self.store.take_crash() {
                // What it was about to say is lost with it.
                said.clear();
                self.hit(crash.crash_name());
                self.replace_gateway(slot);
                continue;
            }
            if running.is_over() && running.sessions.is_empty() {
                // It registers anew, under another epoch.
                gateway.running = None;
                gateway.starts_at = Some(self.now + REGISTER_PAUSE);
            }
            for said in said.drain(..) {
                self.gateway_says(said);
            }
        }
        let calls = self.store.calls();
        if calls != self.seen_calls {
            self.seen_calls = calls;
            self.look_at_store();
            let asks = self.store.asks();
            if std::mem::replace(&mut self.seen_asks, asks) != asks {
                self.asked_at.get_or_insert(self.now + 5 * MILLI);
            }
            for (fault, count) in self.store.take_hits() {
                if count > 0 {
                    *self.hits.entry(fault).or_default() += count;
                }
            }
        }
    }

    fn gateway_says(&mut self, said: Said) {
        match said {
            Said::Frame(id, frame) => {
                self.look_at_frame(id, &frame);
                self.look_at_right(id, &frame);
                self.frames += 1;
                self.transcript.frame(self.now, "down", id, &frame);
                let Some(connection) = self.net.connections.get(&id) else { return };
                let n = connection.node;
                let new_frames = self.gateways[connection.gateway].release.sends_new_frames();
                let Some(frame) = self.hostile.passes(n, frame, self.nodes[n].skew, &mut self.hits) else {
                    return self.turned(id);
                };
                if self.hostile.take_misled(n) {
                    self.turned(id);
                }
                self.nodes[n].lied_to |= self.hostile.take_lied(n);
                let welcome = matches!(frame.frame, Some(Down::Welcome(_)));
                self.net.send_down(id, Packet::Frame(Box::new(frame)), self.now, self.draw);
                if let Some(frame) = self.hostile.take_swapped(n) {
                    self.hit("swap");
                    self.turned(id);
                    self.net.send_down(id, Packet::Frame(Box::new(frame)), self.now, self.draw);
                }
                if welcome && new_frames {
                    let frame = Packet::Frame(Box::new(skew::unknown_frame()));
                    self.net.send_down(id, frame, self.now, self.draw);
                }
            }
            Said::Over(id) => {
                self.transcript.note(self.now, "over", id, &[]);
                self.net.send_down(id, Packet::Closed, self.now, self.draw);
                if self.net.connections.get(&id).is_some_and(|connection| connection.left) {
                    self.net.connections.remove(&id);
                }
            }
        }
    }

    /// Signs and stores a spec.
    pub fn store_spec(&mut self, node: usize, generation: u64, bytes: &[u8]) {
        let signature = self.sign_for(node, Purpose::DesiredState, bytes).to_vec();
        self.delivery.put_spec(kernel::ports::delivery::StoredSpec {
            node_id: node_id(node),
            generation,
            body: bytes.to_vec(),
            signature,
        });
        self.poke_soon();
    }
}
