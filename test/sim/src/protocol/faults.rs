//! Carries out the lines of a scenario.

use bytes::Bytes;
use model::AllocationId;
use model::lifecycle::CommandState;
use pki::Purpose;

use super::action::{Action, How, Release, Way};
use super::clock::{MILLI, Micros, SECOND};
use super::draw::For;
use super::invariants::Invariant;
use super::network::Packet;
use super::nodes::Trap;
use super::plane::{Signer, keys, node_id};
use super::world::{Heal, World};

/// How often a worker looks for specs of an epoch that is over.
const SIGN_AGAIN_PERIOD: Micros = 10 * SECOND;

impl World {
    /// Something happens. A node or gateway that is not there is left alone.
    pub fn act(&mut self, action: &Action) {
        self.transcript.note(self.now, action.name(), 0, &[]);
        self.transcript.tell(self.now, "ACTION", 0, || action.to_string());
        let (nodes, gateways) = (self.nodes.len(), self.gateways.len());
        let node = |n: usize| Some(n.wrapping_sub(1)).filter(|n| *n < nodes);
        let gateway = |g: usize| Some(g.wrapping_sub(1)).filter(|g| *g < gateways);
        match action {
            Action::Command { node: n, id, kind, ttl, needs, key } => {
                if let Some(n) = node(*n) {
                    self.enqueue(n, *id, kind, *ttl, *needs, *key);
                }
            }
            Action::Cancel { id } => {
                let id = agent::testing::command_id((*id).into());
                if self.delivery.command_fate(id).is_some_and(|fate| fate.state == CommandState::Pending) {
                    self.told.calls_off(id);
                }
                self.delivery.request_cancel(id, "asked");
                self.poke_soon();
            }
            Action::Spec { node: n, hold, number } => {
                if let Some(n) = node(*n) {
                    let (generation, spec) = self.plane.next_spec(n, *hold, *number);
                    self.store_spec(n, generation, &spec.bytes);
                }
            }
            Action::Certificate { node: n, lasts } => {
                if let Some(n) = node(*n) {
                    self.revoke(n, lasts * MILLI);
                }
            }
            Action::Trust => self.new_trust(),
            Action::Restore => self.restore(),
            Action::Crash { node: n, point, skip, how } => {
                if let Some(n) = node(*n) {
                    self.nodes[n].traps.push(Trap { point: *point, skip: *skip, how: *how });
                }
            }
            Action::Reboot { node: n } => {
                if let Some(n) = node(*n).filter(|n| self.nodes[*n].process.is_some()) {
                    self.hit("reboot");
                    self.die(n, How::Power, false);
                }
            }
            Action::DiskFull { node: n, writes } => {
                if let Some(n) = node(*n) {
                    self.nodes[n].disk.fill(*writes);
                }
            }
            Action::Clock { node: n, by } => {
                if let Some(n) = node(*n) {
                    self.hit("clock");
                    self.nodes[n].skew = self.nodes[n].skew.saturating_add(by.saturating_mul(1000));
                }
            }
            Action::GatewayClock { gateway: g, by } => {
                if let Some(g) = gateway(*g) {
                    self.hit("gateway-clock");
                    let slot = &mut self.gateways[g];
                    slot.skew = slot.skew.saturating_add(by.saturating_mul(1000));
                    slot.clock.set_skew(slot.skew);
                }
            }
            Action::Slow { node: n, lasts } => {
                if let Some(n) = node(*n).filter(|n| self.nodes[*n].process.is_some()) {
                    self.hit("slow");
                    self.nodes[n].slow_until = self.now + lasts * MILLI;
                }
            }
            Action::Partition { node: n, gateway: g, way, lasts } => {
                if let (Some(n), Some(g)) = (node(*n), gateway(*g)) {
                    self.partition(n, g, *way, lasts * MILLI);
                }
            }
            Action::Cut { node: n, keep } => {
                if let Some(n) = node(*n)
                    && let Some(id) = self.connection_of(n)
                {
                    self.hit("cut");
                    if self.net.cut(id, *keep, self.now) {
                        self.hit("truncated");
                    }
                }
            }
            Action::Delay { node: n, way, by } => {
                if let Some(n) = node(*n)
                    && let Some(id) = self.connection_of(n)
                    && let Some(connection) = self.net.connections.get_mut(&id)
                {
                    if *way != Way::Down {
                        connection.up.delay = by * MILLI;
                    }
                    if *way != Way::Up {
                        connection.down.delay = by * MILLI;
                    }
                    self.hit("delay");
                }
            }
            Action::KillGateway { gateway: g } => {
                if let Some(g) = gateway(*g) {
                    self.kill_gateway(g);
                }
            }
            Action::CrashGateway { gateway: g, call, skip, done } => {
                if let Some(g) = gateway(*g)
                    && let Some(id) = self.gateways[g].id
                {
                    self.store.crash(id, *call, *skip, *done);
                }
            }
            Action::Pause { gateway: g, lasts } => {
                if let Some(g) = gateway(*g)
                    && self.gateways[g].is_up()
                {
                    self.hit("pause");
                    self.gateways[g].paused_until = Some(self.now + lasts * MILLI);
                }
            }
            Action::Suspend { gateway: g, lasts } => {
                if let Some(g) = gateway(*g)
                    && self.gateways[g].is_up()
                {
                    self.hit("suspend");
                    self.gateways[g].paused_until = Some(self.now + lasts * MILLI);
                    self.gateways[g].clock.stand_still(lasts * MILLI);
                }
            }
            Action::Drain { gateway: g } => {
                if let Some(g) = gateway(*g)
                    && let Some(running) = self.gateways[g].running.as_ref()
                    && self.gateways[g].is_up()
                {
                    running.drain();
                    self.hit("drain");
                    self.heal_at(self.now + 8 * SECOND, Heal::Restart { gateway: g });
                }
            }
            Action::Database { calls, done } => self.store.fail(*calls, *done),
            Action::LateRenewal { calls, by } => self.store.delay(*calls, by * MILLI),
            Action::Workers { lasts } => self.workers_until = self.now + lasts * MILLI,
            Action::HostileGateway { node: n, does } => {
                if let Some(n) = node(*n) {
                    self.hostile_gateway(n, *does);
                }
            }
            Action::HostileNode { node: n, says } => {
                if let Some(n) = node(*n) {
                    self.hostile_node(n, *says);
                }
            }
            Action::Speaks { node: n, version } => {
                if let Some(n) = node(*n) {
                    self.speaks(n, *version);
                }
            }
            Action::NodeRelease { node: n, release } => {
                if let Some(n) = node(*n) {
                    self.node_release(n, *release);
                }
            }
            Action::GatewayRelease { gateway: g, release } => {
                if let Some(g) = gateway(*g) {
                    self.gateway_release(g, *release);
                }
            }
        }
    }

