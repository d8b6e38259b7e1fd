//! What a machine is brought to, and what a look at it shows.

use agent::converge::{self, ConvergeContext, DRIFT_PERIOD, RETRY_PERIOD};
use agent::engine::Input;
use agent::journal::{JournalStore, Marks};
use agent::secrets::{SecretTold, SecretWanted};
use handlers::machine::PASS_PERIOD;
use model::NodeId;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::DesiredHold;

use super::{SimNode, at_once, hosts};
use crate::world::{HoldView, NodeView, ReleaseView};

impl SimNode {
    pub(super) fn look(&mut self) {
        let now = self.now();
        let Some(alive) = &mut self.alive else { return };
        alive.next_look = now.monotonic + PASS_PERIOD;
        at_once("look at the machine", alive.machine.pass());
    }

    pub(super) fn converge(&mut self) -> Option<Input> {
        let node_id = self.node_id()?;
        let now = self.now();
        let alive = self.alive.as_mut()?;
        let Some(held) = alive.engine.held().cloned() else {
            alive.converge_at = None;
            return None;
        };
        let context = ConvergeContext {
            node_id,
            generation: held.generation,
            boot_id: alive.boot_id.clone(),
            first_pass: std::mem::take(&mut alive.first_pass),
            cancel: CancellationToken::new(),
            secrets: alive.desk.clone(),
        };
        let report = at_once("converge", converge::pass(&mut alive.convergers, &held, &context));
        let pause = if report.settled() { DRIFT_PERIOD } else { RETRY_PERIOD };
        alive.converge_at = Some(now.monotonic + pause);
        let released: Vec<String> = held
            .spec
            .devices
            .iter()
            .flat_map(|devices| &devices.assignments)
            .filter(|one| one.desired == i32::from(DesiredHold::Released))
            .map(|one| one.allocation_id.clone())
            .collect();
        self.note_holds(node_id, held.generation, &released);
        self.note_domains(held.generation, &hosts::deleted(&held.spec));
        self.look();
        Some(Input::Passed(report))
    }

    pub(super) fn hang_up(&mut self) {
        let Some(alive) = &mut self.alive else { return };
        if let Some(line) = alive.line.take() {
            line.send(None);
        }
    }

    /// What the next pass takes up.
    pub(super) fn told(&mut self, wanted: SecretWanted, told: SecretTold) {
        if let Some(alive) = &self.alive {
            alive.desk.put(wanted, told);
        }
    }

    /// What is held now, beside what was held before.
    fn note_holds(&mut self, node_id: NodeId, generation: u64, released: &[String]) {
        let now = self.core.now();
        let live = at_once("read holds", handlers::sections::devices::observe::hold_files(&*self.files));
        let live = live.expect("memory reads");
        let before = std::mem::take(&mut self.holds);
        for hold in live.holds() {
            let since = before.get(&hold.allocation).map_or(now, |held| held.since);
            let view = HoldView { allocation_id: hold.allocation, atoms: hold.atoms.clone(), since };
            self.holds.insert(hold.allocation, view);
        }
        for allocation_id in before.into_keys().filter(|id| !self.holds.contains_key(id)) {
            let intended = released.contains(&allocation_id.to_string());
            self.releases.push(ReleaseView { node_id, allocation_id, at: now, generation, intended });
        }
    }

    /// What a look at the machine shows.
    pub fn view(&self) -> NodeView {
        let (marks, last_event_seq, acked_event_seq) = self.journal.position();
        NodeView {
            index: self.index,
            node_id: self.node_id(),
            up: self.is_up(),
            declared_dead: self.declared_dead,
            boot_id: at_once("read the boot id", hw::Hardware::boot_id(&*self.hardware)).unwrap_or_default(),
            journal_id: self.journal.id(),
            marks: marks.max(self.identity.as_ref().map_or_else(Marks::default, |own| own.marks)),
            last_event_seq,
            acked_event_seq,
            holds: self.holds.values().cloned().collect(),
            domains: self.domains.values().cloned().collect(),
            effects: self.effects.clone(),
        }
    }
}
