//! A daemon's steps as its actor takes them: decide, make durable, act; and every place where it can die in between.

use agent::effect::Effect;
use agent::engine::{self, Input};
use agent::hardware::NoHardware;
use agent::journal::{Entry, JournalStore, Marks, Stage, Write};
use agent::kinds::Outcome;
use futures::FutureExt;
use kernel::ports::delivery::StoredCommand;
use model::{CommandId, CommandKind};
use pki::{Purpose, SignedMessage, TrustBundle};
use prost::Message;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::command_result::Result as Done;
use wire::proto::agent::node_frame::Frame as Up;

use super::action::{How, Point};
use super::clock::{MILLI, Micros, SECOND};
use super::disk::Disk;
use super::draw::For;
use super::hostile;
use super::invariants::Invariant;
use super::network::{Network, Packet};
use super::nodes::{
    COMMIT_ATTEMPTS, Committing, HARDWARE_PERIOD, Wire, Worker, boot_id, hardware, journal_id,
};
use super::plane::node_id;
use super::skew;
use super::world::World;

impl World {
    /// What is due on a node.
    pub fn node_turn(&mut self, n: usize) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if node.slow_until > 0 && node.slow_until <= now {
            node.slow_until = 0;
        }
        let Some(process) = &mut node.process else {
            node.starts_at = None;
            // Opening a journal makes durable what its file holds.
            let synced = node.disk.sync();
            self.look_at_synced(n, &synced);
            self.told.starts(n);
            self.nodes[n].start(n, now, self.seed);
            self.transcript.note(now, "start", n as u64, &[]);
            if !self.dies(n, Point::Started) {
                self.settle(n, vec![Input::Tick]);
            }
            return;
        };
        if process.committing.is_some() {
            return self.commit(n);
        }
        let mut inputs = std::mem::take(&mut process.inputs);
        if process.next_hardware <= now {
            process.next_hardware = now + HARDWARE_PERIOD;
            inputs.push(hardware());
        }
        if let Wire::Dialing { due, gateway } = process.wire
            && due <= now
        {
            let input = self.dialed(n, gateway);
            inputs.push(input);
        }
        if !self.work(n, &mut inputs) || !self.pass(n, &mut inputs) {
            return;
        }
        if inputs.is_empty() {
            inputs.push(Input::Tick);
        }
        self.settle(n, inputs);
    }

    /// Workers act and finish. False when the daemon died.
    fn work(&mut self, n: usize, inputs: &mut Vec<Input>) -> bool {
        let now = self.now;
        let due: Vec<CommandId> = match &self.nodes[n].process {
            Some(process) => process
                .workers
                .iter()
                .filter(|(_, w)| w.acts_at.unwrap_or(w.done_at) <= now)
                .map(|(id, _)| *id)
                .collect(),
            None => return false,
        };
        for id in due {
            let Some(process) = &mut self.nodes[n].process else { return false };
            let Some(worker) = process.workers.get_mut(&id) else { continue };
            let kind = worker.kind;
            if worker.acts_at.take_if(|at| *at <= now).is_some() {
                if worker.cancelled {
                    process.workers.remove(&id);
                    inputs.push(Input::Finished { id, outcome: Outcome::Cancelled });
                    continue;
                }
                let incarnation = process.incarnation;
                self.watch.acts(&self.nodes[n], n, id, kind, incarnation, now);
                self.told.acts(self.nodes[n].disk.id(), id);
                self.transcript.note(now, "acts", n as u64, id.uuid().as_bytes());
                self.transcript.tell(now, "acts", n as u64, || id.to_string());
                if self.dies(n, Point::Acted) {
                    return false;
                }
            } else if worker.done_at <= now {
                process.workers.remove(&id);
                if kind.policy().self_terminating {
                    // The machine goes down in good order.
                    self.die(n, How::Power, true);
                    return false;
                }
                self.nodes[n].drawn += 1;
                let failed = self.draw.number(For::Work, n as u64, self.nodes[n].drawn).is_multiple_of(5);
                inputs.push(Input::Finished { id, outcome: outcome(kind, failed) });
            }
        }
        true
    }

    /// A converge pass begins or ends. False when the daemon died.
    fn pass(&mut self, n: usize, inputs: &mut Vec<Input>) -> bool {
        let (now, boot) = (self.now, self.nodes[n].boot);
        self.nodes[n].drawn += 1;
        let length = self.draw.between(For::Pass, n as u64, self.nodes[n].drawn, MILLI, 200 * MILLI);
        let Some(process) = &mut self.nodes[n].process else { return false };
        let pass = &mut process.pass;
        let Some((held, _)) = pass.running.take_if(|(_, at)| *at <= now) else {
            if pass.running.is_none() && (pass.woken || pass.next <= now) {
                pass.woken = false;
                pass.next = Micros::MAX;
                pass.running = process.engine.held().map(|held| (held.clone(), now + length));
            }
            return true;
        };
        let context = agent::converge::ConvergeContext {
            node_id: node_id(n),
            generation: held.generation,
            boot_id: boot_id(boot),
            first_pass: !pass.not_first,
            cancel: CancellationToken::new(),
            secrets: Default::default(),
        };
        let busy = self.draw.number(For::Busy, n as u64, self.nodes[n].drawn).is_multiple_of(5);
        self.nodes[n].machine.lock().expect("no holder of this lock panics").busy = busy;
        let Some(process) = &mut self.nodes[n].process else { return false };
        let pass = &mut process.pass;
        pass.not_first |= !busy;
        let report = agent::converge::pass(&mut process.convergers, &held, &context).now_or_never();
        let report = report.expect("convergers over memory answer at once");
        if report.settled() {
            self.told.settles(n, held.generation);
        }
        pass.next = now + if report.settled() { 600 * SECOND } else { 10 * SECOND };
        self.look_at_holds(n, held.generation);
        if self.dies(n, Point::Passed) {
            return false;
        }
        inputs.push(Input::Passed(report));
        true
    }

    /// Decides, and goes on to make it durable.
    fn settle(&mut self, n: usize, inputs: Vec<Input>) {
        let (now, node) = (self.now, &mut self.nodes[n]);
        let Some(process) = &node.process else { return };
        let (moment, skew) = (node.now(now, process.started), node.skew);
        let Some(process) = &mut node.process else { return };
        let mut misled = false;
        for mut input in inputs {
            if let Input::Frame(frame) = &mut input {
                hostile::unless_borne_out(frame, skew, now);
                if self.hostile.high_ack[n] && process.engine.view(moment).journal.event_backlog == 0 {
                    misled = hostile::acknowledge_too_far(frame);
                    self.hostile.high_ack[n] &= !misled;
                }
            }
            process.engine.handle(input, moment);
        }
        let writes = process.engine.take_writes();
        let effects = process.engine.take_effects();
        let marks = node.disk.durable_marks();
        process.committing = Some(Committing { writes, effects, marks, attempts: 0, at: now });
        if misled {
            self.hit("high-ack");
            self.connection_of(n).into_iter().for_each(|id| self.turned(id));
        }
        self.look_at_writes(n);
        self.look_at_decided(n);
        if !self.dies(n, Point::Decided) {
            self.commit(n);
        }
    }

    fn look_at_writes(&mut self, n: usize) {
        let node = &self.nodes[n];
        let Some(process) = &node.process else { return };
        let Some(Committing { writes, .. }) = &process.committing else { return };
        let mut marks = node.disk.durable_marks().max(node.kept.marks);
        for write in writes {
            if let Write::Entry(Entry { command_id, stage: Stage::Accepted, .. }) = write {
                self.watch.accepts(&self.plane, n, *command_id, marks, self.now);
            }
            if let Write::Entry(Entry { command_id, stage: Stage::Done { update }, .. }) = write {
                self.watch.refuses(&self.plane, n, node.release, *command_id, update, self.now);
            }
            if let Write::Marks(raised) = write {
                marks = marks.max(*raised);
            }
            if let Write::Spec(spec) = write {
                self.watch.takes_spec(&self.plane, n, spec, marks, &process.nonce, self.now);
                let taken = Marks {
                    generation: spec.generation,
                    deployment_epoch: spec.deployment_epoch,
                    server_time_ms: 0,
                };
                marks = marks.max(taken);
            }
        }
    }

    /// Makes a step durable, and lets its effects happen.
    fn commit(&mut self, n: usize) {
        let now = self.now;
        let disk = self.nodes[n].disk.clone();
        let Some(process) = &mut self.nodes[n].process else { return };
        let Some(mut step) = process.committing.take() else { return };
        if !step.writes.is_empty() {
            if disk.is_full() {
                step.attempts += 1;
                step.at = now + ((200 * MILLI) << step.attempts);
                let gives_up = step.attempts >= COMMIT_ATTEMPTS;
                process.committing = Some(step);
                self.hit("disk-full");
                if gives_up {
                    self.die(n, How::Kill, false);
                }
                return;
            }
            self.commits += 1;
            note_writes(self, n, &step.writes);
            disk.append(std::mem::take(&mut step.writes));
            if self.dies(n, Point::Appended) {
                return;
            }
            let synced = disk.sync();
            self.look_at_synced(n, &synced);
            if self.dies(n, Point::Committed) {
                return;
            }
        }
        for effect in step.effects {
            if !self.perform(n, effect, &disk, step.marks) || self.dies(n, Point::Effect) {
                return;
            }
        }
        let node = &mut self.nodes[n];
        let read = node.process.as_ref().is_some_and(|process| process.inputs.is_empty());
        if let Some(id) = node.must_leave.take_if(|_| read)
            && self.connection_of(n) == Some(id)
        {
            self.watch.broken(Invariant::Versions, now, || {
                format!("node {} goes on with a gateway of a version before the first", n + 1)
            });
        }
    }

    /// Does one effect. False when the daemon died.
    fn perform(&mut self, n: usize, effect: Effect, disk: &Disk, decided: Marks) -> bool {
        let now = self.now;
        let Some(process) = &mut self.nodes[n].process else { return false };
        match effect {
            Effect::Send(outgoing) => {
                let Wire::Up(id) = process.wire else { return true };
                let node = &self.nodes[n];
                let Some(process) = &node.process else { return false };
                let at = process.engine.server_time(node.now(now, process.started));
                let frames =
                    engine::render(outgoing, disk, &NoHardware, at).expect("the simulated disk always reads");
                for frame in frames {
                    self.node_says(n, id, frame);
                }
            }
            Effect::Run { id, kind, .. } => self.start_worker(n, id, kind, decided),
            Effect::Cancel(id) => {
                if let Some(worker) = process.workers.get_mut(&id) {
                    worker.cancelled = true;
                }
            }
            Effect::Converge => {
                process.pass.woken = true;
                if let Some(generation) = process.engine.held().map(|held| held.generation) {
                    self.watch.converges(&self.nodes[n], n, generation, now);
                }
            }
            Effect::Dial => {
                self.nodes[n].drawn += 1;
                let drawn = self.draw.number(For::Gateway, n as u64, self.nodes[n].drawn);
                let gateway = usize::try_from(drawn % self.gateways.len() as u64).unwrap_or(0);
                let wait = if self.net.is_blocked(n, gateway) || self.gateways[gateway].paused_until.is_some()
                {
                    Network::dial_timeout()
                } else {
                    5 * MILLI + drawn % (20 * MILLI)
                };
                if let Some(process) = &mut self.nodes[n].process {
                    process.wire = Wire::Dialing { due: now + wait, gateway };
                }
            }
            Effect::Hangup => {
                if let Wire::Up(id) = process.wire {
                    self.node_leaves(n, id, true);
                } else {
                    process.wire = Wire::Down;
                }
            }
            Effect::StoreTrust { version, signed } => {
                let message = SignedMessage::decode(&signed).expect("a bundle the engine verified");
                let trust = TrustBundle::parse(&message.body).expect("a bundle the engine verified");
                process.inputs.push(Input::TrustStored { version });
                self.nodes[n].kept.trust = trust;
                self.nodes[n].kept.signed_trust = signed;
            }
            Effect::StoreMarks(marks) => {
                if self.dies(n, Point::Mirror) {
                    return false;
                }
                let kept = &mut self.nodes[n].kept.marks;
                *kept = kept.max(marks);
            }
            Effect::OpenTunnel { .. } | Effect::CloseTunnels | Effect::Told { .. } => {}
        }
        true
    }

    fn node_says(&mut self, n: usize, id: u64, frame: wire::proto::agent::NodeFrame) {
        self.watch.node_says(&self.nodes[n], n, &frame, self.now);
        self.look_at_word(n, &frame);
        if let Some(Up::Hello(hello)) = &frame.frame
            && let Some(process) = &mut self.nodes[n].process
        {
            process.nonce = hello.nonce.to_vec();
        }
        self.frames += 1;
        self.transcript.frame(self.now, "up", id, &frame);
        let hello = matches!(frame.frame, Some(Up::Hello(_)));
        for frame in self.hostile.says(n, id, frame, &mut self.hits) {
            self.net.send_up(id, Packet::Frame(Box::new(frame)), self.now, self.draw);
        }
        if hello && self.nodes[n].release.sends_new_frames() {
            let frame = Packet::Frame(Box::new(skew::unknown_frame()));
            self.net.send_up(id, frame, self.now, self.draw);
        }
    }

    fn start_worker(&mut self, n: usize, id: CommandId, kind: CommandKind, decided: Marks) {
        let now = self.now;
        self.look_at_begin(n, id);
        self.nodes[n].drawn += 1;
        let drawn = self.draw.number(For::Worker, n as u64, self.nodes[n].drawn);
        let node = &self.nodes[n];
        let Some(process) = &node.process else { return };
        self.watch.running_is_durable(node, n, id, process.incarnation, now);
        self.watch.runs(&self.plane, node, n, id, kind, decided, &process.workers, now);
        let keys = self.plane.commands.get(&id).map(|issued| issued.body.resource_keys.clone());
        // Most are quick, some take seconds.
        let length = if drawn.is_multiple_of(4) { drawn % (20 * SECOND) } else { drawn % (300 * MILLI) };
        let acts_at = now + length / 2;
        let worker = Worker {
            kind,
            acts_at: Some(acts_at),
            done_at: acts_at + length / 2 + MILLI,
            cancelled: false,
            keys: keys.unwrap_or_default(),
        };
        if let Some(process) = &mut self.nodes[n].process {
            process.workers.insert(id, worker);
        }
    }

    /// Whether a trap is set here, and closes.
    fn dies(&mut self, n: usize, point: Point) -> bool {
        let traps = &mut self.nodes[n].traps;
        let Some(at) = traps.iter().position(|trap| trap.point == point) else { return false };
        if traps[at].skip > 0 {
            traps[at].skip -= 1;
            return false;
        }
        let trap = traps.remove(at);
        self.hit(point.crash_name());
        self.die(n, trap.how, false);
        true
    }

    /// The daemon dies; `orderly` when the machine goes down and syncs its disks first.
    pub fn die(&mut self, n: usize, how: How, orderly: bool) {
        let now = self.now;
        self.transcript.note(now, "dies", n as u64, how.name().as_bytes());
        self.transcript.tell(now, "dies", n as u64, || how.name().to_owned());
        self.nodes[n].drawn += 1;
        let drawn = self.draw.number(For::Boot, n as u64, self.nodes[n].drawn);
        let power = how != How::Kill;
        let held: Vec<u64> =
            self.net.connections.iter().filter(|(_, c)| c.node == n && !c.left).map(|(id, _)| *id).collect();
        for id in held {
            // A kernel tells the other side; a machine without power does not.
            self.node_leaves(n, id, !power || orderly);
        }
        let node = &mut self.nodes[n];
        node.process = None;
        node.slow_until = 0;
        node.starts_at = Some(
            now + if power { 5 * SECOND + drawn % (60 * SECOND) } else { SECOND + drawn % (4 * SECOND) },
        );
        if power {
            node.boot += 1;
            let kept = match (how, orderly) {
                (_, true) => usize::MAX,
                (How::Torn, _) => usize::try_from(drawn % 3).unwrap_or(0),
                _ => 0,
            };
            let (synced, lost) = node.disk.power_cut(kept);
            self.look_at_synced(n, &synced);
            if lost > 0 {
                self.hit(if how == How::Torn { "torn-record" } else { "lost-writes" });
            }
        }
        if how == How::Lost {
            let node = &mut self.nodes[n];
            node.journals += 1;
            node.disk = std::sync::Arc::new(Disk::new(journal_id(n, node.journals)));
            self.hit("journal-lost");
        }
    }

    /// Enqueues a command that was signed.
    pub fn enqueue(&mut self, node: usize, id: u64, kind: &str, ttl: u64, needs: u64, key: u64) {
        let now = self.now;
        if self.plane.commands.contains_key(&agent::testing::command_id(id.into())) {
            return;
        }
        let issued = self.plane.command(node, id, kind, ttl, needs, key, now).clone();
        let lane = CommandKind::parse(kind).map_or("control", |kind| kind.policy().lane.name());
        let stored = StoredCommand {
            command_id: agent::testing::command_id(id.into()),
            node_id: node_id(node),
            kind: kind.to_owned(),
            lane: lane.to_owned(),
            signature: self.sign_for(node, Purpose::Command, &issued.bytes).to_vec(),
            body: issued.bytes.to_vec(),
            attempt: 0,
            cancel_requested: None,
        };
        self.delivery.enqueue(stored, issued.not_after);
        self.poke_soon();
    }
}

