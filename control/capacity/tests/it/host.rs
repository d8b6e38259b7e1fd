//! Holds of CPU and memory alone.

use serde_json::json;
use wire::proto::agent::node_report::Report;
use wire::proto::agent::{AllocationBound, DesiredHold};

use crate::cloud::{Cloud, allocation_of, facts, id, node_of};

#[tokio::test]
async fn a_hold_without_devices_goes_from_placed_to_released() {
    let cloud = Cloud::empty().await;
    let node = cloud.node("node-0").await;
    let mut bare = facts(node, "node-0", Some((cloud.pool, cloud.root_tenant)));
    bare.inventory.gpus.gpus.clear();
    cloud.facts(&bare).await;
    let placed = cloud.reserve(json!({ "vcpu": 4, "memoryGiB": 16 })).await;
    assert_eq!((&placed["state"], &placed["devices"]), (&json!("placed"), &json!([])));
    let assignment = cloud.devices(node).await.assignments.remove(0);
    assert_eq!((assignment.device_class.as_str(), assignment.atoms.len()), ("host", 0));
    let limits = assignment.limits.clone().unwrap();
    assert_eq!((limits.cpu_millis, limits.memory_bytes), (4000, 16 << 30));
    assert_eq!(cloud.bind(&placed).await["state"], "active");
    cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    assert_eq!(cloud.devices(node).await.assignments[0].desired(), DesiredHold::Released);
    assert_eq!(cloud.confirm_released(&placed).await["state"], "released");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM host_bookings").await, 0);
    cloud.assert_sound().await;

    let whole = cloud.call("reservations.create", json!({ "pool": "gpu", "wholeNode": true })).await;
    assert_eq!(whole.code(), "CAPACITY_UNAVAILABLE", "there is no device to hold the machine by");
    let nothing = cloud.call("reservations.create", json!({ "pool": "gpu" })).await;
    assert_eq!(nothing.code(), "INVALID_INPUT", "a hold of nothing");
}

#[tokio::test]
async fn memory_is_booked_to_the_mib_and_counted_in_whole_gib() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let shown = |told: &serde_json::Value| (told["memoryMiB"].as_u64(), told["memoryGiB"].as_u64());
    let claim = json!({ "memoryMiB": 512 });
    let small = cloud.reserve(claim.clone()).await;
    assert_eq!((shown(&small), shown(&small["limits"])), ((Some(512), Some(1)), (Some(512), Some(1))));
    let assignment = cloud.devices(nodes[0]).await.assignments.remove(0);
    assert_eq!(assignment.limits.unwrap().memory_bytes, 512 << 20);
    assert_eq!(cloud.db.scalar_i64("SELECT memory_bytes FROM host_bookings").await, 512 << 20);

    let larger = cloud.reserve(json!({ "memoryMiB": 1025 })).await;
    assert_eq!(shown(&larger), (Some(1025), Some(2)));
    let whole = cloud.reserve(json!({ "memoryGiB": 3 })).await;
    assert_eq!(shown(&whole), (Some(3072), Some(3)));
    let counted =
        "SELECT string_agg(amount::text, ' ' ORDER BY amount) FROM quota_holds WHERE resource = 'memoryGiB'";
    assert_eq!(cloud.db.scalar_text(counted).await, "1 2 3");

    cloud.call("quotas.set", json!({ "resource": "memoryGiB", "amount": 7 })).await.ok();
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "memoryMiB": 1025 })).await;
    assert_eq!(refused.code(), "QUOTA_EXCEEDED");
    assert_eq!(cloud.reserve(claim).await["state"], "placed");
    let explained =
        cloud.call("reservations.explain", json!({ "pool": "gpu", "memoryMiB": 600_000 })).await.ok();
    assert_eq!(explained["summary"], "no node in pool \"gpu\" can hold 600000 MiB of memory");
    assert_eq!(explained["hints"], json!(["--memory-gib 505"]));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_was_booked_in_gib_is_kept_by_the_change_to_mib() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "memoryGiB": 3 })).await;
    let bare = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud
        .db
        .batch(
            "UPDATE reservations SET memory_mib = memory_mib / 1024;
             ALTER TABLE reservations RENAME COLUMN memory_mib TO memory_gib;",
        )
        .await;
    for _ in 0..2 {
        // By itself: what came after it took away what it does not know.
        cloud.db.batch(include_str!("../../../../migrations/0007_memory_in_mib.sql")).await;
        assert_eq!(cloud.get(&placed).await["memoryMiB"], 3072);
        assert_eq!(cloud.get(&bare).await["memoryMiB"], 0);
    }
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_hold_without_devices_is_bound_by_its_own_name_alone() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "vcpu": 4 })).await;
    let right = format!("bcd.dev/host={}", allocation_of(&placed));
    let saying = |atoms: &[&str], names: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Report::AllocationBound(AllocationBound {
            allocation_id: allocation_of(&placed),
            generation: 1,
            cdi_devices: owned(names),
            atoms: owned(atoms),
        })
    };
    let other = format!("bcd.dev/host={}", id::<model::AllocationId>());
    let wrong = [
        saying(&[], &[]),
        saying(&[], &[&other]),
        saying(&[], &[&right, &right]),
        saying(&[], &["bcd.dev/gpu=GPU-node-0-0"]),
        saying(&["GPU-node-0-0"], &[&right]),
    ];
    let count = wrong.len() as i64;
    for report in wrong {
        cloud.report(node_of(&placed), report).await.unwrap();
        assert_eq!(cloud.get(&placed).await["state"], "placed");
    }
    assert_eq!(cloud.events("security.invalid-report").await, count);
    cloud.report(node_of(&placed), saying(&[], &[&right])).await.unwrap();
    assert_eq!(cloud.get(&placed).await["state"], "active");
}
