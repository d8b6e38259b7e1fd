//! What instances take of their hosts: disk, CPUs, NUMA nodes and huge pages.

use std::collections::BTreeSet;

use model::NodeId;
use model::unit::GIB;
use serde_json::{Value, json};
use wire::inventory::{CpuList, Gpu, HugePagePool, NodeInventory, NumaNode};

use crate::cloud::{Cloud, asked};

const PLACES: &str = "runtime.libvirt-kvm,instance.placement";

fn of(flavor: &str) -> Value {
    let mut request = asked();
    request["flavor"] = json!(flavor);
    request
}

async fn offer(cloud: &Cloud, name: &str, size: Value) {
    let mut flavor = json!({ "pool": "vps", "name": name, "vcpu": 2, "memoryGiB": 1, "diskGiB": 10 });
    for (key, value) in size.as_object().unwrap() {
        flavor[key] = value.clone();
    }
    cloud.call("flavors.create", flavor).await.ok();
}

/// A host whose instances have so many GiB for their disks, as it tells.
async fn host_with_disk(cloud: &Cloud, name: &str, gib: u64) -> NodeId {
    cloud.host_of(name, PLACES, |inventory| inventory.disks.instances_bytes = Some(gib * GIB)).await
}

/// Two NUMA nodes with 32 CPUs and 256 GiB each, the second with eight pages of 1 GiB.
fn two_numa_nodes(inventory: &mut NodeInventory) {
    let node = |id: u32, cpus: &str| NumaNode {
        id,
        cpus: cpus.parse::<CpuList>().unwrap(),
        memory_bytes: Some(256 * GIB),
    };
    inventory.cpu.numa_nodes = vec![node(0, "0-31"), node(1, "32-63")];
    inventory.memory.huge_pages = vec![HugePagePool { numa_node: Some(1), page_bytes: GIB, pages: 8 }];
}

async fn booked(cloud: &Cloud, column: &str) -> i64 {
    cloud.db.scalar_i64(&format!("SELECT coalesce(sum({column}), 0)::bigint FROM host_bookings")).await
}

