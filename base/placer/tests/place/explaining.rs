use std::sync::Arc;

use model::lifecycle::NodeState;
use model::unit::GIB;
use placer::{Amount, Claim, Cordon, Hint, NoFit, NodeView, Policy, Reason, Snapshot, Verdict};

use crate::fixture::{H100, gpus, id, node, snapshot};

fn cordoned() -> Option<Arc<Cordon>> {
    let cordon = Cordon { by: "alice".to_owned(), why: "firmware".to_owned(), when: "2h ago".to_owned() };
    Some(Arc::new(cordon))
}

fn sick(view: &mut NodeView) {
    view.devices[0].unhealthy = Some("Xid 79".into());
}

fn refused(snapshot: &Snapshot, claim: &Claim) -> NoFit {
    snapshot.place(claim, Policy::Pack).expect_err("nothing fits")
}

fn lines(refusal: &NoFit) -> Vec<String> {
    let groups = refusal.groups.iter().map(ToString::to_string);
    groups.chain(refusal.hints.iter().map(ToString::to_string)).collect()
}

#[test]
fn a_refusal_says_what_every_node_has_and_what_to_try() {
    let mut nodes: Vec<NodeView> = (0..8).map(|number| node(number, 8, H100)).collect();
    sick(&mut nodes[2]);
    nodes[7].standing.cordoned = cordoned();
    let refusal = refused(&snapshot(nodes), &Claim { gpus: 16, ..Claim::default() });
    assert_eq!(
        lines(&refusal),
        [
            "6 nodes (sim-0, sim-1, sim-3, …): 8 GPUs in all, 16 wanted on one node",
            "1 node (sim-2): 1 GPU unhealthy (Xid 79), 7 left, 16 wanted",
            "1 node (sim-7): cordoned by alice, 2h ago (\"firmware\")",
            "8 GPUs would fit",
            "2 nodes with 8 each would take it",
        ]
    );
    assert_eq!(refusal.nodes.len(), 8);
}

