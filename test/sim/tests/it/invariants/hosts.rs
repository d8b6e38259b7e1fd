//! Instances and their hosts, as they are when all is well, and broken on purpose.

use kit::Clock;
use model::{InstanceId, Timestamp};
use sim::invariants::{Checker, Invariant};
use sim::world::{CardView, DestroyedView, DomainView, NodeView, World};
use uuid::Uuid;

use super::{LONG_SECONDS, named, shown, world};
use crate::cloud::{Cloud, run_all};

/// Two instances that run on the first machine, by rows and as it shows itself.
pub async fn instances(cloud: &Cloud) {
    run_all(
        &cloud.store,
        "INSERT INTO pools (pool_id, tenant_id, name, class, policy)
         SELECT '00000000-0000-0000-0000-000000000008', tenant_id, 'hosts', 'vps-host',
           '{\"network\": {\"subnet\": \"10.0.0.0/24\"}}' FROM tenants;
         INSERT INTO flavors (flavor_id, pool_id, name, vcpu, memory_mib, disk_gib)
         VALUES ('00000000-0000-0000-0000-000000000009', '00000000-0000-0000-0000-000000000008', 'small', 1, 512, 4);
         INSERT INTO images (image_id, tenant_id, name, url, sha256, format)
         SELECT '00000000-0000-0000-0000-00000000000a', tenant_id, 'debian', 'https://a', sha256('x'), 'qcow2' FROM tenants",
    )
    .await;
    let mut machine = cloud.machines[0].lock().await;
    let node = machine.node_id.uuid();
    for number in 1..=2u128 {
        let id = InstanceId::from_uuid(Uuid::from_u128((number << 96) | number));
        let address = format!("10.0.0.{number}");
        let (own, allocation) = (id.uuid(), Uuid::from_u128(0x100 + number));
        run_all(
            &cloud.store,
            &format!(
                "INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime,
                   vcpu, memory_mib, disk_gib, revision, boot)
                 SELECT '{own}', tenant_id, '00000000-0000-0000-0000-000000000008', '00000000-0000-0000-0000-000000000009',
                   '00000000-0000-0000-0000-00000000000a', user_id, 'running', 'running', 'libvirt-kvm', 1, 512, 4, 3, 2 FROM users;
                 INSERT INTO instance_allocations (allocation_id, instance_id, node_id) VALUES ('{allocation}', '{own}', '{node}');
                 INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, mems, whole_node, disk_bytes)
                 VALUES ('{allocation}', '{node}', 1000, 822083584, 0, '{{}}', false, 4294967296);
                 INSERT INTO ip_leases (allocation_id, pool_id, node_id, scope, address)
                 VALUES ('{allocation}', '00000000-0000-0000-0000-000000000008', '{node}', 'pool', '{address}');
                 INSERT INTO instance_holds (instance_id, tenant_id, resource, amount) SELECT '{own}', tenant_id, r.resource, r.amount
                   FROM tenants, (VALUES ('vcpu', 1), ('memoryGiB', 1), ('diskGiB', 4)) r (resource, amount);
                 INSERT INTO outbox_batches (event_ids, kinds, subjects, tenant_ids, data)
                 VALUES (ARRAY[gen_random_uuid()], ARRAY['instance.running'], ARRAY['instance/{id}'], ARRAY[NULL::uuid],
                   ARRAY['{{\"state\": \"running\"}}'::jsonb]);
                 INSERT INTO work_wake_batches (queue, keys) VALUES ('node-spec', ARRAY['{node}'])",
            ),
        )
        .await;
        machine.domains.push(DomainView {
            instance_id: id,
            running: true,
            boot: 2,
            boot_since: Timestamp::from_millis(0),
            vcpus: 1,
            memory_bytes: 512 << 20,
            cards: vec![CardView {
                mac: format!("02:00:00:00:00:0{number}"),
                bridge: "br0".to_owned(),
                addresses: vec![format!("{address}/24")],
            }],
            since: Timestamp::from_millis(0),
        });
    }
    drop(machine);
    cloud.settle().await;
}

