//! What nodes say and what is not believed.

use kernel::ports::node::NodeObserver;
use prometheus_client::registry::Registry;
use serde_json::json;
use wire::proto::agent::AllocationBound;
use wire::proto::agent::node_report::Report;

use crate::cloud::{Cloud, OP, allocation_of, atoms_of, bound, facts, failed, id, node_of, released};

#[tokio::test]
async fn a_report_of_another_node_changes_nothing() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let placed = cloud.reserve(json!({ "gpus": 2 })).await;
    let other = *nodes.iter().find(|node| **node != node_of(&placed)).unwrap();
    for report in [bound(&placed), failed(&placed, "overlap"), released(&placed)] {
        cloud.report(other, report).await.unwrap();
        assert_eq!(cloud.get(&placed).await["state"], "placed");
    }
    assert_eq!(cloud.events("security.invalid-report").await, 3);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_report_of_other_devices_or_of_nothing_known_changes_nothing() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 2 })).await;
    let atoms = atoms_of(&placed);
    let saying = |allocation_id: String, atoms: &[String], cdi: &[&str]| {
        Report::AllocationBound(AllocationBound {
            allocation_id,
            generation: 1,
            cdi_devices: cdi.iter().map(|name| (*name).to_owned()).collect(),
            atoms: atoms.to_vec(),
        })
    };
    let right = allocation_of(&placed);
    let long = "x".repeat(201);
    for report in [
        saying(right.clone(), &atoms[..1], &[]),
        saying(right.clone(), &[atoms.clone(), atoms.clone()].concat(), &[]),
        saying(right.clone(), &[], &[]),
        saying(right.clone(), &atoms, &["a", "b", "c"]),
        saying(right.clone(), &atoms, &["bcd.dev/gpu=\n"]),
        saying(right, &atoms, &[&long]),
        saying(id::<model::AllocationId>().to_string(), &atoms, &[]),
        saying("nonsense".to_owned(), &atoms, &[]),
    ] {
        cloud.report(node_of(&placed), report).await.unwrap();
        assert_eq!(cloud.get(&placed).await["state"], "placed");
    }
    assert_eq!(cloud.events("security.invalid-report").await, 8);
}

