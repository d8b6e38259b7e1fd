//! Hosts that are lost, declared dead, and back.

use model::NodeId;
use serde_json::{Value, json};
use wire::proto::agent::{DesiredInstance as Desired, InstanceObservedState as Seen};

use crate::cloud::{Cloud, instance_of};

const MINUTE: Option<std::time::Duration> = Some(std::time::Duration::from_secs(60));

fn node_of(instance: &Value) -> NodeId {
    instance["node"]["id"].as_str().unwrap_or_else(|| panic!("it is nowhere: {instance}")).parse().unwrap()
}

async fn with_hosts(recreates: bool) -> (Cloud, NodeId, NodeId) {
    let cloud = Cloud::with_policy(json!({
        "network": { "subnet": "10.0.0.0/29", "gateway": "10.0.0.1" }, "recreateOnHostLoss": recreates,
    }))
    .await;
    let (one, other) = (cloud.host("host-0").await, cloud.host("host-1").await);
    (cloud, one, other)
}

/// One that runs, with its host and the other one.
async fn running(cloud: &Cloud, hosts: [NodeId; 2]) -> (Value, NodeId, NodeId) {
    let made = cloud.create().await;
    let host = node_of(&made);
    let other = *hosts.iter().find(|other| **other != host).unwrap();
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    (made, host, other)
}

async fn lost(cloud: &Cloud, host: NodeId, made: &Value) -> Value {
    cloud.host_becomes(host, "lost").await;
    cloud.reconcile(made).await;
    cloud.get(made).await
}

fn condition<'a>(instance: &'a Value, kind: &str) -> Option<&'a Value> {
    instance["conditions"].as_array().unwrap().iter().find(|condition| condition["kind"] == kind)
}

