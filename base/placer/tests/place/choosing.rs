use model::unit::GIB;
use placer::{CAPABILITY_LIMITS, Claim, Placement, Policy, Snapshot};

use crate::fixture::{H100, gpus, id, node, snapshot};

fn place(snapshot: &Snapshot, claim: &Claim, policy: Policy) -> Placement {
    snapshot
        .place(claim, policy)
        .unwrap_or_else(|refusal| panic!("{claim:?}: {refusal}: {:?}", refusal.groups))
}

fn take(snapshot: &mut Snapshot, claim: &Claim, policy: Policy) -> Placement {
    let placement = place(snapshot, claim, policy);
    snapshot.book(&placement.booking).expect("what was just placed can be booked");
    placement
}

#[test]
fn packing_fills_the_node_that_is_left_with_the_fewest_gpus() {
    let mut pool = snapshot([node(1, 8, H100), node(2, 8, H100)]);
    assert_eq!(take(&mut pool, &gpus(3), Policy::Pack).booking.node, id(1));
    assert_eq!(take(&mut pool, &gpus(4), Policy::Pack).booking.node, id(1));
    assert_eq!(take(&mut pool, &gpus(2), Policy::Pack).booking.node, id(2));
    assert_eq!(take(&mut pool, &gpus(1), Policy::Pack).booking.node, id(1));
}

#[test]
fn spreading_takes_the_emptiest_node() {
    let mut pool = snapshot([node(1, 8, H100), node(2, 8, H100)]);
    let nodes: Vec<_> = (0..4).map(|_| take(&mut pool, &gpus(2), Policy::Spread).booking.node).collect();
    assert_eq!(nodes, [id(1), id(2), id(1), id(2)]);
}

#[test]
fn the_order_in_which_nodes_came_does_not_matter() {
    let forward = snapshot((1..=5).map(|number| node(number, 8, H100)));
    let backward = snapshot((1..=5).rev().map(|number| node(number, 8, H100)));
    for policy in [Policy::Pack, Policy::Spread] {
        assert_eq!(place(&forward, &gpus(2), policy).booking, place(&backward, &gpus(2), policy).booking);
    }
}

#[test]
fn a_claim_without_gpus_leaves_free_gpus_their_host() {
    let pool = snapshot([node(1, 8, H100), node(2, 0, H100)]);
    let claim = Claim { cpu_millis: 2_000, memory_bytes: GIB, ..Claim::default() };
    for policy in [Policy::Pack, Policy::Spread] {
        assert_eq!(place(&pool, &claim, policy).booking.node, id(2));
    }
}

#[test]
fn a_claim_that_names_no_model_gets_the_smallest_gpus_that_will_do_and_never_a_mix() {
    let mut small = node(2, 8, "l4-24gb");
    small.devices.iter_mut().for_each(|device| device.memory_bytes = 24 * GIB);
    let mut mixed = node(1, 4, H100);
    mixed.devices.iter_mut().skip(2).for_each(|device| device.model = "a100-80gb".into());
    let pool = snapshot([mixed, small]);
    assert_eq!(place(&pool, &gpus(1), Policy::Pack).booking.node, id(2));
    let large = |count| Claim { gpu_memory_bytes_min: 40 * GIB, ..gpus(count) };
    assert_eq!(place(&pool, &large(2), Policy::Pack).booking.node, id(1));
    assert!(pool.find(&large(3), Policy::Pack).is_none());
}

#[test]
fn devices_and_limits_stay_on_one_numa_node() {
    let mut pool = snapshot([node(1, 8, H100)]);
    let first = take(&mut pool, &gpus(1), Policy::Pack);
    assert_eq!((first.numa_nodes.as_slice(), first.limits.mems.as_slice()), (&[0][..], &[0][..]));
    assert_eq!(first.limits.cpus.to_string(), "0-63");
    let second = take(&mut pool, &gpus(4), Policy::Pack);
    assert_eq!((second.numa_nodes.as_slice(), second.limits.cpus.to_string().as_str()), (&[1][..], "64-127"));
    let third = take(&mut pool, &gpus(3), Policy::Pack);
    assert_eq!(third.numa_nodes, [0]);
}

#[test]
fn cpus_and_memory_that_the_numa_nodes_cannot_carry_are_not_confined() {
    let pool = snapshot([node(1, 8, H100)]);
    let claim = Claim { gpus: 1, cpu_millis: 64_001, memory_bytes: 513 * GIB, ..Claim::default() };
    let placement = place(&pool, &claim, Policy::Pack);
    assert!(placement.limits.cpus.is_empty() && placement.limits.mems.is_empty());
    assert!(placement.booking.mems.is_empty());
    let claim = Claim { cpu_millis: 64_000, memory_bytes: 512 * GIB, ..claim };
    let placement = place(&pool, &claim, Policy::Pack);
    assert_eq!((placement.limits.cpus.len(), placement.limits.mems.as_slice()), (64, &[0][..]));
}