fn outcome(kind: CommandKind, failed: bool) -> Outcome {
    if failed {
        return Outcome::failed("broken", "the simulated machine says no");
    }
    Outcome::Succeeded(match kind {
        CommandKind::InventoryRefresh => Done::InventoryRefresh(Default::default()),
        CommandKind::DiagNvml => Done::DiagNvml(Default::default()),
        CommandKind::LogsCollect => Done::LogsCollect(Default::default()),
        CommandKind::GpuReset => Done::GpuReset(Default::default()),
        CommandKind::NodeReboot => Done::NodeReboot(Default::default()),
    })
}

/// What is written goes into the transcript, as a few bytes each.
fn note_writes(world: &mut World, n: usize, writes: &[Write]) {
    for write in writes {
        let mut bytes = Vec::new();
        match write {
            Write::Entry(entry) => {
                bytes.extend(entry.command_id.uuid().as_bytes());
                match &entry.stage {
                    agent::journal::Stage::Accepted => bytes.push(0),
                    agent::journal::Stage::Running { .. } => bytes.push(1),
                    agent::journal::Stage::Done { update } => bytes.extend(update.encode_to_vec()),
                }
            }
            Write::ResultAcked(id) | Write::RemoveEntry(id) => bytes.extend(id.uuid().as_bytes()),
            Write::Event(event) => bytes.extend(&event.report),
            Write::RemoveEvent(seq) | Write::EventsAcked(seq) | Write::LastSeq(seq) => {
                bytes.extend(seq.to_le_bytes())
            }
            Write::Spec(spec) => bytes.extend(&spec.body),
            Write::Marks(marks) => bytes.extend(marks.server_time_ms.to_le_bytes()),
            Write::Ticket { id, .. } | Write::RemoveTicket(id) => bytes.extend(id.as_bytes()),
        }
        world.transcript.note(world.now, "write", n as u64, &bytes);
        world.transcript.tell(world.now, "write", n as u64, || {
            let mut text = format!("{write:?}");
            text.truncate(text.char_indices().nth(300).map_or(text.len(), |(end, _)| end));
            text
        });
    }
}
