//! Reservations that leave a node, and what stays behind there until the node says that it is gone.

use serde_json::{Value, json};
use wire::proto::agent::DesiredHold;

use crate::cloud::{Cloud, allocation_of, bound, failed, node_of, released};

/// What the node is told of the allocation.
async fn told(cloud: &Cloud, reservation: &Value) -> Option<DesiredHold> {
    let assignments = cloud.devices(node_of(reservation)).await.assignments;
    let one = assignments.iter().find(|one| one.allocation_id == allocation_of(reservation));
    one.map(|one| one.desired())
}

#[tokio::test]
async fn what_a_node_failed_and_then_bound_stays_booked_until_the_node_lets_go() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let first = cloud.reserve(json!({ "gpus": 8 })).await;
    let node = node_of(&first);
    cloud.report(node, failed(&first, "overlap")).await.unwrap();
    assert_eq!(told(&cloud, &first).await, Some(DesiredHold::Released));
    cloud.place_waiting().await;
    let second = cloud.get(&first).await;
    assert_ne!(node_of(&second), node, "it is placed again at once");
    // A generation before the one that says RELEASED was a later one than that at which it failed.
    cloud.report(node, bound(&first)).await.unwrap();
    assert_eq!(cloud.get(&first).await["allocation"], second["allocation"]);
    assert_eq!(cloud.events("security.invalid-report").await, 0);
    assert_eq!(told(&cloud, &first).await, Some(DesiredHold::Released));
    let waiting = cloud.reserve(json!({ "gpus": 1 })).await;
    assert_eq!((&waiting["state"], cloud.booked(node).await), (&json!("scheduling"), 8));
    cloud.assert_sound().await;

    for _ in 0..2 {
        cloud.report(node, released(&first)).await.unwrap();
        assert_eq!(
            (told(&cloud, &first).await, cloud.get(&first).await["state"].clone()),
            (None, json!("placed"))
        );
    }
    cloud.place_waiting().await;
    assert_eq!(node_of(&cloud.get(&waiting).await), node);
    assert_eq!(cloud.bind(&second).await["state"], "active");
    cloud.report(node, bound(&first)).await.unwrap();
    assert_eq!(cloud.events("security.invalid-report").await, 1, "what is over is not bound");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn whatever_a_node_refuses_for_is_placed_on_another() {
    for reason in [
        "overlap",
        "device-missing",
        "unsupported-binding",
        "unsupported-device",
        "unsupported-limits",
        "resources-exhausted",
        "a reason of a newer daemon",
    ] {
        let (cloud, _) = Cloud::with_nodes(2).await;
        let first = cloud.reserve(json!({ "gpus": 1, "vcpu": 4 })).await;
        cloud.report(node_of(&first), failed(&first, reason)).await.unwrap();
        cloud.place_waiting().await;
        let second = cloud.get(&first).await;
        assert_eq!(second["state"], "placed", "{reason}");
        assert_ne!(node_of(&second), node_of(&first), "{reason}");
        cloud.report(node_of(&first), released(&first)).await.unwrap();
        assert_eq!((cloud.booked(node_of(&first)).await, cloud.booked(node_of(&second)).await), (0, 1));
        cloud.assert_sound().await;
    }
}

#[tokio::test]
async fn what_failed_on_a_node_ends_with_the_node() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 2, "vcpu": 4 })).await;
    cloud.report(nodes[0], failed(&placed, "device-missing")).await.unwrap();
    for (state, booked) in [("unreachable", 2), ("revoked", 2), ("removed", 0), ("removed", 0)] {
        cloud.node_becomes(nodes[0], state).await;
        assert_eq!(cloud.booked(nodes[0]).await, booked, "{state}");
        cloud.assert_sound().await;
    }
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM host_bookings").await, 0);
    assert_eq!(told(&cloud, &placed).await, None);
}

#[tokio::test]
async fn what_failed_does_not_keep_its_node_from_being_removed() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.report(nodes[0], failed(&placed, "overlap")).await.unwrap();
    let (capacity, node) = (&cloud.capacity, nodes[0]);
    use kernel::ports::node::NodeObserver;
    let holds = cloud
        .db
        .store
        .tx(crate::cloud::OP, |tx| Box::pin(async move { capacity.holds(tx, node).await }))
        .await
        .unwrap();
    assert!(holds.is_empty(), "{holds:?}");
}

#[tokio::test]
async fn devices_that_fall_ill_are_no_news_to_a_reservation_that_left_them() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let first = cloud.reserve(json!({ "gpus": 8 })).await;
    let node = node_of(&first);
    cloud.report(node, failed(&first, "overlap")).await.unwrap();
    let name = first["node"]["name"].as_str().unwrap();
    let mut ill = crate::cloud::facts(node, name, Some((cloud.pool, cloud.root_tenant)));
    ill.unhealthy.insert(format!("GPU-{name}-3"), "UnlistedHold".to_owned());
    cloud.facts(&ill).await;
    assert_eq!(cloud.events("reservation.degraded").await, 0);
}