    fn partition(&mut self, n: usize, g: usize, way: Way, lasts: Micros) {
        let ways: &[bool] = match way {
            Way::Up => &[true],
            Way::Down => &[false],
            Way::Both => &[true, false],
        };
        for up in ways {
            self.net.block(n, g, *up, true);
            self.heal_at(self.now + lasts, Heal::Unblock { node: n, gateway: g, up: *up });
        }
        let hits =
            self.net.connections.values().any(|held| held.node == n && held.gateway == g && !held.left);
        if hits {
            self.hit(if way == Way::Both { "partition" } else { "one-way-partition" });
        }
    }

    fn node_release(&mut self, n: usize, release: Release) {
        if std::mem::replace(&mut self.nodes[n].release, release) != release
            && self.nodes[n].process.is_some()
        {
            self.hit("node-release");
            self.die(n, How::Kill, false);
        }
    }

    fn gateway_release(&mut self, g: usize, release: Release) {
        if std::mem::replace(&mut self.gateways[g].release, release) != release && self.replace_gateway(g) {
            self.hit("gateway-release");
        }
    }

    pub fn kill_gateway(&mut self, g: usize) {
        if self.replace_gateway(g) {
            self.hit("kill-gateway");
        }
    }

    /// The process is gone, and its host tells the nodes; another one follows. False when none ran.
    pub fn replace_gateway(&mut self, g: usize) -> bool {
        let gateway = &mut self.gateways[g];
        if gateway.running.take().is_none() {
            return false;
        }
        gateway.paused_until = None;
        gateway.id = None;
        gateway.starts_at = Some(self.now + 2 * SECOND);
        self.drop_connections(g);
        true
    }

