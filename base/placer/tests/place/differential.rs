//! The index against the plain scan, over random pools and random histories.

use model::unit::GIB;
use placer::{Booking, Claim, Hint, NodeView, Placement, Policy, Snapshot, Standing, Verdict};
use proptest::prelude::*;

use crate::fixture::{id, node, snapshot};
use crate::naive::Naive;

const MODELS: [&str; 3] = ["a100", "h100", "l4"];
const NODES_MAX: u8 = 24;

fn standing() -> impl Strategy<Value = Standing> {
    let draining = Standing { draining: true, ..Standing::READY };
    prop_oneof![8 => Just(Standing::READY), 1 => Just(draining)]
}

/// Mostly one; a rare one, which is searched by its own list; one whose daemons are old.
fn tier() -> impl Strategy<Value = u8> {
    prop_oneof![12 => Just(0u8), 1 => Just(1u8), 3 => Just(2u8)]
}

/// A node of any make: models mixed, devices with and without NVLink, of several sizes and of unknown place.
fn any_node(number: u128) -> impl Strategy<Value = NodeView> {
    let device = (
        prop_oneof![6 => Just(0usize), 1 => 0..3usize],
        prop_oneof![9 => Just(80u64), 1 => Just(40u64)],
        prop_oneof![1 => Just(None), 8 => (0..2u16).prop_map(Some)],
        proptest::option::of(0..3u16),
        proptest::bool::weighted(0.05),
    );
    let devices = proptest::collection::vec(device, 0..9);
    (devices, 0..3u64, 0..3u64, standing(), tier()).prop_map(move |(devices, cpus, gib, standing, tier)| {
        let mut view = node(number, devices.len() as u16, MODELS[0]);
        for (view, (model, gib, numa, island, sick)) in view.devices.iter_mut().zip(devices) {
            view.model = MODELS[(model + number as usize) % 3].into();
            view.memory_bytes = gib * GIB;
            (view.numa, view.island) = (numa, island);
            view.unhealthy = sick.then(|| "Xid 79".into());
        }
        view.host.cpu_millis.total = 8_000 << cpus;
        view.host.memory_bytes.total = (64 << gib) * GIB;
        // One in four does not tell.
        view.host.disk_bytes = if gib == 2 && cpus > 0 {
            placer::Amount::UNBOUNDED
        } else {
            placer::Amount::unbooked((64 << gib) * GIB)
        };
        view.standing = standing;
        view.labels.insert("tier".to_owned(), format!("t{tier}"));
        if tier == 2 {
            view.labels.remove("bc.dev/cap.devices.limits");
        }
        view
    })
}

fn claim() -> impl Strategy<Value = Claim> {
    let gpus = prop_oneof![2 => Just(0), 6 => 1..4u32, 1 => 4..9u32];
    let model = proptest::option::of(0..3usize);
    let sizes = (
        prop_oneof![4 => Just(0u64), 1 => Just(80)],
        0..9u64,
        0..40u64,
        prop_oneof![4 => Just(0u64), 1 => 1..3u64],
        prop_oneof![3 => Just(0u64), 1 => 1..200u64],
    );
    let tier = proptest::option::weighted(0.2, 0..4u8);
    let avoid = proptest::collection::btree_set(1..=u128::from(NODES_MAX), 0..3);
    (gpus, model, sizes, proptest::bool::weighted(0.1), tier, avoid, any::<bool>()).prop_map(
        |(gpus, model, (gpu_gib, cpus, gib, pages, disk_gib), whole_node, tier, avoid, limits)| Claim {
            gpus,
            model: model.map(|at| MODELS[at].to_owned()),
            gpu_memory_bytes_min: gpu_gib * GIB,
            cpu_millis: cpus * 500,
            memory_bytes: gib * GIB + gib,
            hugepages_1gi: pages,
            disk_bytes: disk_gib * GIB,
            whole_node,
            selector: tier.map(|tier| ("tier".to_owned(), format!("t{tier}"))).into_iter().collect(),
            avoid: avoid.into_iter().map(id).collect(),
            capabilities: limits.then(|| "devices.limits".to_owned()).into_iter().collect(),
        },
    )
}

#[derive(Debug, Clone)]
enum Step {
    Place(Claim, Policy),
    Release(prop::sample::Index),
    Standing(u8, Standing),
    /// A device falls ill or is well again.
    Health(u8, prop::sample::Index, bool),
    /// The node's inventory is read again: nothing changes but the generation.
    Upsert(u8),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1..=NODES_MAX;
    let policy = prop_oneof![Just(Policy::Pack), Just(Policy::Spread)];
    prop_oneof![
        12 => (claim(), policy).prop_map(|(claim, policy)| Step::Place(claim, policy)),
        5 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => (node(), standing()).prop_map(|(node, standing)| Step::Standing(node, standing)),
        1 => (node(), any::<prop::sample::Index>(), any::<bool>()).prop_map(|(node, at, sick)| Step::Health(node, at, sick)),
        1 => node().prop_map(Step::Upsert),
        1 => node().prop_map(Step::Remove),
    ]
}

fn pool() -> impl Strategy<Value = Vec<NodeView>> {
    (1..=NODES_MAX).prop_flat_map(|count| (1..=u128::from(count)).map(any_node).collect::<Vec<_>>())
}

/// The claim with fewer GPUs and as much of the host for each.
fn part(claim: &Claim, gpus: u32) -> Claim {
    let share = |amount: u64| (amount * u64::from(gpus)).div_ceil(u64::from(claim.gpus));
    let (cpu_millis, memory_bytes) = (share(claim.cpu_millis), share(claim.memory_bytes));
    let (hugepages_1gi, disk_bytes) = (share(claim.hugepages_1gi), share(claim.disk_bytes));
    Claim { gpus, cpu_millis, memory_bytes, hugepages_1gi, disk_bytes, ..claim.clone() }
}

