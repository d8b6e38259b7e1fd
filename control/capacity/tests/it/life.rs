//! A reservation from its create to its end.

use kernel::ports::tenants::Belongings;
use serde_json::json;
use wire::proto::agent::DesiredHold;

use crate::cloud::{Cloud, OP, atoms_of, call, failed, node_of, released};

#[tokio::test]
async fn a_reservation_goes_from_placed_to_active_to_released_by_the_nodes_word() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed =
        cloud.reserve(json!({ "gpus": 2, "vcpu": 8, "memoryGiB": 64, "hours": 2, "name": "training" })).await;
    assert_eq!(placed["state"], "placed");
    assert_eq!(
        (placed["node"]["name"].as_str(), placed["name"].as_str()),
        (Some("node-0"), Some("training"))
    );
    assert_eq!(
        (placed["limits"]["vcpu"].as_u64(), placed["limits"]["memoryGiB"].as_u64()),
        (Some(8), Some(64))
    );
    assert_eq!(atoms_of(&placed).len(), 2);

    let assignments = cloud.devices(nodes[0]).await.assignments;
    assert_eq!(assignments.len(), 1);
    assert_eq!(assignments[0].desired(), DesiredHold::Held);
    assert_eq!(assignments[0].atoms, atoms_of(&placed));
    let limits = assignments[0].limits.clone().unwrap();
    assert_eq!((limits.cpu_millis, limits.memory_bytes, limits.mems.as_str()), (8000, 64 << 30, "0"));
    assert_eq!(limits.cpus, "0-31");

    let active = cloud.bind(&placed).await;
    assert_eq!(active["state"], "active");
    assert!(active["devices"][0]["cdiName"].as_str().unwrap().starts_with("bcd.dev/gpu=GPU-node-0-"));

    let releasing = cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    assert_eq!(releasing["state"], "releasing");
    assert_eq!(cloud.devices(nodes[0]).await.assignments[0].desired(), DesiredHold::Released);
    assert_eq!(
        cloud.db.scalar_i64("SELECT count(*) FROM bookings").await,
        2,
        "booked until the node says otherwise"
    );

    let over = cloud.confirm_released(&placed).await;
    assert_eq!(over["state"], "released");
    assert!(cloud.devices(nodes[0]).await.assignments.is_empty());
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM bookings").await, 0);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM quota_holds").await, 0);
    let kinds = "SELECT string_agg(kind, ' ' ORDER BY batch_id, place) FROM outbox_events WHERE kind LIKE 'reservation.%'";
    assert_eq!(
        cloud.db.scalar_text(kinds).await,
        "reservation.placed reservation.active reservation.releasing reservation.released"
    );
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_waits_is_placed_when_room_comes_and_the_longest_waiting_goes_first() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let first = cloud.reserve(json!({ "gpus": 8 })).await;
    let second = cloud.reserve(json!({ "gpus": 8 })).await;
    let third = cloud.reserve(json!({ "gpus": 8 })).await;
    assert_eq!((&first["state"], &second["state"]), (&json!("placed"), &json!("scheduling")));
    assert_eq!(second["waitingReason"], "1 node: 0 of 8 GPUs free, 8 wanted");

    cloud.call("reservations.release", json!({ "id": first["id"] })).await.ok();
    cloud.place_waiting().await;
    assert_eq!(cloud.get(&second).await["state"], "scheduling", "nothing is free before the node said so");
    cloud.confirm_released(&first).await;
    cloud.place_waiting().await;
    assert_eq!(cloud.get(&second).await["state"], "placed");
    assert_eq!(cloud.get(&third).await["state"], "scheduling");

    let gone = cloud.call("reservations.release", json!({ "id": third["id"] })).await.ok();
    assert_eq!(gone["state"], "released", "it was never placed");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_node_that_refuses_is_avoided_and_another_takes_it() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let placed = cloud.reserve(json!({ "gpus": 4 })).await;
    let first = node_of(&placed);
    cloud.report(first, failed(&placed, "resources-exhausted")).await.unwrap();
    let waiting = cloud.get(&placed).await;
    assert_eq!(waiting["state"], "scheduling");
    assert_eq!(waiting["waitingReason"], "a node refused it: resources-exhausted");
    // The same word again changes nothing.
    cloud.report(first, failed(&placed, "resources-exhausted")).await.unwrap();
    cloud.place_waiting().await;
    let again = cloud.get(&placed).await;
    assert_eq!((&again["state"], again["attempts"].as_u64()), (&json!("placed"), Some(2)));
    assert_ne!(node_of(&again), first);
    assert_ne!(again["allocation"], placed["allocation"]);
    assert_eq!(cloud.events("reservation.replacing").await, 1);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_every_node_refuses_fails_in_the_end() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    for attempt in 1..=5 {
        let now = cloud.get(&placed).await;
        assert_eq!((&now["state"], now["attempts"].as_u64()), (&json!("placed"), Some(attempt)));
        cloud.report(nodes[0], failed(&now, "device-missing")).await.unwrap();
        cloud.place_waiting().await;
        if attempt < 5 {
            assert_eq!(
                cloud.get(&placed).await["state"],
                "scheduling",
                "the only node is avoided for a while"
            );
            cloud
                .db
                .batch("UPDATE reservations SET avoid_until = compute_now() WHERE state = 'scheduling'")
                .await;
            cloud.place_waiting().await;
        }
    }
    let over = cloud.get(&placed).await;
    assert_eq!(over["state"], "failed");
    assert_eq!(over["failure"], "5 placements failed, the last by device-missing");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_releasing_reservation_whose_node_fails_it_is_released() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    cloud.report(nodes[0], failed(&placed, "device-missing")).await.unwrap();
    assert_eq!(cloud.get(&placed).await["state"], "released");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM bookings").await, 1, "the node may hold it yet");
    cloud.report(nodes[0], released(&placed)).await.unwrap();
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM bookings").await, 0);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_reservation_ends_by_itself_when_its_time_is_over() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1, "hours": 1 })).await;
    cloud.sweep().await;
    assert_eq!(cloud.get(&placed).await["state"], "placed", "its time is not over");
    cloud.db.batch("UPDATE reservations SET expires_at = compute_now()").await;
    cloud.sweep().await;
    assert_eq!(cloud.get(&placed).await["state"], "releasing");
    cloud.report(nodes[0], released(&placed)).await.unwrap();
    assert_eq!(cloud.get(&placed).await["state"], "expired");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn the_same_key_finds_what_the_first_call_made() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let request = json!({ "pool": "gpu", "gpus": 1, "idempotencyKey": "k1" });
    let calls = (0..8).map(|_| cloud.call("reservations.create", request.clone()));
    let told = futures::future::join_all(calls).await;
    let ids: std::collections::BTreeSet<String> =
        told.into_iter().map(|told| told.ok()["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 1);
    let other =
        cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 2, "idempotencyKey": "k1" })).await;
    assert_eq!(other.code(), "CONFLICT");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_dry_run_says_where_and_books_nothing() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let shown = cloud.reserve(json!({ "gpus": 3, "dryRun": true })).await;
    assert_eq!((&shown["dryRun"], &shown["state"]), (&json!(true), &json!("placed")));
    assert_eq!(atoms_of(&shown).len(), 3);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 0);
}

