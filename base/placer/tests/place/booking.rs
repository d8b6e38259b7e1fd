use placer::{AtomId, BookError, Booking, InvalidNode, Policy};

use crate::fixture::{H100, gpus, id, node, snapshot};

fn booking(atoms: &[&AtomId]) -> Booking {
    Booking {
        node: id(1),
        atoms: atoms.iter().map(|atom| (*atom).clone()).collect(),
        cpu_millis: 1_000,
        memory_bytes: 1_001,
        hugepages_1gi: 1,
        disk_bytes: 1,
        mems: vec![0, 1],
        whole_node: false,
    }
}

#[test]
fn an_atom_is_booked_once_until_it_is_given_back() {
    let view = node(1, 8, H100);
    let mut pool = snapshot([view.clone()]);
    let one = booking(&[&view.devices[0].atom]);
    pool.book(&one).expect("it is free");
    assert!(matches!(pool.book(&one), Err(BookError::AtomTaken { .. })));
    pool.release(&one).expect("it is booked");
    assert_eq!(pool.view(id(1)), Some(view));
    assert!(matches!(pool.release(&one), Err(BookError::AtomNotBooked { .. })));
}

#[test]
fn a_refused_booking_changes_nothing() {
    let view = node(1, 4, H100);
    let mut pool = snapshot([view.clone()]);
    let generation = pool.generation(id(1));
    let good = booking(&[&view.devices[0].atom]);
    let with = |change: &dyn Fn(&mut Booking)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad
    };
    let stranger = AtomId::from("GPU-elsewhere");
    let bad = [
        with(&|booking| booking.node = id(9)),
        with(&|booking| booking.atoms.push(stranger.clone())),
        with(&|booking| booking.atoms.push(booking.atoms[0].clone())),
        with(&|booking| booking.cpu_millis = 64_001),
        with(&|booking| booking.memory_bytes = u64::MAX),
        with(&|booking| booking.hugepages_1gi = 9),
        with(&|booking| booking.disk_bytes = 1 << 50),
        with(&|booking| booking.mems = vec![1, 0]),
        with(&|booking| booking.mems = vec![0, 2]),
        with(&|booking| booking.mems = vec![0, 0]),
        // Five pages on a NUMA node with four.
        with(&|booking| (booking.mems, booking.hugepages_1gi) = (vec![1], 5)),
    ];
    for bad in bad {
        pool.book(&bad).expect_err("it does not fit");
        pool.release(&bad).expect_err("it is not booked");
    }
    assert_eq!((pool.view(id(1)), pool.generation(id(1))), (Some(view), generation));
}

#[test]
fn a_whole_node_is_booked_only_unused_and_then_nothing_else_is() {
    let view = node(1, 4, H100);
    let mut pool = snapshot([view.clone()]);
    let one = booking(&[&view.devices[0].atom]);
    let all: Vec<&AtomId> = view.devices.iter().map(|device| &device.atom).collect();
    let whole = Booking { whole_node: true, ..booking(&all) };
    pool.book(&one).expect("it is free");
    assert!(pool.book(&Booking { atoms: Vec::new(), ..whole.clone() }).is_err());
    pool.release(&one).expect("it is booked");
    pool.book(&whole).expect("the node is unused");
    assert!(matches!(pool.book(&Booking { atoms: Vec::new(), ..one }), Err(BookError::HeldWhole { .. })));
    pool.release(&whole).expect("it is booked");
    assert!(matches!(pool.release(&whole), Err(BookError::AtomNotBooked { .. })));
    assert_eq!(pool.view(id(1)), Some(view));
}

#[test]
fn a_committed_row_is_booked_whatever_became_of_the_node() {
    let mut view = node(1, 2, H100);
    view.standing.draining = true;
    view.devices[0].unhealthy = Some("Xid 79".into());
    let mut pool = snapshot([view.clone()]);
    let one = booking(&[&view.devices[0].atom]);
    pool.book(&one).expect("the row is committed");
    assert!(pool.find(&gpus(1), Policy::Pack).is_none());
    pool.release(&one).expect("it is booked");
    assert_eq!(pool.view(id(1)), Some(view));
}

#[test]
fn a_node_that_shrank_under_its_bookings_still_takes_them_back() {
    let mut view = node(1, 2, H100);
    let mut pool = snapshot([view.clone()]);
    let one = booking(&[&view.devices[0].atom]);
    pool.book(&one).expect("it is free");
    view = pool.view(id(1)).expect("it is there");
    view.host.cpu_millis.total = 500;
    pool.upsert(view).expect("a well-formed node");
    assert!(pool.find(&gpus(1), Policy::Pack).is_none());
    pool.release(&one).expect("it is booked");
    assert_eq!(pool.view(id(1)).map(|node| node.host.cpu_millis.free()), Some(500));
}

#[test]
fn a_node_that_lists_something_twice_is_refused() {
    let mut pool = snapshot([]);
    let mut twice = node(1, 2, H100);
    twice.devices[1].atom = twice.devices[0].atom.clone();
    assert!(matches!(pool.upsert(twice), Err(InvalidNode::AtomTwice { .. })));
    let mut twice = node(1, 2, H100);
    twice.numa[1].id = 0;
    assert!(matches!(pool.upsert(twice), Err(InvalidNode::NumaTwice { .. })));
    let mut many = node(1, 1, H100);
    many.devices = vec![many.devices[0].clone(); 129];
    assert!(matches!(pool.upsert(many), Err(InvalidNode::TooManyDevices { count: 129, .. })));
    assert!(pool.is_empty());
}