#[tokio::test]
async fn what_is_on_a_lost_host_is_lost_and_is_back_when_the_host_says_so() {
    let (cloud, one, other) = with_hosts(true).await;
    let (made, host, _) = running(&cloud, [one, other]).await;
    cloud.host_becomes(host, "unreachable").await;
    assert_eq!(cloud.reconcile(&made).await, None);
    assert_eq!(cloud.get(&made).await["state"], "running", "silence alone changes nothing");

    let gone = lost(&cloud, host, &made).await;
    assert_eq!((&gone["state"], &gone["addresses"]), (&json!("lost"), &json!(["10.0.0.2"])));
    for _ in 0..3 {
        assert_eq!(cloud.reconcile(&made).await, MINUTE);
    }
    let waits = cloud.get(&made).await;
    assert_eq!(waits["state"], "lost", "nobody said that it does not run");
    let why = condition(&waits, "HostLost").unwrap();
    let message = why["message"].as_str().unwrap();
    assert_eq!(why["reason"], "not-fenced");
    assert!(message.contains("better-compute nodes abandon host-"), "{message}");
    assert_eq!((cloud.events("instance.lost").await, cloud.count("ip_leases").await), (1, 1));
    assert_eq!(cloud.holds(host).await.len(), 1, "it is booked there yet");
    assert_eq!(cloud.change("stop", &made).await.code(), "INVALID_STATE");
    let entry = cloud.entries(host).await.remove(0);
    assert_eq!(
        (entry.desired(), entry.revision, entry.boot),
        (Desired::Running, 2, 1),
        "asked anew, not started"
    );

    cloud.host_becomes(host, "ready").await;
    cloud.say(host, instance_of(&made), 1, Seen::Running).await;
    let back = cloud.get(&made).await;
    assert_eq!(back["state"], "lost", "that was said before it was lost");
    assert_eq!(condition(&back, "HostLost").unwrap()["reason"], "host-back");
    cloud.say(host, instance_of(&made), 2, Seen::Running).await;
    let back = cloud.get(&made).await;
    assert_eq!((&back["state"], &back["conditions"]), (&json!("running"), &json!([])));
    assert_eq!((cloud.events("instance.recovered").await, cloud.events("instance.running").await), (1, 1));
    assert_eq!(cloud.events("instance.recreating").await, 0);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn one_whose_host_was_declared_dead_is_made_anew_elsewhere_and_deleted_where_it_was() {
    let (cloud, one, other) = with_hosts(true).await;
    let (made, host, other) = running(&cloud, [one, other]).await;
    lost(&cloud, host, &made).await;
    let refused = cloud.change("forceRelease", &made).await;
    let fence = refused.body["error"]["details"]["fence"].as_str().unwrap_or_default();
    assert_eq!(refused.code(), "INVALID_STATE");
    assert!(fence.starts_with("better-compute nodes abandon host-"), "{}", refused.body);

    cloud.given_up(host, "lost").await;
    assert_eq!(cloud.reconcile(&made).await, MINUTE);
    assert_eq!(cloud.get(&made).await["state"], "scheduling");
    assert_eq!(cloud.reconcile(&made).await, None);
    let anew = cloud.get(&made).await;
    assert_eq!((&anew["state"], node_of(&anew)), (&json!("provisioning"), other));
    assert_eq!(
        anew["addresses"],
        json!(["10.0.0.3"]),
        "a host that is wrongly called dead has the other one"
    );
    assert_eq!(cloud.settle(other, &made).await["state"], "running");
    assert_eq!(cloud.events("instance.recreating").await, 1);
    assert!(cloud.holds(host).await.is_empty(), "the host can be removed");
    assert_eq!((cloud.count("ip_leases").await, cloud.count("host_bookings").await), (2, 2));
    let told = cloud.entries(host).await.remove(0);
    assert_eq!((told.desired(), told.nics[0].addresses[0].as_str()), (Desired::Deleted, "10.0.0.2/29"));
    cloud.assert_sound().await;

    // It comes back, runs what it ran, and has not heard yet.
    cloud.host_becomes(host, "ready").await;
    let id = instance_of(&made);
    for (revision, seen) in [(1, Seen::Running), (2, Seen::Running), (2, Seen::Absent)] {
        cloud.say(host, id, revision, seen).await;
        assert_eq!(cloud.count("ip_leases").await, 2, "{revision} {seen:?}");
    }
    assert_eq!(cloud.events("instance.orphaned").await, 0, "it is known there");
    cloud.say(host, id, told.revision + 1, Seen::Absent).await;
    assert_eq!(cloud.events("security.invalid-report").await, 1);
    cloud.say(host, id, told.revision, Seen::Absent).await;
    assert!(cloud.entries(host).await.is_empty());
    assert_eq!((cloud.count("ip_leases").await, cloud.count("host_bookings").await), (1, 1));
    assert_eq!(cloud.get(&made).await["state"], "running", "what that host says is not of this one");
    cloud.say(host, id, told.revision, Seen::Absent).await;
    cloud.change("delete", &made).await.ok();
    cloud.settle(other, &made).await;
    cloud.assert_empty().await;
}

#[tokio::test]
async fn without_the_pools_word_one_waits_for_a_person_and_a_host_that_is_back_goes_on() {
    let (cloud, one, other) = with_hosts(false).await;
    let (made, host, other) = running(&cloud, [one, other]).await;
    let (kept, _, _) = (cloud.create().await, (), ());
    assert_eq!(node_of(&kept), host, "hosts are filled one after the other");
    cloud.settle(host, &kept).await;
    lost(&cloud, host, &made).await;
    cloud.given_up(host, "lost").await;
    for one in [&made, &kept] {
        assert_eq!(cloud.reconcile(one).await, MINUTE);
        let waits = cloud.get(one).await;
        assert_eq!(condition(&waits, "HostLost").unwrap()["reason"], "host-dead");
    }
    let released = cloud.change("forceRelease", &made).await.ok();
    assert_eq!(released["state"], "scheduling");
    cloud.reconcile(&made).await;
    assert_eq!(node_of(&cloud.get(&made).await), other);

    cloud.host_becomes(host, "ready").await;
    let entries = cloud.entries(host).await;
    let desired = |of: &Value| {
        let id = instance_of(of).to_string();
        entries.iter().find(|entry| entry.instance_id == id).map(|entry| entry.desired())
    };
    assert_eq!((desired(&made), desired(&kept)), (Some(Desired::Deleted), Some(Desired::Running)));
    assert_eq!(cloud.settle(host, &kept).await["state"], "running");
    assert_eq!(cloud.get(&made).await["state"], "provisioning");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn one_that_is_deleted_on_a_lost_host_goes_when_the_host_is_back_or_dead() {
    let (cloud, one, other) = with_hosts(false).await;
    let (made, host, _) = running(&cloud, [one, other]).await;
    lost(&cloud, host, &made).await;
    let deleting = cloud.change("delete", &made).await.ok();
    assert_eq!(deleting["state"], "deleting");
    assert_eq!(condition(&deleting, "HostLost").unwrap()["reason"], "not-fenced");
    cloud.reconcile(&made).await;
    assert_eq!(
        (cloud.get(&made).await["state"].clone(), cloud.count("ip_leases").await),
        (json!("deleting"), 1)
    );

    cloud.given_up(host, "lost").await;
    assert_eq!(cloud.get(&made).await["state"], "deleted");
    assert_eq!((cloud.count("ip_leases").await, cloud.count("instance_holds").await), (1, 0));
    assert_eq!(cloud.entries(host).await[0].desired(), Desired::Deleted);
    cloud.assert_sound().await;
    cloud.host_becomes(host, "ready").await;
    cloud.settle(host, &made).await;
    cloud.assert_empty().await;

    // A host that comes back before anybody called it dead deletes it by itself.
    let (made, host, _) = running(&cloud, [one, other]).await;
    lost(&cloud, host, &made).await;
    cloud.change("delete", &made).await.ok();
    cloud.host_becomes(host, "ready").await;
    assert_eq!(cloud.settle(host, &made).await["state"], "deleted");
    cloud.assert_empty().await;
}

#[tokio::test]
async fn what_was_left_on_a_host_is_over_when_the_host_is_told_nothing_any_more() {
    for state in ["revoked", "removed"] {
        let (cloud, one, other) = with_hosts(true).await;
        let (made, host, other) = running(&cloud, [one, other]).await;
        cloud.given_up(host, "lost").await;
        cloud.reconcile(&made).await;
        cloud.reconcile(&made).await;
        assert_eq!(node_of(&cloud.get(&made).await), other);
        assert_eq!(cloud.count("ip_leases").await, 2);
        cloud.given_up(host, state).await;
        assert_eq!((cloud.count("ip_leases").await, cloud.count("host_bookings").await), (1, 1), "{state}");
        cloud.assert_sound().await;
    }
    // And nothing is left on one that was told nothing before.
    let (cloud, one, other) = with_hosts(true).await;
    let (made, host, other) = running(&cloud, [one, other]).await;
    cloud.given_up(host, "revoked").await;
    cloud.reconcile(&made).await;
    assert_eq!(cloud.count("ip_leases").await, 0);
    cloud.reconcile(&made).await;
    assert_eq!(node_of(&cloud.get(&made).await), other);
}

#[tokio::test]
async fn one_that_was_placed_before_a_restore_is_made_anew_by_a_person_alone() {
    let (cloud, one, other) = with_hosts(true).await;
    let (made, host, other) = running(&cloud, [one, other]).await;
    cloud.db.batch("UPDATE deployment SET restored_at = compute_now()").await;
    cloud.given_up(host, "lost").await;
    cloud.reconcile(&made).await;
    let waits = cloud.get(&made).await;
    assert_eq!(
        (&waits["state"], &condition(&waits, "HostLost").unwrap()["reason"]),
        (&json!("lost"), &json!("restored"))
    );
    assert_eq!(cloud.change("forceRelease", &made).await.ok()["state"], "scheduling");
    cloud.reconcile(&made).await;
    assert_eq!(node_of(&cloud.get(&made).await), other);
}

#[tokio::test]
async fn one_that_a_host_says_it_has_is_placed_nowhere_else() {
    let (cloud, one, other) = with_hosts(true).await;
    let (made, host, other) = running(&cloud, [one, other]).await;
    cloud.say(other, instance_of(&made), 0, Seen::Running).await;
    cloud.given_up(host, "lost").await;
    cloud.reconcile(&made).await;
    cloud.reconcile(&made).await;
    let waits = cloud.get(&made).await;
    let why = waits["waitingReason"].as_str().unwrap();
    assert!(waits["state"] == "scheduling" && why.contains("says that it has it"), "{why}");
}

#[tokio::test]
async fn a_host_is_asked_once_more_for_what_is_wanted() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let id = instance_of(&made);
    cloud.db.batch("UPDATE instances SET state_since = compute_now() - interval '31 minutes'").await;
    cloud.reconcile(&made).await;
    let asked = cloud.change("recover", &made).await.ok();
    assert_eq!(
        (&asked["state"], &asked["conditions"]),
        (&json!("provisioning"), &json!([])),
        "it has time anew"
    );
    assert_eq!((cloud.entries(host).await[0].revision, cloud.entries(host).await[0].boot), (2, 1));

    cloud.say_why(host, id, 2, Seen::Error, "BadImage", "no").await;
    let asked = cloud.change("recover", &made).await.ok();
    assert_eq!((&asked["state"], &asked["conditions"]), (&json!("starting"), &json!([])));
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    cloud.change("recover", &made).await.ok();
    assert_eq!(cloud.entries(host).await[0].revision, 3, "it is as it was asked to be");

    lost(&cloud, host, &made).await;
    assert_eq!(cloud.change("recover", &made).await.ok()["state"], "lost");
    assert_eq!(cloud.entries(host).await[0].revision, 5);
    cloud.host_becomes(host, "ready").await;
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    cloud.change("delete", &made).await.ok();
    cloud.settle(host, &made).await;
    assert_eq!(cloud.change("recover", &made).await.code(), "INVALID_STATE");
    assert_eq!(cloud.change("forceRelease", &made).await.code(), "INVALID_STATE");
}

#[tokio::test]
async fn a_host_that_reports_gives_up_only_what_it_does_not_get_rid_of() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    cloud.settle(host, &made).await;
    assert_eq!(cloud.change("forceRelease", &made).await.code(), "INVALID_STATE");
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.change("forceRelease", &made).await.code(), "INVALID_STATE", "it is at it");
    cloud.db.batch("UPDATE instances SET state_since = compute_now() - interval '16 minutes'").await;
    assert_eq!(cloud.change("forceRelease", &made).await.ok()["state"], "deleted");
    assert_eq!((cloud.count("instance_holds").await, cloud.count("ip_leases").await), (0, 1));
    assert_eq!(cloud.entries(host).await[0].desired(), Desired::Deleted);
    cloud.settle(host, &made).await;
    cloud.assert_empty().await;
}
