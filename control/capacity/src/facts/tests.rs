use std::str::FromStr;

use wire::inventory::{CpuList, HugePagePool, MigMode, NumaNode};

use super::*;

fn gpu(uuid: &str) -> Gpu {
    Gpu { uuid: Some(uuid.to_owned()), model: Some("H100".to_owned()), ..Gpu::default() }
}

fn facts(gpus: Vec<Gpu>) -> NodeFacts {
    let mut inventory = NodeInventory::default();
    inventory.gpus.gpus = gpus;
    let node_id = NodeId::from_uuid(uuid::Uuid::from_u128(1));
    NodeFacts { node_id, pool: None, inventory, unhealthy: BTreeMap::new() }
}

#[test]
fn the_host_keeps_its_reserve_and_its_huge_pages() {
    let mut inventory = NodeInventory::default();
    inventory.cpu.online = Some(CpuList::from_str("0-7").unwrap());
    inventory.cpu.numa_nodes =
        vec![NumaNode { id: 0, cpus: CpuList::from_str("0-7").unwrap(), memory_bytes: Some(64 * GIB) }];
    inventory.memory.total_bytes = Some(64 * GIB);
    let pool = |page_bytes, pages| HugePagePool { numa_node: Some(0), page_bytes, pages };
    inventory.memory.huge_pages = vec![pool(GIB, 8), pool(2 << 20, 512)];
    let reserve =
        Reserve { cpu_millis: 2000, memory_bytes: 3 * GIB, cpu_times: 1, disk_bytes: 2 * GIB, disk_times: 1 };
    // What the host keeps is its own, however often the rest is booked.
    let overcommitted = super::offer(&inventory, &Reserve { cpu_times: 4, ..reserve }, Vec::new(), None);
    assert_eq!((overcommitted.cpu_millis, overcommitted.machine_cpu_millis), (24_000, 8000));
    assert_eq!(overcommitted.memory_bytes, 52 * GIB);
    let offer = offer(&inventory, &reserve, Vec::new(), None);
    assert_eq!(offer.disk_bytes, None, "nobody told");
    assert_eq!((offer.cpu_millis, offer.machine_cpu_millis), (6000, 8000));
    // 8 pages of 1 GiB and 512 of 2 MiB are 9 GiB.
    assert_eq!((offer.memory_bytes, offer.hugepages_1gi), (52 * GIB, 8));
    assert_eq!((offer.topology[0].memory_bytes, offer.topology[0].hugepages_1gi), (55 * GIB, 8));
}

#[test]
fn of_a_disk_a_part_is_kept_and_what_is_not_told_any_more_stands() {
    let policy = |policy| Reserve::of(&policy_of(&policy));
    let mut inventory = NodeInventory::default();
    inventory.disks.instances_bytes = Some(100 * GIB);
    let of = |inventory: &NodeInventory, reserve, told| {
        let offer = offer(inventory, &reserve, Vec::new(), told);
        (offer.disk_bytes, offer.machine_disk_bytes)
    };
    let plain = json!({});
    assert_eq!(of(&inventory, policy(plain.clone()), None), (Some(95 * GIB), Some(100 * GIB)));
    let reserve = json!({ "hostReserve": { "diskGiB": 30 }, "overcommit": { "disk": 3 } });
    assert_eq!(of(&inventory, policy(reserve.clone()), Some(7 * GIB)), (Some(210 * GIB), Some(100 * GIB)));
    inventory.disks.instances_bytes = None;
    assert_eq!(of(&inventory, policy(reserve), Some(50 * GIB)), (Some(60 * GIB), Some(50 * GIB)));
    assert_eq!(of(&inventory, policy(plain.clone()), None), (None, None));
    inventory.disks.instances_bytes = Some(u64::MAX);
    assert_eq!(of(&inventory, policy(plain), None).1, Some(1 << 56));
}

#[test]
fn a_gpu_takes_no_work_while_something_speaks_against_it() {
    let split = Gpu { mig_mode: Some(MigMode { current: true, pending: true }), ..gpu("GPU-split") };
    let lost = Gpu { lost: true, ..gpu("GPU-lost") };
    let mut facts = facts(vec![gpu("GPU-a"), split, lost, gpu("GPU-xid")]);
    facts.unhealthy.insert("GPU-xid".to_owned(), "Xid: 79".to_owned());
    let atoms = atoms(&facts);
    let health = |id: &str| (atoms[id].health.as_str(), atoms[id].reason.as_str());
    assert_eq!(health("GPU-a"), ("healthy", ""));
    assert_eq!(health("GPU-split"), ("unhealthy", "it is split into instances"));
    assert_eq!(health("GPU-lost"), ("unhealthy", "it fell off the bus"));
    assert_eq!(health("GPU-xid"), ("unhealthy", "Xid: 79"));
}

#[test]
fn a_gpu_without_an_id_or_a_model_or_with_an_odd_id_cannot_be_booked() {
    let nameless = Gpu { uuid: None, ..gpu("") };
    let modelless = Gpu { model: None, ..gpu("GPU-a") };
    let odd = ["GPU/../x", "GPU \n", "-GPU", "", "GPU=1", "GPU,2"].map(gpu);
    let listed = [vec![nameless, modelless, gpu(&"G".repeat(101))], odd.to_vec()].concat();
    assert!(atoms(&facts(listed)).is_empty());
}

#[test]
fn what_is_gone_becomes_absent_once_where_it_is_booked_and_is_forgotten_elsewhere() {
    let now = atoms(&facts(vec![gpu("GPU-a")]));
    let booked = Some(AllocationId::from_uuid(uuid::Uuid::from_u128(1)));
    let before = |health: &str, booked_by| {
        let atom = Atom { health: health.to_owned(), ..now["GPU-a"].clone() };
        BTreeMap::from([("GPU-b".to_owned(), StoredAtom { atom, booked_by })])
    };
    let told = |health, booked_by| {
        let News { put, dropped } = news(&before(health, booked_by), &now);
        let put: Vec<(String, String)> = put.into_iter().map(|(id, atom)| (id, atom.health)).collect();
        (put, dropped)
    };
    let pair = |id: &str, health: &str| (id.to_owned(), health.to_owned());
    assert_eq!(
        told("healthy", booked),
        (vec![pair("GPU-a", "healthy"), pair("GPU-b", "absent")], Vec::new())
    );
    assert_eq!(told("absent", booked), (vec![pair("GPU-a", "healthy")], Vec::new()));
    for health in ["healthy", "absent"] {
        assert_eq!(told(health, None), (vec![pair("GPU-a", "healthy")], vec!["GPU-b".to_owned()]));
    }
}

#[test]
fn a_node_has_so_many_devices_with_those_that_are_gone_and_booked() {
    let many = |name: &str, count: usize| {
        atoms(&facts((0..count).map(|at| gpu(&format!("GPU-{name}-{at}"))).collect()))
    };
    let booked_by = Some(AllocationId::from_uuid(uuid::Uuid::from_u128(1)));
    let stored: BTreeMap<String, StoredAtom> =
        many("old", 8).into_iter().map(|(id, atom)| (id, StoredAtom { atom, booked_by })).collect();
    let mut now = many("new", 64);
    bound(&stored, &mut now);
    assert_eq!(now.len(), 56);
    let mut back = [many("old", 4), many("new", 60)].into_iter().flatten().collect();
    bound(&stored, &mut back);
    assert_eq!((back.len(), back.keys().filter(|id| id.contains("old")).count()), (60, 4));
}