#[tokio::test]
async fn what_is_on_a_lost_node_is_placed_again_and_fenced_until_the_node_is_back() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let first = cloud.reserve(json!({ "gpus": 8, "vcpu": 8 })).await;
    let first = cloud.bind(&first).await;
    let node = node_of(&first);
    cloud.node_becomes(node, "unreachable").await;
    cloud.sweep().await;
    assert_eq!(cloud.get(&first).await["state"], "active", "silence alone moves nothing");

    cloud.node_becomes(node, "lost").await;
    for _ in 0..2 {
        cloud.sweep().await;
        let waiting = cloud.get(&first).await;
        assert_eq!(
            (&waiting["state"], &waiting["waitingReason"]),
            (&json!("scheduling"), &json!("the node it was on is lost"))
        );
        assert_eq!(cloud.events("reservation.replacing").await, 1);
    }
    cloud.place_waiting().await;
    let second = cloud.get(&first).await;
    assert_ne!(node_of(&second), node);
    assert_eq!(cloud.bind(&second).await["state"], "active");
    assert_eq!((cloud.booked(node).await, cloud.booked(node_of(&second)).await), (8, 8));
    assert_eq!(told(&cloud, &first).await, Some(DesiredHold::Released));
    cloud.assert_sound().await;

    // It comes back, says first what it still holds, and is told to let go.
    cloud.node_becomes(node, "ready").await;
    cloud.report(node, bound(&first)).await.unwrap();
    let waiting = cloud.reserve(json!({ "gpus": 1 })).await;
    assert_eq!(
        (&waiting["state"], told(&cloud, &first).await),
        (&json!("scheduling"), Some(DesiredHold::Released))
    );
    cloud.report(node, released(&first)).await.unwrap();
    cloud.place_waiting().await;
    assert_eq!(node_of(&cloud.get(&waiting).await), node);
    assert_eq!(cloud.get(&second).await["state"], "active");
    assert_eq!(cloud.events("security.invalid-report").await, 0);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_release_does_not_wait_for_a_lost_node() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.bind(&placed).await;
    cloud.call("reservations.release", json!({ "id": placed["id"] })).await.ok();
    cloud.node_becomes(nodes[0], "lost").await;
    cloud.sweep().await;
    assert_eq!(cloud.get(&placed).await["state"], "released");
    assert_eq!((cloud.booked(nodes[0]).await, told(&cloud, &placed).await), (1, Some(DesiredHold::Released)));
    cloud.report(nodes[0], released(&placed)).await.unwrap();
    assert_eq!((cloud.booked(nodes[0]).await, told(&cloud, &placed).await), (0, None));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_reservation_outlives_any_number_of_lost_nodes() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    for _ in 0..7 {
        cloud.bind(&cloud.get(&placed).await).await;
        cloud.node_becomes(nodes[0], "lost").await;
        cloud.sweep().await;
        assert_eq!(cloud.get(&placed).await["state"], "scheduling");
        cloud.node_becomes(nodes[0], "ready").await;
        cloud.db.batch("UPDATE reservations SET avoid_until = compute_now()").await;
        cloud.place_waiting().await;
    }
    assert_eq!((&cloud.get(&placed).await["state"], cloud.booked(nodes[0]).await), (&json!("placed"), 8));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_a_revoked_node_held_is_given_up_by_a_person_alone() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let held = cloud.reserve(json!({ "gpus": 8 })).await;
    let node = node_of(&held);
    cloud.bind(&held).await;
    let leaving = cloud.reserve(json!({ "vcpu": 1 })).await;
    cloud.call("reservations.release", json!({ "id": leaving["id"] })).await.ok();
    let there = usize::from(node_of(&leaving) == node);
    cloud.node_becomes(node, "revoked").await;
    cloud.schedulable_changed(node).await;
    cloud.place_waiting().await;
    assert_eq!(
        (&cloud.get(&held).await["state"], cloud.holds(node).await.len()),
        (&json!("active"), 1 + there)
    );

    for _ in 0..2 {
        cloud.abandoned(node).await;
        assert_eq!(cloud.holds(node).await, [] as [String; 0]);
    }
    cloud.place_waiting().await;
    let again = cloud.get(&held).await;
    assert_eq!(again["state"], "placed");
    assert!(nodes.contains(&node_of(&again)) && node_of(&again) != node, "{again}");
    assert_eq!(cloud.booked(node).await, 8, "it may run there yet");
    cloud.node_becomes(node, "removed").await;
    cloud.schedulable_changed(node).await;
    assert_eq!(cloud.booked(node).await, 0);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_waits_is_told_why_once_a_minute_at_most() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    for _ in 0..2 {
        cloud.reserve(json!({ "gpus": 8 })).await;
    }
    let waiting = cloud.reserve(json!({ "gpus": 1 })).await;
    let told = async || {
        let why = cloud.get(&waiting).await["waitingReason"].as_str().unwrap().to_owned();
        (why, cloud.events("reservation.waiting").await)
    };
    let (first, before) = told().await;
    cloud.node_becomes(nodes[0], "unreachable").await;
    for _ in 0..2 {
        cloud.place_waiting().await;
        assert_eq!(
            told().await,
            (first.clone(), before),
            "a node more or less changes the counts for all that wait"
        );
    }
    cloud.db.batch("UPDATE reservations SET updated_at = updated_at - interval '1 minute'").await;
    for _ in 0..2 {
        cloud.place_waiting().await;
        let (why, after) = told().await;
        assert_ne!(why, first);
        assert_eq!(after, before + 1);
    }
}