#[test]
fn memory_promised_on_a_numa_node_is_not_promised_again() {
    let mut pool = snapshot([node(1, 8, H100)]);
    let claim = Claim { gpus: 1, memory_bytes: 300 * GIB, ..Claim::default() };
    assert_eq!(take(&mut pool, &claim, Policy::Pack).limits.mems, [0]);
    let second = take(&mut pool, &claim, Policy::Pack);
    assert_eq!((second.numa_nodes.as_slice(), second.limits.mems.as_slice()), (&[0][..], &[][..]));
}

#[test]
fn a_hold_without_limits_is_given_none() {
    let pool = snapshot([node(1, 8, H100)]);
    let placement = place(&pool, &Claim { gpus: 2, ..Claim::default() }, Policy::Pack);
    assert_eq!(placement.limits, placer::Limits::default());
}

#[test]
fn one_device_of_unknown_place_leaves_a_hold_unconfined() {
    let mut unknown = node(1, 2, H100);
    unknown.devices[0].numa = None;
    let placement = place(&snapshot([unknown]), &gpus(2), Policy::Pack);
    assert_eq!((placement.numa_nodes.as_slice(), placement.limits), (&[1][..], placer::Limits::default()));
}

#[test]
fn a_whole_node_is_taken_only_empty_and_with_everything_on_it() {
    let mut pool = snapshot([node(1, 8, H100), node(2, 8, H100), node(3, 4, H100)]);
    take(&mut pool, &gpus(1), Policy::Pack);
    let whole = |gpus| Claim { gpus, whole_node: true, ..Claim::default() };
    // The first claim went to the smallest node, so a whole one is a larger one.
    let placement = take(&mut pool, &whole(4), Policy::Spread);
    assert_eq!((placement.booking.node, placement.booking.atoms.len()), (id(1), 8));
    assert_eq!(placement.booking.cpu_millis, 128_000);
    assert!(pool.view(id(1)).is_some_and(|node| node.held_whole));
    assert_eq!(take(&mut pool, &whole(0), Policy::Pack).booking.node, id(2));
    assert!(pool.find(&whole(0), Policy::Pack).is_none());
    pool.release(&placement.booking).expect("it was booked");
    assert_eq!(place(&pool, &whole(0), Policy::Pack).booking, placement.booking);
}

#[test]
fn a_sick_device_is_not_chosen_and_comes_back_well() {
    let mut pool = snapshot([node(1, 2, H100)]);
    let atom = pool.view(id(1)).expect("it is there").devices[0].atom.clone();
    pool.set_health(id(1), atom.as_str(), Some("Xid 79".into())).expect("the device is known");
    assert!(pool.find(&gpus(2), Policy::Pack).is_none());
    assert!(!place(&pool, &gpus(1), Policy::Pack).booking.atoms.contains(&atom));
    pool.set_health(id(1), atom.as_str(), None).expect("the device is known");
    assert_eq!(place(&pool, &gpus(2), Policy::Pack).booking.atoms.len(), 2);
}

#[test]
fn limits_go_only_to_daemons_that_enforce_them() {
    let mut old = node(1, 8, H100);
    old.labels.clear();
    let pool = snapshot([old, node(2, 8, H100)]);
    assert_eq!(place(&pool, &gpus(1), Policy::Pack).booking.node, id(1));
    let claim = Claim { capabilities: [CAPABILITY_LIMITS.to_owned()].into(), ..gpus(1) };
    assert_eq!(place(&pool, &claim, Policy::Pack).booking.node, id(2));
}

#[test]
fn labels_and_avoided_nodes_narrow_the_choice() {
    let nodes = (1..=40).map(|number| {
        let mut node = node(number, 8, H100);
        let tier = if number % 20 == 7 { "gold" } else { "plain" };
        node.labels.insert("tier".to_owned(), tier.to_owned());
        node
    });
    let mut pool = snapshot(nodes);
    let gold = Claim { selector: [("tier".to_owned(), "gold".to_owned())].into(), ..gpus(1) };
    assert_eq!(place(&pool, &gold, Policy::Pack).booking.node, id(7));
    let elsewhere = Claim { avoid: [id(7)].into(), ..gold.clone() };
    assert_eq!(place(&pool, &elsewhere, Policy::Pack).booking.node, id(27));
    assert!(pool.remove(id(7)) && pool.remove(id(27)) && !pool.remove(id(27)));
    assert!(pool.find(&gold, Policy::Pack).is_none());
    let plain = Claim { selector: [("tier".to_owned(), "plain".to_owned())].into(), ..gpus(1) };
    assert_eq!(place(&pool, &plain, Policy::Pack).booking.node, id(1));
}

#[test]
fn a_decision_outlived_by_a_change_is_told_by_the_generation() {
    let mut pool = snapshot([node(1, 8, H100), node(2, 8, H100)]);
    let placement = place(&pool, &gpus(1), Policy::Pack);
    assert_eq!(pool.generation(id(1)), Some(placement.generation));
    pool.upsert(node(2, 8, H100)).expect("a well-formed node");
    assert_eq!(pool.generation(id(1)), Some(placement.generation));
    pool.remove(id(1));
    pool.upsert(node(1, 8, H100)).expect("a well-formed node");
    assert!(pool.generation(id(1)) > Some(placement.generation));
}