/// What hosts show, changed, and what it breaks.
#[tokio::test]
async fn every_rule_of_hosts_can_be_broken_and_says_so() {
    let cloud = world().await;
    let mut nodes = Vec::new();
    for machine in &cloud.machines {
        nodes.push(machine.lock().await.view());
    }
    let ask = async |checker: &mut Checker, nodes: &[NodeView], destroyed: &[DestroyedView]| {
        let now = Timestamp::from_millis(0);
        let world = World { store: &cloud.store, now, nodes, releases: &[], destroyed };
        checker.of_hosts(&world).await.unwrap()
    };
    assert_eq!(ask(&mut Checker::new(), &nodes, &[]).await, []);
    type Breaks = fn(&mut Vec<NodeView>);
    let cases: [(Invariant, Breaks); 8] = [
        (Invariant::RunsOnce, |nodes| {
            let copy = nodes[0].domains[0].clone();
            nodes[1].domains.push(copy);
        }),
        (Invariant::AddressesAreOnes, |nodes| {
            nodes[0].domains[1].cards[0].addresses = nodes[0].domains[0].cards[0].addresses.clone();
        }),
        (Invariant::AddressesAreOnes, |nodes| {
            nodes[0].domains[1].cards[0].mac = nodes[0].domains[0].cards[0].mac.clone();
        }),
        (Invariant::HostsHaveWhatRowsSay, |nodes| nodes[0].domains.clear()),
        (Invariant::HostsHaveWhatRowsSay, |nodes| {
            nodes[0].domains[0].instance_id = InstanceId::from_uuid(Uuid::from_u128(77));
        }),
        (Invariant::HostsHaveWhatRowsSay, |nodes| nodes[0].domains[0].boot = 1),
        (Invariant::HostsHaveWhatRowsSay, |nodes| {
            nodes[0].domains[0].boot_since = Timestamp::from_millis(i64::MAX / 1000);
        }),
        (Invariant::HostsHaveWhatRowsSay, |nodes| {
            let copy = nodes[0].domains[0].clone();
            nodes[1].domains.push(DomainView { running: false, ..copy });
        }),
    ];
    for (breaks, by) in cases {
        let mut broken = nodes.clone();
        by(&mut broken);
        let found = ask(&mut Checker::new(), &broken, &[]).await;
        assert!(named(&found, breaks), "{breaks}; found:\n{}", shown(&found));
    }
    let mut gone = DestroyedView {
        node_id: nodes[0].node_id.unwrap(),
        instance_id: nodes[0].domains[0].instance_id,
        at: Timestamp::from_millis(0),
        generation: 1,
        intended: true,
    };
    assert_eq!(ask(&mut Checker::new(), &nodes, std::slice::from_ref(&gone)).await, []);
    gone.intended = false;
    assert!(named(&ask(&mut Checker::new(), &nodes, &[gone]).await, Invariant::DestroyedByIntent));
}

/// One that runs where nobody stopped it, and one that does not though it should, are wrong once they were so for long.
#[tokio::test]
async fn what_lasts_on_a_host_is_wrong_when_it_has_lasted() {
    let cloud = world().await;
    let mut checker = Checker::new();
    let there = "UPDATE node_sessions SET last_heartbeat_at = compute_now()";
    cloud.machines[0].lock().await.domains[0].running = false;
    for long in [false, true] {
        run_all(&cloud.store, there).await;
        let found = cloud.violations(&mut checker, false).await;
        assert_eq!(named(&found, Invariant::HostsHaveWhatRowsSay), long, "{}", shown(&found));
        cloud.clock.pass(LONG_SECONDS);
    }
}

#[tokio::test]
async fn what_is_left_of_an_instance_is_named() {
    let cloud = world().await;
    let nodes = [cloud.machines[0].lock().await.view()];
    let world =
        World { store: &cloud.store, now: cloud.clock.now(), nodes: &nodes, releases: &[], destroyed: &[] };
    let found = Checker::new().at_end(&world).await.unwrap();
    let left: Vec<&str> = found
        .iter()
        .filter(|violation| violation.invariant == Invariant::NothingLeft)
        .map(|violation| violation.what.as_str())
        .collect();
    for what in ["is running", "the place", "the lease", "diskGiB", "a booking", "on machine 0"] {
        assert!(left.iter().any(|left| left.contains(what)), "{what:?} is not among {left:#?}");
    }
}