    /// What a gateway that is gone leaves of its connections.
    pub fn drop_connections(&mut self, g: usize) {
        let held: Vec<(u64, bool)> = self
            .net
            .connections
            .iter()
            .filter(|(_, held)| held.gateway == g)
            .map(|(id, held)| (*id, held.left))
            .collect();
        for (id, left) in held {
            if left {
                self.net.connections.remove(&id);
            } else {
                self.net.send_down(id, Packet::Broken, self.now, self.draw);
            }
        }
    }

    fn new_trust(&mut self) {
        self.plane.trust_version += 1;
        let mut bundle = keys().deployment.trust();
        bundle.version = self.plane.trust_version;
        bundle.command_roots.push(keys().next_root.verifying_key().clone());
        bundle.deployment_epoch = self.plane.epoch;
        let signed = bundle.sign(&keys().deployment.join_signing).encode();
        self.delivery.put_trust_bundle(self.plane.trust_version, signed);
    }

    fn restore(&mut self) {
        for n in 0..self.nodes.len() {
            self.plane.lost_history(n);
        }
        self.plane.epoch += 1;
        self.delivery.set_deployment_epoch(self.plane.epoch);
        self.hit("restore");
        // Until somebody has confirmed it, the database only observes.
        self.delivery.set_observe_only(true);
        self.store.observe(true);
        let confirmed = self.draw.between(For::Restore, 1, self.plane.epoch, 200 * MILLI, 8 * SECOND);
        self.heal_at(self.now + confirmed, Heal::Confirm);
        let wait = self.draw.between(For::Restore, 0, self.plane.epoch, SECOND, SIGN_AGAIN_PERIOD);
        self.sign_again_at.get_or_insert(self.now + wait);
    }

    /// Somebody stands by the restored database.
    pub fn confirm(&mut self) {
        self.delivery.set_observe_only(false);
        self.store.observe(false);
        self.poke_soon();
    }

    /// A node's certificate does not count for so long; then it is let in again.
    fn revoke(&mut self, n: usize, lasts: Micros) {
        let serial = keys().identities[n].serial.to_string();
        self.delivery.revoke_certificate(&serial);
        self.told.revoke(n, Some(self.now));
        self.hit("certificate-revoked");
        self.poke_soon();
        self.heal_at(self.now + lasts, Heal::Reinstate { node: n });
    }

    pub fn reinstate(&mut self, n: usize) {
        self.delivery.add_node(node_id(n), &keys().identities[n].serial.to_string());
        self.told.revoke(n, None);
    }

    /// Whose signature a node believes: the newer root's as soon as its trust bundle names it.
    pub fn signer_of(&self, n: usize) -> Signer {
        match self.nodes[n].kept.trust.command_roots.len() {
            0 | 1 => Signer::First,
            _ => Signer::Next,
        }
    }

    pub fn sign_for(&self, n: usize, purpose: Purpose, body: &[u8]) -> Bytes {
        keys().sign_by(self.signer_of(n), purpose, body)
    }