#[test]
fn the_first_check_that_fails_is_given_with_its_numbers() {
    let claim = Claim {
        gpus: 4,
        model: Some(H100.to_owned()),
        gpu_memory_bytes_min: 80 * GIB,
        cpu_millis: 2_500,
        memory_bytes: 3 * GIB / 2,
        hugepages_1gi: 2,
        disk_bytes: 0,
        whole_node: true,
        selector: [("tier".to_owned(), "gold".to_owned())].into(),
        avoid: [id(1)].into(),
        capabilities: ["devices.limits".to_owned()].into(),
    };
    type Case = (&'static str, fn(&mut NodeView));
    // Each case mends what the one before it broke, so that the check after it decides.
    let cases: [Case; 18] = [
        ("unreachable, not ready", |node| node.standing.state = NodeState::Unreachable),
        ("cordoned by alice, 2h ago (\"firmware\")", |node| node.standing.cordoned = cordoned()),
        ("draining", |node| node.standing.draining = true),
        ("quarantined (Xid storm)", |node| node.standing.quarantined = Some("Xid storm".into())),
        ("among the nodes to avoid", |node| node.id = id(1)),
        ("its daemon does not advertise devices.limits: update it", |node| {
            node.labels.remove("bc.dev/cap.devices.limits");
        }),
        ("no label tier, gold wanted", |node| {
            node.labels.remove("tier");
        }),
        ("label tier=plain, gold wanted", |node| {
            node.labels.insert("tier".to_owned(), "plain".to_owned());
        }),
        ("held whole by another claim", |node| node.held_whole = true),
        ("no GPUs, 4 wanted", |node| node.devices.clear()),
        ("l4 only, h100-sxm-80gb wanted", |node| {
            node.devices.iter_mut().for_each(|device| device.model = "l4".into());
        }),
        ("GPUs of 79.5 GiB, 80 GiB wanted", |node| {
            node.devices.iter_mut().for_each(|device| device.memory_bytes -= GIB / 2);
        }),
        ("3 GPUs in all, 4 wanted on one node", |node| node.devices.truncate(3)),
        ("1 GPU unhealthy (Xid 79), 3 left, 4 wanted", sick),
        ("3 of 4 GPUs free, 4 wanted", |node| node.devices[0].booked = true),
        ("in use: 0 GPUs, 0.5 CPUs and 0 GiB booked, a whole node wanted", |node| {
            node.host.cpu_millis.booked = 500;
        }),
        ("2.499 of 2.499 CPUs free, 2.5 wanted", |node| node.host.cpu_millis.total = 2_499),
        ("1 of 1 GiB of memory free, 1.5 wanted", |node| node.host.memory_bytes.total = GIB),
    ];
    for (expected, spoil) in cases {
        let mut view = node(2, 4, H100);
        view.labels.insert("tier".to_owned(), "gold".to_owned());
        assert!(snapshot([view.clone()]).find(&claim, Policy::Pack).is_some(), "whole before: {expected}");
        // What is checked later is broken too, and is not what is said.
        view.host.hugepages_1gi.total = 1;
        spoil(&mut view);
        let refusal = refused(&snapshot([view]), &claim);
        assert_eq!(refusal.nodes[0].1.to_string(), expected);
    }
    let mut view = node(2, 4, H100);
    view.labels.insert("tier".to_owned(), "gold".to_owned());
    view.host.hugepages_1gi.total = 1;
    let refusal = refused(&snapshot([view]), &claim);
    assert_eq!(refusal.nodes[0].1, Reason::HugepagesFree { free: 1, total: 1, wanted: 2 });
}

#[test]
fn a_disk_that_is_too_large_is_named_and_a_node_that_tells_of_none_has_enough() {
    let mut small = node(1, 0, H100);
    small.host.disk_bytes = Amount { total: 100 * GIB, booked: 70 * GIB };
    let claim = |gib| Claim { disk_bytes: gib * GIB, ..Claim::default() };
    let pool = snapshot([small.clone()]);
    assert!(pool.find(&claim(30), Policy::Pack).is_some());
    let refusal = refused(&pool, &claim(40));
    assert_eq!(
        lines(&refusal),
        [
            "1 node (sim-1): 30 of 100 GiB of disk free, 40 wanted",
            "30 GiB of disk would fit",
            "1 node waits for what is booked on it",
        ]
    );
    let never = refused(&pool, &claim(101));
    assert!(!never.nodes[0].1.passes_with_time());
    let mut silent = node(2, 0, H100);
    silent.host.disk_bytes = Amount::UNBOUNDED;
    let pool = snapshot([small, silent]);
    let found = pool.find(&claim(50_000), Policy::Pack).expect("nobody says that it is too much");
    assert_eq!((found.booking.node, found.booking.disk_bytes), (id(2), 50_000 * GIB));
}

#[test]
fn differing_numbers_are_one_group_that_shows_the_nearest_node() {
    let nodes = (0..4).map(|number| {
        let mut view = node(number, 8, H100);
        let booked = 3 + number as usize;
        view.devices.iter_mut().take(booked).for_each(|device| device.booked = true);
        view
    });
    let refusal = refused(&snapshot(nodes), &Claim { gpus: 6, ..Claim::default() });
    assert_eq!(
        lines(&refusal),
        [
            "4 nodes (sim-0, sim-1, sim-2, …): at best: 5 of 8 GPUs free, 6 wanted",
            "5 GPUs would fit",
            "2 nodes with 3 each would take it",
            "4 nodes wait for what is booked on them",
        ]
    );
}

#[test]
fn hints_name_what_stands_in_the_way() {
    let mut gold = node(1, 2, H100);
    gold.labels.insert("tier".to_owned(), "gold".to_owned());
    let pool = snapshot([gold, node(2, 2, "l4")]);
    let hints = |claim: Claim| refused(&pool, &claim).hints;
    let base = || Claim { gpus: 1, model: Some("l4".to_owned()), ..Claim::default() };
    let gold = || [("tier".to_owned(), "gold".to_owned())].into();
    assert_eq!(
        hints(Claim { selector: gold(), ..base() }),
        [Hint::Model { model: H100.into() }, Hint::WithoutSelector]
    );
    let avoid = [id(2)].into();
    assert_eq!(hints(Claim { avoid, ..base() }), [Hint::Model { model: H100.into() }, Hint::WithoutAvoid]);
    assert_eq!(hints(Claim { cpu_millis: 40_000, ..base() }), [Hint::CpuMillis { cpu_millis: 32_000 }]);
    let memory_bytes = 300 * GIB;
    assert_eq!(hints(Claim { memory_bytes, ..base() }), [Hint::MemoryBytes { memory_bytes: 256 * GIB }]);
    assert_eq!(hints(Claim { hugepages_1gi: 20, ..base() }), [Hint::Hugepages1gi { hugepages_1gi: 8 }]);
}

#[test]
fn of_several_models_the_one_that_comes_nearest_is_spoken_of() {
    let mut view = node(1, 6, H100);
    view.devices.iter_mut().take(4).for_each(|device| (device.model, device.booked) = ("a100".into(), true));
    let refusal = refused(&snapshot([view]), &Claim { gpus: 3, ..Claim::default() });
    assert_eq!(refusal.nodes[0].1, Reason::GpusFree { free: 0, has: 4, unhealthy: 0, wanted: 3 });
}

#[test]
fn an_explanation_ranks_what_fits_and_gives_reasons_for_the_rest() {
    let mut full = node(1, 8, H100);
    full.devices.iter_mut().for_each(|device| device.booked = true);
    let mut half = node(3, 8, H100);
    half.devices.iter_mut().take(4).for_each(|device| device.booked = true);
    let pool = snapshot([full, node(2, 8, H100), half]);
    let verdicts = pool.explain(&gpus(2), Policy::Pack);
    let shown: Vec<_> = verdicts
        .iter()
        .map(|(node, verdict)| match verdict {
            Verdict::Fits { rank, .. } => (*node, rank.to_string()),
            Verdict::Refused(reason) => (*node, reason.name().to_owned()),
        })
        .collect();
    let expected =
        [(id(3), "1"), (id(2), "2"), (id(1), "gpus-free")].map(|(node, text)| (node, text.to_owned()));
    assert_eq!(shown, expected);
}

#[test]
fn an_empty_pool_refuses_without_reasons() {
    let refusal = refused(&Snapshot::new(), &gpus(1));
    assert!(refusal.groups.is_empty() && refusal.hints.is_empty() && refusal.nodes.is_empty());
}
