//! A machine that does what its spec says, in memory, and says so: late, again, or out of order when the dice say so.

use std::collections::BTreeMap;

use kernel::Fault;
use kernel::ports::node::NodeObserver;
use kit::{Clock, Rng};
use model::{AllocationId, JournalId, NodeId};
use sim::world::{DomainView, HoldView, NodeView, ReleaseView};
use store::{Sql, sql};
use uuid::Uuid;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{
    AllocationBound, AllocationFailed, AllocationReleased, DesiredHold, DesiredStateBody, DeviceAssignment,
    NodeReport,
};

use crate::clock::HandClock;
use crate::cloud::{OP, Process};

/// What it says again at random, of all it said lately.
const REMEMBERED_MAX: usize = 32;

pub struct Machine {
    index: usize,
    pub node_id: NodeId,
    generation: u64,
    holds: BTreeMap<AllocationId, HoldView>,
    /// Said and not heard yet.
    unsent: Vec<Report>,
    said: Vec<Report>,
    pub releases: Vec<ReleaseView>,
    /// As a test says.
    pub domains: Vec<DomainView>,
}

const SPEC: Sql = sql(
    "test_spec_of",
    "SELECT generation, spec_body FROM nodes WHERE node_id = $1 AND generation > $2 AND spec_body IS NOT NULL",
);
const OBSERVED: Sql = sql(
    "test_observed",
    "UPDATE node_status SET observed_generation = greatest(observed_generation, $2), applied_generation = $2
     WHERE node_id = $1",
);

impl Machine {
    pub fn new(index: usize, node_id: NodeId) -> Self {
        Self {
            index,
            node_id,
            generation: 0,
            holds: BTreeMap::new(),
            unsent: Vec::new(),
            said: Vec::new(),
            releases: Vec::new(),
            domains: Vec::new(),
        }
    }

    pub fn view(&self) -> NodeView {
        NodeView {
            declared_dead: false,
            index: self.index,
            node_id: Some(self.node_id),
            up: true,
            boot_id: "boot-1".to_owned(),
            journal_id: JournalId::from_uuid(Uuid::from_u128(self.index as u128 + 1)),
            marks: agent::journal::Marks {
                server_time_ms: 0,
                generation: self.generation,
                deployment_epoch: 1,
            },
            last_event_seq: 0,
            acked_event_seq: 0,
            holds: self.holds.values().cloned().collect(),
            domains: self.domains.clone(),
            effects: Vec::new(),
        }
    }

    /// Takes a newer spec, and says something. Whether anything happened.
    pub async fn live(&mut self, process: &Process, clock: &HandClock, dice: &dyn Rng) -> bool {
        let took = dice.below(3) < 2 && self.take_spec(process, clock, dice).await;
        let mut told = false;
        // With calm dice everything is said, in order.
        while !self.unsent.is_empty() && dice.below(4) < 3 {
            let at = usize::try_from(dice.below(self.unsent.len() as u64)).expect("a small list");
            let report = self.unsent.remove(at);
            self.tell(process, clock, &report).await;
            self.said.push(report);
            told = true;
        }
        if dice.below(4) == 3 && !self.said.is_empty() {
            // A report comes at least once, and may come late.
            let at = usize::try_from(dice.below(self.said.len() as u64)).expect("a small list");
            let report = self.said[at].clone();
            self.tell(process, clock, &report).await;
        }
        let forgotten = self.said.len().saturating_sub(REMEMBERED_MAX);
        self.said.drain(..forgotten);
        took || told
    }

    async fn take_spec(&mut self, process: &Process, clock: &HandClock, dice: &dyn Rng) -> bool {
        let held = i64::try_from(self.generation).expect("a small number");
        let row = process.store.read_opt(&SPEC, &[&self.node_id.uuid(), &held]).await.expect("it is right");
        let Some(row) = row else { return false };
        let body: &[u8] = row.get("spec_body");
        let body: DesiredStateBody =
            wire::decode("spec", body, wire::limits::SPEC_BODY_BYTES_MAX).expect("what is stored decodes");
        self.generation = body.generation;
        for assignment in body.spec.and_then(|spec| spec.devices).unwrap_or_default().assignments {
            self.converge(&assignment, clock, dice);
        }
        let stands = i64::try_from(self.generation).expect("a small number");
        process.store.execute(&OBSERVED, &[&self.node_id.uuid(), &stands]).await.expect("it is right");
        true
    }

    /// What no spec lists stays as it is: only an assignment that says so lets go.
    fn converge(&mut self, assignment: &DeviceAssignment, clock: &HandClock, dice: &dyn Rng) {
        let Ok(allocation_id) = assignment.allocation_id.parse::<AllocationId>() else { return };
        let (id, generation) = (assignment.allocation_id.clone(), self.generation);
        if assignment.desired() != DesiredHold::Held {
            if self.holds.remove(&allocation_id).is_some() {
                self.releases.push(ReleaseView {
                    node_id: self.node_id,
                    allocation_id,
                    at: clock.now(),
                    generation,
                    intended: true,
                });
            }
            self.unsent
                .push(Report::AllocationReleased(AllocationReleased { allocation_id: id, generation }));
            return;
        }
        if self.holds.contains_key(&allocation_id) {
            return;
        }
        if dice.below(8) == 7 {
            let (reason, message) = ("resources-exhausted".to_owned(), String::new());
            let failed = AllocationFailed { allocation_id: id, generation, reason, message };
            self.unsent.push(Report::AllocationFailed(failed));
            return;
        }
        let atoms = assignment.atoms.clone();
        let cdi_devices = match atoms.is_empty() {
            true => vec![format!("bcd.dev/host={id}")],
            false => atoms.iter().map(|atom| format!("bcd.dev/gpu={atom}")).collect(),
        };
        self.holds
            .insert(allocation_id, HoldView { allocation_id, atoms: atoms.clone(), since: clock.now() });
        let bound = AllocationBound { allocation_id: id, generation, cdi_devices, atoms };
        self.unsent.push(Report::AllocationBound(bound));
    }

    /// As `fleet` hands a report on that it verified.
    async fn tell(&self, process: &Process, clock: &HandClock, report: &Report) {
        let (capacity, node_id, now) = (&process.capacity, self.node_id, clock.now());
        let report = &NodeReport { node_id: node_id.to_string(), report: Some(report.clone()) };
        let handled = process
            .store
            .tx(OP, |tx| Box::pin(async move { capacity.report(tx, node_id, report, now).await }))
            .await;
        // What a handler refuses is undone and told, and the report is done with.
        if let Err(fault) = handled
            && !matches!(fault, Fault::Refused(_))
        {
            panic!("a report was not handled: {}", kit::chain(&fault));
        }
    }
}