    /// The control plane's pass after a restore: every spec that was signed before it is signed anew, as the next generation of
    /// its node, and trust is published under the new epoch. A node that has seen the epoch takes nothing of before.
    pub fn sign_again(&mut self) {
        if self.workers_until > self.now {
            self.hit("workers");
            self.sign_again_at = Some(self.workers_until);
            return;
        }
        self.sign_again_at = None;
        self.new_trust();
        for n in 0..self.nodes.len() {
            if let Some((generation, spec)) = self.plane.signed_again(n) {
                self.store_spec(n, generation, &spec.bytes);
            }
        }
    }

    /// Every fault is over. Clocks that were set wrong stay wrong.
    pub fn heal(&mut self) {
        self.transcript.tell(self.now, "HEAL", 0, String::new);
        for heal in std::mem::take(&mut self.heals).into_values() {
            match heal {
                Heal::Restart { gateway } => self.kill_gateway(gateway),
                Heal::Reinstate { node } => self.reinstate(node),
                Heal::Confirm => self.confirm(),
                Heal::Unblock { .. } => {}
            }
        }
        self.net.unblock_all();
        self.net.connections.values_mut().for_each(|connection| {
            connection.up.delay = 0;
            connection.down.delay = 0;
        });
        self.hostile.stop();
        // A gateway that turned is taken away, and its sessions with it.
        let turned: Vec<u64> =
            self.net.connections.iter().filter(|(_, held)| held.hostile).map(|(id, _)| *id).collect();
        for id in turned {
            self.net.cut(id, 0, self.now);
        }
        self.store.stop_failing();
        self.workers_until = 0;
        for node in &mut self.nodes {
            node.traps.clear();
            node.disk.fill(0);
            node.slow_until = 0;
        }
        for gateway in &mut self.gateways {
            gateway.paused_until = None;
        }
        self.upgrade_all();
    }

    /// Every gateway is of this release, and so is every daemon that those do not talk to.
    fn upgrade_all(&mut self) {
        for g in 0..self.gateways.len() {
            self.gateway_release(g, Release::Current);
        }
        for n in 0..self.nodes.len() {
            if Release::Current.versions().common(self.nodes[n].release.versions()).is_none() {
                self.node_release(n, Release::Current);
            }
        }
    }

    /// What a pass did to a machine, against the spec it was for.
    pub fn look_at_holds(&mut self, n: usize, generation: u64) {
        let changed = {
            let mut machine = self.nodes[n].machine.lock().expect("no holder of this lock panics");
            std::mem::take(&mut machine.changed)
        };
        for (allocation, held) in changed {
            let explained = self.plane.specs.iter().any(|((node, _, of), spec)| {
                let devices = spec.body.spec.as_ref().and_then(|spec| spec.devices.as_ref());
                let entry = devices
                    .and_then(|d| d.assignments.iter().find(|entry| entry.allocation_id == allocation));
                let says = entry.map(|entry| entry.desired() == wire::proto::agent::DesiredHold::Held);
                *node == n && *of == generation && says == Some(held)
            });
            if !explained {
                self.watch.broken(Invariant::Explained, self.now, || {
                    format!(
                        "node {} changed {allocation}, which its generation {generation} does not ask for",
                        n + 1
                    )
                });
            }
        }
    }

    /// At rest: what is held is what the newest spec lists, or is told of.
    pub fn look_at_unlisted(&mut self, n: usize) {
        let node = &self.nodes[n];
        let Some(process) = &node.process else { return };
        let view = process.engine.view(node.now(self.now, process.started));
        let told: Vec<&str> = view
            .conditions
            .iter()
            .filter(|held| held.kind == "UnlistedHold")
            .map(|held| held.device.as_str())
            .collect();
        let holds = node.machine.lock().expect("no holder of this lock panics").holds.clone();
        for hold in &holds {
            let listed = hold.parse::<AllocationId>().ok().and_then(|id| self.plane.lists(n, id));
            if listed != Some(true) && !told.contains(&hold.as_str()) {
                self.watch.broken(Invariant::Explained, self.now, || {
                    format!("node {} holds {hold}, which nothing lists and nobody was told of", n + 1)
                });
            }
        }
    }
}