struct Both {
    snapshot: Snapshot,
    naive: Naive,
    booked: Vec<Booking>,
}

impl Both {
    fn place(&mut self, claim: &Claim, policy: Policy) {
        let expected = self.naive.find(claim, policy);
        let found = self.snapshot.find(claim, policy);
        let scores = (found.as_ref().map(|found| found.score), expected.as_ref().map(|best| best.score));
        assert_eq!(scores.0, scores.1, "{claim:?} {policy:?}");
        self.check_explanation(claim, policy, found.as_ref());
        let (Some(found), Some(expected)) = (found, expected) else { return };
        let atoms: Vec<&str> = found.booking.atoms.iter().map(|atom| atom.as_str()).collect();
        assert_eq!(atoms, expected.atoms, "{claim:?} {policy:?}");
        assert_eq!(self.snapshot.generation(found.booking.node), Some(found.generation));
        self.snapshot.book(&found.booking).expect("what was just found can be booked");
        self.naive.shift(&found.booking, 1);
        self.booked.push(found.booking);
    }

    fn check_explanation(&self, claim: &Claim, policy: Policy, found: Option<&Placement>) {
        let verdicts = self.snapshot.explain(claim, policy);
        assert_eq!(verdicts.len(), self.snapshot.len());
        let first = verdicts.iter().find_map(|(_, verdict)| match verdict {
            Verdict::Fits { rank: 1, score } => Some(*score),
            Verdict::Fits { .. } | Verdict::Refused(_) => None,
        });
        assert_eq!(first, found.map(|found| found.score), "{claim:?} {policy:?}");
        let Err(refusal) = self.snapshot.place(claim, policy) else { return };
        assert_eq!(refusal.groups.iter().map(|group| group.count).sum::<usize>(), self.snapshot.len());
        for hint in &refusal.hints {
            if let Hint::Gpus { gpus } = hint {
                let at = |gpus| self.naive.find(&part(claim, gpus), policy);
                assert!(at(*gpus).is_some() && at(*gpus + 1).is_none(), "{claim:?} {hint:?}");
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Place(claim, policy) => self.place(&claim, policy),
            Step::Release(at) if !self.booked.is_empty() => {
                let booking = self.booked.swap_remove(at.index(self.booked.len()));
                self.snapshot.release(&booking).expect("what was booked can be given back");
                self.naive.shift(&booking, -1);
            }
            Step::Release(_) => {}
            Step::Standing(number, standing) => {
                let changed = self.snapshot.set_standing(id(number.into()), standing.clone());
                let node = self.naive.nodes.get_mut(&id(number.into()));
                assert_eq!(changed.is_some(), node.is_some());
                node.into_iter().for_each(|node| node.standing = standing.clone());
            }
            Step::Health(number, at, sick) => {
                let Some(node) = self.naive.nodes.get_mut(&id(number.into())) else { return };
                if node.devices.is_empty() {
                    return;
                }
                let at = at.index(node.devices.len());
                let device = &mut node.devices[at];
                device.unhealthy = sick.then(|| "Xid 79".into());
                let why = device.unhealthy.clone();
                self.snapshot.set_health(node.id, device.atom.as_str(), why).expect("the device is known");
            }
            Step::Upsert(number) => {
                if let Some(view) = self.snapshot.view(id(number.into())) {
                    self.snapshot.upsert(view).expect("it was taken before");
                }
            }
            Step::Remove(number) => {
                let node = id(number.into());
                assert_eq!(self.snapshot.remove(node), self.naive.nodes.remove(&node).is_some());
                self.booked.retain(|booking| booking.node != node);
            }
        }
    }

    /// Every node of the snapshot is what the plain list has, atom by atom and counter by counter.
    fn check_state(&self) {
        assert_eq!(
            self.snapshot.node_ids().collect::<Vec<_>>(),
            self.naive.nodes.keys().copied().collect::<Vec<_>>()
        );
        for (node, view) in &self.naive.nodes {
            assert_eq!(self.snapshot.view(*node).as_ref(), Some(view));
        }
    }

    /// What is booked, counted from the bookings themselves.
    fn check_counters(&self) {
        for node in self.naive.nodes.values() {
            let mine = || self.booked.iter().filter(|booking| booking.node == node.id);
            assert_eq!(node.host.cpu_millis.booked, mine().map(|booking| booking.cpu_millis).sum::<u64>());
            assert_eq!(
                node.host.memory_bytes.booked,
                mine().map(|booking| booking.memory_bytes).sum::<u64>()
            );
            assert_eq!(node.host.disk_bytes.booked, mine().map(|booking| booking.disk_bytes).sum::<u64>());
            let bound = mine().filter(|booking| !booking.mems.is_empty());
            let on_numa = node.numa.iter().map(|numa| numa.memory_bytes.booked).sum::<u64>();
            assert_eq!(on_numa, bound.map(|booking| booking.memory_bytes).sum::<u64>());
            let atoms = mine().map(|booking| booking.atoms.len()).sum::<usize>();
            assert_eq!(node.devices.iter().filter(|device| device.booked).count(), atoms);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_index_decides_as_a_scan_of_every_node(
        nodes in pool(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut both = Both { snapshot: snapshot(nodes.clone()), naive: Naive::new(nodes), booked: Vec::new() };
        both.check_state();
        for step in steps {
            both.step(step);
        }
        both.check_state();
        both.check_counters();
        while let Some(booking) = both.booked.pop() {
            both.snapshot.release(&booking).expect("what was booked can be given back");
            both.naive.shift(&booking, -1);
        }
        both.check_state();
        both.check_counters();
    }
}