#[tokio::test]
async fn a_report_twice_is_a_report_once() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    for _ in 0..2 {
        assert_eq!(cloud.bind(&placed).await["state"], "active");
    }
    cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    cloud.report(nodes[0], bound(&placed)).await.unwrap();
    assert_eq!(cloud.get(&placed).await["state"], "releasing", "said before it heard");
    for _ in 0..2 {
        assert_eq!(cloud.confirm_released(&placed).await["state"], "released");
    }
    cloud.report(nodes[0], failed(&placed, "overlap")).await.unwrap();
    assert_eq!(cloud.get(&placed).await["state"], "released");
    assert_eq!(
        (cloud.events("reservation.active").await, cloud.events("reservation.released").await),
        (1, 1)
    );
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_hold_that_the_node_lets_go_of_unasked_stays_booked_and_wanted() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.bind(&placed).await;
    assert_eq!(cloud.confirm_released(&placed).await["state"], "active");
    assert_eq!(cloud.devices(nodes[0]).await.assignments.len(), 1);
    assert_eq!(cloud.events("reservation.degraded").await, 1);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_silent_node_degrades_its_reservations_and_frees_none() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 8 })).await;
    cloud.bind(&placed).await;
    cloud.node_becomes(nodes[0], "unreachable").await;
    cloud.sweep().await;
    let seen = cloud.get(&placed).await;
    assert_eq!((&seen["state"], &seen["conditions"][0]["reason"]), (&json!("active"), &json!("node-silent")));
    let waiting = cloud.reserve(json!({ "gpus": 1 })).await;
    assert_eq!(waiting["state"], "scheduling");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn an_inventory_that_misses_a_gpu_releases_nothing_and_offers_it_to_nobody() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 7 })).await;
    let mut poorer = facts(nodes[0], "node-0", Some((cloud.pool, cloud.root_tenant)));
    poorer.inventory.gpus.gpus.clear();
    cloud.facts(&poorer).await;
    let seen = cloud.get(&placed).await;
    assert_eq!((&seen["state"], atoms_of(&seen).len()), (&json!("placed"), 7));
    assert_eq!(seen["conditions"].as_array().unwrap().len(), 7);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM bookings").await, 7);
    let none = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1 })).await;
    assert_eq!(none.code(), "CAPACITY_UNAVAILABLE");

    cloud.facts(&facts(nodes[0], "node-0", Some((cloud.pool, cloud.root_tenant)))).await;
    assert_eq!(cloud.get(&placed).await["conditions"], json!([]));
    assert_eq!(cloud.reserve(json!({ "gpus": 1 })).await["state"], "placed");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_booked_gpu_that_is_not_seen_is_no_other_nodes() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 7 })).await;
    let owner = facts(nodes[0], "node-0", Some((cloud.pool, cloud.root_tenant)));
    let mut poorer = owner.clone();
    poorer.inventory.gpus.gpus.clear();
    cloud.facts(&poorer).await;

    let thief = cloud.node("thief").await;
    let claim = facts(thief, "node-0", Some((cloud.pool, cloud.root_tenant)));
    let of_thief = format!("SELECT count(*) FROM atoms WHERE node_id = '{}'", thief.uuid());
    for _ in 0..2 {
        cloud.facts(&claim).await;
        assert_eq!(cloud.db.scalar_i64(&of_thief).await, 1, "the one that nobody has booked");
        assert_eq!(cloud.events("security.device-claimed").await, 7, "each is told once");
    }
    let owner_told =
        "SELECT count(*) FROM outbox_events WHERE kind = 'security.device-claimed' AND subject = ";
    let by_thief = format!("{owner_told}'node/{thief}' AND data ->> 'ownerNodeId' = '{}'", nodes[0]);
    assert_eq!(cloud.db.scalar_i64(&by_thief).await, 7);

    cloud.facts(&owner).await;
    assert_eq!(cloud.get(&placed).await["conditions"], json!([]), "they are back where they were");
    cloud.facts(&claim).await;
    assert_eq!(cloud.db.scalar_i64(&of_thief).await, 1);
    cloud.assert_sound().await;

    // Given back and gone, a device may be found in another machine.
    cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    cloud.confirm_released(&placed).await;
    cloud.facts(&poorer).await;
    cloud.facts(&claim).await;
    assert_eq!(cloud.db.scalar_i64(&of_thief).await, 8);
}

#[tokio::test]
async fn devices_that_are_gone_and_booked_by_nobody_are_forgotten() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    cloud.reserve(json!({ "gpus": 2 })).await;
    for at in 0..12 {
        cloud.facts(&facts(nodes[0], &format!("other-{at}"), Some((cloud.pool, cloud.root_tenant)))).await;
    }
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM atoms").await, 10, "eight, and two that are booked");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM atoms WHERE health = 'absent'").await, 2);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn facts_without_news_write_nothing() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let version = "SELECT version FROM node_capacity";
    let before = cloud.db.scalar_i64(version).await;
    let same = facts(nodes[0], "node-0", Some((cloud.pool, cloud.root_tenant)));
    cloud.facts(&same).await;
    assert_eq!(cloud.db.scalar_i64(version).await, before);
    let mut ill = same;
    ill.unhealthy.insert("GPU-node-0-3".to_owned(), "Xid: 79".to_owned());
    cloud.facts(&ill).await;
    assert_eq!(cloud.db.scalar_i64(version).await, before + 1);
    let text = "SELECT health || ' ' || health_reason FROM atoms WHERE atom = 'GPU-node-0-3'";
    assert_eq!(cloud.db.scalar_text(text).await, "unhealthy Xid: 79");
}