#[tokio::test]
async fn a_create_can_wait_until_the_node_has_bound_it() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let request = json!({ "gpus": 1, "wait": { "timeoutMs": 20_000 } });
    let binding = async {
        let listed = testkit::eventually(std::time::Duration::from_secs(10), || async {
            let listed = cloud.call("reservations.list", json!({})).await.ok();
            if listed["items"][0]["state"] == "placed" { Ok(listed) } else { Err(listed) }
        })
        .await;
        cloud.bind(&listed["items"][0]).await
    };
    let (created, _) = futures::join!(cloud.reserve(request), binding);
    assert_eq!(created["state"], "active");
}

#[tokio::test]
async fn a_draft_that_a_crash_left_is_deleted_and_never_shown() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    let draft = crate::cloud::id::<model::ReservationId>();
    let columns = "tenant_id, pool_id, created_by, state, gpus, created_at";
    cloud
        .db
        .batch(&format!(
            "INSERT INTO reservations (reservation_id, {columns})
             SELECT '{}', tenant_id, pool_id, created_by, 'draft', 1, compute_now() - interval '11 minutes' FROM reservations",
            draft.uuid()
        ))
        .await;
    let get = cloud.call("reservations.get", json!({ "id": draft.to_string() })).await;
    assert_eq!(get.code(), "NOT_FOUND");
    assert_eq!(cloud.call("reservations.list", json!({})).await.ok()["items"].as_array().unwrap().len(), 1);
    cloud.sweep().await;
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 1);
    assert_eq!(cloud.get(&placed).await["state"], "placed");
}