fn message(told: &kernel::testing::Told) -> String {
    told.body["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_disk_is_booked_and_one_that_no_host_could_hold_is_refused() {
    let cloud = Cloud::empty().await;
    let host = host_with_disk(&cloud, "host-0", 100).await;
    for (name, gib) in [("large", 90), ("vast", 96)] {
        offer(&cloud, name, json!({ "diskGiB": gib })).await;
    }
    let first = cloud.create().await;
    assert_eq!(booked(&cloud, "disk_bytes").await, 10 << 30);
    let never = cloud.call("instances.create", of("vast")).await;
    assert_eq!(never.code(), "CAPACITY_UNAVAILABLE");
    assert!(message(&never).contains("85 of 95 GiB of disk free, 96 wanted"), "{}", message(&never));
    let waits = cloud.call("instances.create", of("large")).await.ok();
    let reason = waits["waitingReason"].as_str().unwrap_or_default();
    assert_eq!(reason, "1 node: 85 of 95 GiB of disk free, 90 wanted");
    cloud.change("delete", &first).await.ok();
    cloud.settle(host, &first).await;
    assert_eq!(cloud.reconcile(&waits).await, None);
    assert_eq!(cloud.get(&waits).await["state"], "provisioning");
    assert_eq!(booked(&cloud, "disk_bytes").await, 90 << 30);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_pool_keeps_some_of_its_hosts_disks_and_may_promise_the_rest_more_than_once() {
    let policy = json!({ "hostReserve": { "diskGiB": 40 }, "overcommit": { "disk": 2 } });
    let cloud = Cloud::with_policy(policy).await;
    let host = host_with_disk(&cloud, "host-0", 100).await;
    let offered = "SELECT disk_bytes >> 30 FROM node_capacity";
    assert_eq!(cloud.db.scalar_i64(offered).await, 120);
    let made = cloud.create().await;
    let entry = &cloud.entries(host).await[0];
    assert_eq!((entry.disk_bytes, entry.disk_backed_bytes), (10 << 30, 5 << 30));
    for (policy, gib) in [
        (json!({ "hostReserve": { "diskGiB": 1 } }), 95),
        (json!({ "hostReserve": { "diskGiB": 98 }, "overcommit": { "disk": 3 } }), 6),
    ] {
        cloud.call("pools.update", json!({ "pool": "vps", "policy": policy })).await.ok();
        assert_eq!(cloud.db.scalar_i64(offered).await, gib);
    }
    // What is there stays, and those who want no disk are not kept out by it.
    assert_eq!(cloud.get(&made).await["node"]["name"], "host-0");
    let reserved = cloud.call("reservations.create", json!({ "pool": "vps", "vcpu": 2 })).await.ok();
    assert_eq!(reserved["state"], "placed", "{reserved}");
    let waits = cloud.call("instances.create", asked()).await;
    assert_eq!(waits.code(), "CAPACITY_UNAVAILABLE", "it has 6 GiB in all");
}

#[tokio::test]
async fn a_host_that_never_told_of_its_disk_takes_any_and_is_counted_once_it_tells() {
    let cloud = Cloud::empty().await;
    let host = cloud.host("host-0").await;
    offer(&cloud, "vast", json!({ "diskGiB": 60_000 })).await;
    let made = cloud.call("instances.create", of("vast")).await.ok();
    assert_eq!(made["state"], "provisioning", "an older daemon does not tell");
    assert_eq!(booked(&cloud, "disk_bytes >> 30").await, 60_000);
    cloud.facts(host, |inventory| inventory.disks.instances_bytes = Some(1000 * GIB)).await;
    let refused = cloud.call("instances.create", of("vast")).await;
    assert!(message(&refused).contains("0 of 950 GiB of disk free"), "{}", message(&refused));
    assert_eq!(cloud.settle(host, &made).await["state"], "running", "nothing happens to what is there");
    // It cannot be read this once: that is no news.
    cloud.facts(host, |_| {}).await;
    assert_eq!(cloud.db.scalar_i64("SELECT machine_disk_bytes >> 30 FROM node_capacity").await, 1000);
}

#[tokio::test]
async fn another_size_books_the_difference_of_the_disk_or_is_refused() {
    let cloud = Cloud::empty().await;
    let host = host_with_disk(&cloud, "host-0", 100).await;
    for (name, gib) in [("medium", 40), ("large", 90)] {
        offer(&cloud, name, json!({ "diskGiB": gib })).await;
    }
    let (one, other) = (cloud.create().await, cloud.create().await);
    cloud.settle(host, &other).await;
    cloud.settle(host, &one).await;
    cloud.change("stop", &one).await.ok();
    cloud.settle(host, &one).await;
    let resize = |flavor: &str| cloud.call("instances.resize", json!({ "id": one["id"], "flavor": flavor }));
    let refused = resize("large").await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    assert_eq!(refused.body["error"]["details"]["resource"], "diskGiB");
    assert!(message(&refused).contains("a disk of 90 GiB"), "{}", message(&refused));
    assert_eq!(booked(&cloud, "disk_bytes >> 30").await, 20, "nothing changed");
    resize("medium").await.ok();
    assert_eq!(booked(&cloud, "disk_bytes >> 30").await, 50);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn pinned_instances_have_cpus_of_one_numa_node_that_no_other_has() {
    let cloud = Cloud::empty().await;
    let older = cloud.host("older").await;
    let placement = json!({ "numaAffine": true, "pinned": true });
    offer(&cloud, "fast", json!({ "vcpu": 12, "placement": placement })).await;
    let refused = cloud.call("instances.create", of("fast")).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    assert!(message(&refused).contains("does not advertise instance.placement"), "{}", message(&refused));

    let host = cloud.host_of("host-0", PLACES, two_numa_nodes).await;
    let mut made = Vec::new();
    for _ in 0..4 {
        made.push(cloud.call("instances.create", of("fast")).await.ok());
    }
    assert!(cloud.entries(older).await.is_empty());
    let entries = cloud.entries(host).await;
    let mut taken = BTreeSet::new();
    for entry in &entries {
        let placement = entry.placement.as_ref().expect("it has a place");
        let cpus: CpuList = placement.cpus.parse().unwrap();
        let node = if cpus.iter().all(|cpu| cpu < 32) { "0" } else { "1" };
        assert_eq!((cpus.count(), placement.mems.as_str()), (12, node));
        assert!(cpus.iter().all(|cpu| taken.insert(cpu)), "{entries:?}");
    }
    assert!(made.iter().all(|one| one["conditions"] == json!([])), "{made:?}");
    // 16 CPUs are left, eight on each NUMA node.
    let across = cloud.call("instances.create", of("fast")).await.ok();
    let condition = &across["conditions"][0];
    assert_eq!(condition["kind"], "PlacementDegraded");
    let said = condition["message"].as_str().unwrap();
    assert!(said.starts_with("no NUMA node of the host has 12 CPUs"), "{said}");
    assert_eq!(cloud.count("pinned_cpus").await, 60);
    let waits = cloud.call("instances.create", of("fast")).await.ok();
    assert_eq!(waits["state"], "scheduling", "four CPUs are left");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_was_pinned_is_free_when_its_instance_is_gone() {
    let cloud = Cloud::empty().await;
    let host = cloud.host_of("host-0", PLACES, two_numa_nodes).await;
    offer(&cloud, "fast", json!({ "vcpu": 32, "placement": { "pinned": true } })).await;
    offer(&cloud, "faster", json!({ "vcpu": 33, "placement": { "pinned": true } })).await;
    let made = cloud.call("instances.create", of("fast")).await.ok();
    cloud.settle(host, &made).await;
    cloud.change("stop", &made).await.ok();
    cloud.settle(host, &made).await;
    let request = json!({ "id": made["id"], "flavor": "faster" });
    cloud.call("instances.resize", request).await.ok();
    let entry = cloud.entries(host).await.remove(0);
    let cpus: CpuList = entry.placement.unwrap().cpus.parse().unwrap();
    assert_eq!((cpus.count(), cloud.count("pinned_cpus").await), (33, 33));
    cloud.call("instances.resize", json!({ "id": made["id"], "flavor": "small" })).await.ok();
    assert_eq!(cloud.entries(host).await[0].placement, None);
    assert_eq!(cloud.count("pinned_cpus").await, 0);
    cloud.call("instances.resize", json!({ "id": made["id"], "flavor": "fast" })).await.ok();
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.count("pinned_cpus").await, 32, "its host has it still");
    cloud.settle(host, &made).await;
    assert_eq!(cloud.count("pinned_cpus").await, 0);
    cloud.assert_empty().await;
}

#[tokio::test]
async fn memory_in_huge_pages_is_booked_of_those() {
    let cloud = Cloud::empty().await;
    let host = cloud.host_of("host-0", PLACES, two_numa_nodes).await;
    let paged =
        |gib: u64| json!({ "memoryGiB": gib, "placement": { "hugepages": "1Gi", "numaAffine": true } });
    offer(&cloud, "paged", paged(6)).await;
    offer(&cloud, "vast", paged(9)).await;
    let odd = json!({
        "pool": "vps", "name": "odd", "vcpu": 1, "memoryMiB": 1500, "diskGiB": 1, "placement": { "hugepages": "1Gi" },
    });
    assert_eq!(cloud.call("flavors.create", odd).await.code(), "INVALID_INPUT");
    let made = cloud.call("instances.create", of("paged")).await.ok();
    assert_eq!(made["memoryGiB"], 6);
    assert_eq!(booked(&cloud, "hugepages_1gi").await, 6);
    assert_eq!(booked(&cloud, "memory_bytes >> 20").await, 6 * 32 + 256, "what runs it, and no more");
    let entry = cloud.entries(host).await.remove(0);
    let placement = entry.placement.unwrap();
    assert_eq!((placement.hugepage_bytes, placement.mems.as_str()), (1 << 30, "1"), "the pages are there");
    let never = cloud.call("instances.create", of("vast")).await;
    assert!(message(&never).contains("2 of 8 pages of 1 GiB free, 9 wanted"), "{}", message(&never));
    let waits = cloud.call("instances.create", of("paged")).await.ok();
    assert_eq!(waits["state"], "scheduling");
    let shown = cloud.call("flavors.list", json!({ "pool": "vps" })).await.ok();
    let shown = shown["items"].as_array().unwrap().iter().find(|one| one["name"] == "paged").unwrap().clone();
    assert_eq!(shown["placement"], json!({ "numaAffine": true, "hugepages": "1Gi" }));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_host_that_knows_of_no_places_keeps_the_size_it_has() {
    let (cloud, host) = Cloud::with_host().await;
    offer(&cloud, "fast", json!({ "placement": { "pinned": true } })).await;
    let made = cloud.create().await;
    cloud.settle(host, &made).await;
    cloud.change("stop", &made).await.ok();
    cloud.settle(host, &made).await;
    let refused = cloud.call("instances.resize", json!({ "id": made["id"], "flavor": "fast" })).await;
    assert_eq!(refused.code(), "UNSUPPORTED");
    assert!(message(&refused).contains("instance.placement"), "{}", message(&refused));
}

fn with_gpus(inventory: &mut NodeInventory) {
    let gpu = |at: u32| Gpu {
        uuid: Some(format!("GPU-{at}")),
        index: Some(at),
        model: Some("H100".to_owned()),
        ..Gpu::default()
    };
    inventory.gpus.gpus = (0..3).map(gpu).collect();
}

#[tokio::test]
async fn a_gpu_is_one_instances_or_one_reservations_and_never_both() {
    let cloud = Cloud::empty().await;
    cloud.host_of("plain", PLACES, with_gpus).await;
    offer(&cloud, "gpu", json!({ "gpus": 2, "gpuModel": "H100" })).await;
    offer(&cloud, "other", json!({ "gpus": 1, "gpuModel": "L4" })).await;
    let refused = cloud.call("instances.create", of("gpu")).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    assert!(message(&refused).contains("instance.gpus"), "{}", message(&refused));
    let more = |inventory: &mut NodeInventory| {
        with_gpus(inventory);
        for (at, gpu) in inventory.gpus.gpus.iter_mut().enumerate() {
            gpu.uuid = Some(format!("GPU-b{at}"));
        }
    };
    let host = cloud.host_of("host-0", &format!("{PLACES},instance.gpus"), more).await;
    assert_eq!(cloud.call("instances.create", of("other")).await.code(), "CAPACITY_UNAVAILABLE");
    let made = cloud.call("instances.create", of("gpu")).await.ok();
    assert_eq!((&made["node"]["name"], &made["gpus"]), (&json!("host-0"), &json!(2)));
    let entry = cloud.entries(host).await.remove(0);
    assert_eq!(entry.gpu_device_ids, ["GPU-b0", "GPU-b1"]);
    let waits = cloud.call("instances.create", of("gpu")).await.ok();
    assert_eq!(waits["state"], "scheduling", "one is left");
    for _ in 0..4 {
        cloud.call("reservations.create", json!({ "pool": "vps", "gpus": 1 })).await.ok();
    }
    assert_eq!(cloud.count("bookings").await, 6);
    assert_eq!(cloud.count("reservations WHERE state = 'placed'").await, 4, "all that instances left");
    // Its driver sees nothing of what a guest has: the GPUs stay its own.
    cloud.facts(host, |_| {}).await;
    assert_eq!(cloud.count("bookings b JOIN instance_allocations a USING (allocation_id)").await, 2);
    cloud.facts(host, more).await;
    cloud.settle(host, &made).await;
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.reconcile(&waits).await, Some(std::time::Duration::from_secs(30)), "its host has them");
    cloud.settle(host, &made).await;
    assert_eq!(cloud.reconcile(&waits).await, None);
    assert_eq!(cloud.entries(host).await[0].gpu_device_ids, ["GPU-b0", "GPU-b1"]);
    cloud.assert_sound().await;
}