#[tokio::test]
async fn a_node_takes_work_only_while_it_may() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    for (close, open) in [
        ("cordoned_at = compute_now(), cordoned_by = 'alice'", "cordoned_at = NULL"),
        ("draining_at = compute_now()", "draining_at = NULL"),
        ("quarantined_at = compute_now(), quarantine_reason = 'odd'", "quarantined_at = NULL"),
        ("state = 'unreachable'", "state = 'ready'"),
    ] {
        cloud.db.batch(&format!("UPDATE nodes SET {close}")).await;
        cloud.schedulable_changed(nodes[0]).await;
        let waiting = cloud.reserve(json!({ "gpus": 1 })).await;
        assert_eq!(waiting["state"], "scheduling", "{close}");
        cloud.db.batch(&format!("UPDATE nodes SET {open}")).await;
        cloud.schedulable_changed(nodes[0]).await;
        cloud.place_waiting().await;
        assert_eq!(cloud.get(&waiting).await["state"], "placed", "{open}");
    }
}

#[tokio::test]
async fn a_cordon_that_nobody_told_of_is_still_kept_by_the_booking() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    cloud.reserve(json!({ "gpus": 1 })).await;
    // The picture in memory still has the node open.
    cloud.db.batch("UPDATE nodes SET cordoned_at = compute_now()").await;
    assert_eq!(cloud.reserve(json!({ "gpus": 1 })).await["state"], "scheduling");
}

#[tokio::test]
async fn a_node_that_left_its_pool_offers_nothing_and_keeps_what_it_holds() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.db.batch("UPDATE nodes SET pool_id = NULL").await;
    cloud.facts(&facts(nodes[0], "node-0", None)).await;
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1 })).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    assert_eq!(cloud.get(&placed).await["state"], "placed");
    assert_eq!(cloud.devices(nodes[0]).await.assignments.len(), 1);
}

#[tokio::test]
async fn limits_go_only_to_nodes_that_enforce_them() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    cloud.db.batch("UPDATE node_status SET capabilities = '{}'").await;
    cloud.schedulable_changed(nodes[0]).await;
    let limited = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1, "vcpu": 4 })).await;
    assert_eq!(limited.code(), "CAPACITY_UNAVAILABLE");
    let host_only = cloud.call("reservations.create", json!({ "pool": "gpu", "vcpu": 4 })).await;
    assert_eq!(host_only.code(), "CAPACITY_UNAVAILABLE");
    let kubernetes =
        cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1, "binding": "kubernetes" })).await;
    assert_eq!(kubernetes.code(), "CAPACITY_UNAVAILABLE");
    assert_eq!(cloud.reserve(json!({ "gpus": 1 })).await["state"], "placed");
}

#[tokio::test]
async fn a_capability_that_came_with_a_new_daemon_counts_from_the_next_facts_on() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let request = json!({ "pool": "gpu", "gpus": 1, "binding": "kubernetes" });
    assert_eq!(cloud.call("reservations.create", request.clone()).await.code(), "CAPACITY_UNAVAILABLE");
    cloud
        .db
        .batch("UPDATE node_status SET capabilities = '{binding.kubernetes,devices.limits,devices.limits}'")
        .await;
    cloud.facts(&facts(nodes[0], "node-0", Some((cloud.pool, cloud.root_tenant)))).await;
    let placed = cloud.call("reservations.create", request).await.ok();
    assert_eq!((&placed["state"], &placed["binding"]), (&json!("placed"), &json!("kubernetes")));
}

#[tokio::test]
async fn an_active_hold_that_its_node_cannot_keep_is_placed_again() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let active = cloud.reserve(json!({ "gpus": 1 })).await;
    let active = cloud.bind(&active).await;
    cloud.report(node_of(&active), failed(&active, "device-missing")).await.unwrap();
    cloud.place_waiting().await;
    let again = cloud.get(&active).await;
    assert_eq!(again["state"], "placed");
    assert_ne!(node_of(&again), node_of(&active));
    assert_eq!(cloud.bind(&again).await["state"], "active");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_is_still_on_a_node_is_told_before_the_node_goes() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    let capacity = &cloud.capacity;
    let node = nodes[0];
    let holds =
        cloud.db.store.tx(OP, |tx| Box::pin(async move { capacity.holds(tx, node).await })).await.unwrap();
    assert_eq!(holds, [format!("reservation {} (placed)", placed["id"].as_str().unwrap())]);
}