#[tokio::test]
async fn a_whole_node_is_held_by_one_and_counts_for_what_it_is() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let whole = cloud.reserve(json!({ "wholeNode": true })).await;
    assert_eq!((&whole["state"], atoms_of(&whole).len()), (&json!("placed"), 8));
    assert!(whole.get("limits").is_none(), "a machine is not confined within itself");
    let held = "SELECT string_agg(resource || ' ' || amount, ', ' ORDER BY resource) FROM quota_holds";
    assert_eq!(cloud.db.scalar_text(held).await, "gpu 8, memoryGiB 511, reservations 1, vcpu 64");
    let other = cloud.reserve(json!({ "vcpu": 1 })).await;
    assert_eq!(other["state"], "scheduling");
    assert_eq!(other["waitingReason"], "1 node: held whole by another claim");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn an_end_is_moved_only_to_what_is_to_come_and_only_while_there_is_one() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let endless = cloud.reserve(json!({ "gpus": 1 })).await;
    let extend = |id: &serde_json::Value, rest: serde_json::Value| {
        let mut request = rest;
        request["id"] = id.clone();
        cloud.call("reservations.extend", request)
    };
    assert_eq!(extend(&endless["id"], json!({ "hours": 1 })).await.code(), "INVALID_STATE");
    let past = json!({ "expiresAt": "2020-01-01T00:00:00Z" });
    assert_eq!(extend(&endless["id"], past).await.code(), "INVALID_INPUT");
    let far = json!({ "expiresAt": "2999-01-01T00:00:00Z" });
    assert_eq!(extend(&endless["id"], far).await.code(), "INVALID_INPUT");
    let soon = kernel::testing::now().saturating_add(std::time::Duration::from_secs(7200)).to_string();
    assert_eq!(extend(&endless["id"], json!({ "expiresAt": soon })).await.ok()["expiresAt"], json!(soon));
    cloud.call("reservations.release", json!({ "id": endless["id"] })).await.ok();
    assert_eq!(extend(&endless["id"], json!({ "hours": 1 })).await.code(), "INVALID_STATE");
    let past = json!({ "pool": "gpu", "gpus": 1, "expiresAt": "2020-01-01T00:00:00Z" });
    assert_eq!(cloud.call("reservations.create", past).await.code(), "INVALID_INPUT");
}

#[tokio::test]
async fn a_second_release_finds_the_work_done() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    let release = || cloud.call("reservations.release", json!({ "id": placed["id"] }));
    let dry = cloud.call("reservations.release", json!({ "id": placed["id"], "dryRun": true })).await.ok();
    assert_eq!((&dry["state"], &dry["dryRun"]), (&json!("placed"), &json!(true)));
    for _ in 0..2 {
        assert_eq!(release().await.ok()["state"], "releasing");
    }
    cloud.confirm_released(&placed).await;
    assert_eq!(release().await.ok()["state"], "released");
    assert_eq!(cloud.events("reservation.releasing").await, 1);
}

#[tokio::test]
async fn lists_are_newest_first_and_go_on_by_cursor() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(cloud.reserve(json!({ "gpus": 1, "name": "batch" })).await["id"].clone());
    }
    made.reverse();
    let first =
        cloud.call("reservations.list", json!({ "limit": 2, "node": "node-0", "pool": "gpu" })).await.ok();
    let ids = |page: &serde_json::Value| -> Vec<serde_json::Value> {
        page["items"].as_array().unwrap().iter().map(|item| item["id"].clone()).collect()
    };
    assert_eq!(ids(&first), made[..2]);
    let rest = cloud.call("reservations.list", json!({ "limit": 2, "cursor": first["cursor"] })).await.ok();
    assert_eq!((ids(&rest), rest.get("cursor")), (made[2..].to_vec(), None));
    cloud.call("reservations.release", json!({ "id": made[0] })).await.ok();
    let placed = cloud.call("reservations.list", json!({ "state": "placed", "name": "batch" })).await.ok();
    assert_eq!(ids(&placed), made[1..]);
}

#[tokio::test]
async fn a_tenants_reservations_end_by_their_nodes_word_when_it_is_deleted() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let (capacity, tenant) = (&cloud.capacity, cloud.tenant);
    let left =
        async || cloud.db.store.tx(OP, |tx| Box::pin(capacity.left(tx, tenant))).await.expect("it is asked");
    let caller = &cloud.caller(kernel::testing::allow_all());
    let others = cloud.reserve(json!({ "gpus": 1 })).await;
    let placed = call(caller, "reservations.create", json!({ "pool": "gpu", "gpus": 6 })).await.ok();
    let waits = call(caller, "reservations.create", json!({ "pool": "gpu", "gpus": 4 })).await.ok();
    assert_eq!((&placed["state"], &waits["state"]), (&json!("placed"), &json!("scheduling")));
    assert_eq!(left().await, ["2 reservations"]);
    for _ in 0..2 {
        capacity.clear(tenant).await.expect("they are asked to end");
        assert_eq!(left().await, ["1 reservation"], "its node has a say");
    }
    assert_eq!(cloud.get(&placed).await["state"], "releasing");
    cloud.confirm_released(&placed).await;
    assert!(left().await.is_empty());
    assert_eq!(cloud.get(&waits).await["state"], "released");
    assert_eq!(cloud.get(&others).await["state"], "placed");
    assert_eq!(cloud.events("reservation.released").await, 2);

    cloud.db.batch("UPDATE tenants SET deleting_at = compute_now() WHERE parent_id IS NOT NULL").await;
    let told = call(caller, "reservations.create", json!({ "pool": "gpu", "gpus": 1 })).await;
    assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations WHERE state = 'draft'").await, 0);
    cloud.assert_sound().await;
}