#[tokio::test]
async fn a_booking_of_ones_own_is_not_read_back() {
    let (cloud, _) = Cloud::with_nodes(3).await;
    let mut registry = Registry::default();
    cloud.db.store.register_metrics(&mut registry);
    let reads = |of: &str| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let named = format!("\"{of}\"");
        let line = text.lines().find(|line| line.contains("_count") && line.contains(&named));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    };
    for _ in 0..10 {
        assert_eq!(cloud.reserve(json!({ "gpus": 1 })).await["state"], "placed");
    }
    assert_eq!((reads("books_nodes"), reads("books_booked")), (1, 0), "the nodes are read once");
    let other = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.call("reservations.release", json!({ "id": other["id"] })).await.ok();
    cloud.confirm_released(&other).await;
    cloud.reserve(json!({ "gpus": 1 })).await;
    assert_eq!(
        (reads("books_nodes"), reads("books_booked")),
        (1, 1),
        "of what was given back, what is booked is read"
    );
}

#[tokio::test]
async fn a_change_that_commits_after_later_ones_is_seen() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let explain = || cloud.call("reservations.explain", json!({ "pool": "gpu", "gpus": 1 }));
    let fitting = |told: kernel::testing::Told| told.ok()["groups"][0]["nodes"].as_u64();
    assert_eq!(fitting(explain().await), Some(2));
    let (begun, wait_begun) = futures::channel::oneshot::channel::<()>();
    let (go, wait_go) = futures::channel::oneshot::channel::<()>();
    let (capacity, node) = (&cloud.capacity, nodes[0]);
    let mut parts = Some((begun, wait_go));
    let slow = cloud.db.store.tx(OP, move |tx| {
        let (begun, wait_go) = parts.take().expect("it runs once");
        Box::pin(async move {
            tx.execute(
                &store::sql("test", "UPDATE nodes SET cordoned_at = compute_now() WHERE name = 'node-0'"),
                &[],
            )
            .await?;
            capacity.schedulable_changed(tx, node).await?;
            begun.send(()).expect("somebody waits");
            wait_go.await.expect("somebody says go");
            Ok::<_, kernel::Fault>(())
        })
    });
    let meanwhile = async {
        wait_begun.await.unwrap();
        // A later transaction on another node commits first, and the picture is taken after it.
        let other = nodes[1].uuid();
        cloud
            .db
            .batch(&format!("UPDATE node_capacity SET updated_at = compute_now() WHERE node_id = '{other}'"))
            .await;
        assert_eq!(fitting(explain().await), Some(2));
        go.send(()).unwrap();
    };
    let (done, ()) = futures::join!(slow, meanwhile);
    done.unwrap();
    let told = explain().await.ok();
    assert_eq!(told["nodes"][1]["verdict"], "closed", "{told}");
}

/// Every table here grows with the fleet or with time; none is read whole on the way of a call.
#[tokio::test]
async fn hot_statements_have_an_index_to_go_by() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    for statement in capacity::hot_statements() {
        let plan = cloud.plan(&statement).await;
        for table in [
            "node_capacity",
            "reservations",
            "allocations",
            "bookings",
            "host_bookings",
            "atoms",
            "quota_holds",
        ] {
            let whole = format!("Seq Scan on {table}");
            let read = plan.lines().any(|line| line.trim_start_matches([' ', '-', '>']).starts_with(&whole));
            assert!(!read, "{}:\n{plan}", statement.name);
        }
        if !statement.text.contains("unnest($1::uuid[]") {
            continue;
        }
        // It asks for rows by their keys. An index of what has not ended holds little when that is planned, and all there is later.
        let open = ["reservations_open_by_pool", "allocations_unended_by_node"];
        for (line, under) in plan.lines().zip(plan.lines().skip(1).chain([""])) {
            let read = open.iter().any(|index| line.contains(index)) && !under.contains("Index Cond");
            assert!(!read, "{}:\n{plan}", statement.name);
        }
    }
}
