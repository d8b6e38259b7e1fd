//! Hosts that have no room to start what is booked on them.

use model::NodeId;
use serde_json::{Value, json};
use wire::proto::agent::{DesiredInstance as Desired, InstanceObservedState as Seen};

use crate::cloud::{Cloud, asked, instance_of};

const SAYS: &str = "ResourcesExhausted: 800 MiB of memory needed, 12 MiB left on this host";

fn host_of(instance: &Value) -> NodeId {
    instance["node"]["id"].as_str().unwrap_or_else(|| panic!("it is nowhere: {instance}")).parse().unwrap()
}

/// The host has no room for it, and says so again.
async fn refuse(cloud: &Cloud, made: &Value) -> NodeId {
    let host = host_of(&cloud.get(made).await);
    let id = instance_of(made);
    for entry in cloud.entries(host).await.iter().filter(|entry| entry.instance_id == id.to_string()) {
        for _ in 0..2 {
            cloud.say_why(host, id, entry.revision, Seen::Pending, "ResourcesExhausted", SAYS).await;
        }
    }
    host
}

async fn a_minute_later(cloud: &Cloud, made: &Value) {
    let soon = cloud.reconcile(made).await.unwrap();
    assert!(soon.as_secs() < 61, "{soon:?}");
    cloud.db.batch("UPDATE instances SET exhausted_at = exhausted_at - interval '1 minute'").await;
    cloud.reconcile(made).await;
    cloud.reconcile(made).await;
}

fn condition<'a>(instance: &'a Value, kind: &str) -> Option<&'a Value> {
    instance["conditions"].as_array().unwrap().iter().find(|condition| condition["kind"] == kind)
}

#[tokio::test]
async fn what_a_host_has_no_room_for_is_placed_elsewhere_three_times_and_then_failed() {
    let cloud = Cloud::with_policy(json!({})).await;
    for number in 0..5 {
        cloud.host(&format!("host-{number}")).await;
    }
    let made = cloud.create().await;
    let mut refused = Vec::new();
    for round in 0..3 {
        let host = refuse(&cloud, &made).await;
        let waits = cloud.get(&made).await;
        let why = condition(&waits, "HostResourcesExhausted").unwrap();
        assert_eq!((&why["reason"], &why["message"]), (&waits["node"]["name"], &json!(SAYS)));
        assert!(condition(&waits, "HostWaits").is_none());
        refused.push((host, waits["node"]["name"].as_str().unwrap().to_owned()));
        a_minute_later(&cloud, &made).await;
        let anew = cloud.get(&made).await;
        assert_eq!(anew["state"], "provisioning", "{round}");
        assert!(
            refused.iter().all(|(host, _)| *host != host_of(&anew)),
            "{round}: a host that refused is avoided"
        );
        let names: Vec<&str> = refused.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(condition(&anew, "ExhaustedHosts").unwrap()["message"], names.join(","));
        assert_eq!(cloud.entries(host).await[0].desired(), Desired::Deleted);
        assert_eq!(cloud.events("instance.recreating").await, round + 1);
    }
    cloud.settle(refused[0].0, &made).await;
    assert!(cloud.entries(refused[0].0).await.is_empty(), "nothing of it is there");

    let last = refuse(&cloud, &made).await;
    a_minute_later(&cloud, &made).await;
    let failed = cloud.get(&made).await;
    assert_eq!((&failed["state"], host_of(&failed)), (&json!("error"), last));
    let told = "outbox_events WHERE kind = 'instance.failed' AND data->>'reason' = 'resources-exhausted'";
    assert_eq!((cloud.count(told).await, cloud.events("instance.failed").await), (1, 1));
    cloud.assert_sound().await;

    // The host goes on trying, and one day has room.
    assert_eq!(cloud.settle(last, &made).await["state"], "running");
    assert_eq!(cloud.get(&made).await["conditions"], json!([]));
}

#[tokio::test]
async fn a_refusal_that_does_not_stand_moves_nothing() {
    let (cloud, host) = Cloud::with_host().await;
    cloud.host("host-1").await;
    let made = cloud.create().await;
    let id = instance_of(&made);
    let host = if host_of(&made) == host { host } else { host_of(&made) };
    refuse(&cloud, &made).await;
    cloud.db.batch("UPDATE instances SET exhausted_at = exhausted_at - interval '50 seconds'").await;
    cloud.say_why(host, id, 1, Seen::Pending, "ImageComing", "41 of 100 MiB").await;
    let waits = cloud.get(&made).await;
    assert!(
        condition(&waits, "HostResourcesExhausted").is_none() && condition(&waits, "HostWaits").is_some()
    );
    refuse(&cloud, &made).await;
    let soon = cloud.reconcile(&made).await.unwrap();
    assert!(soon.as_secs() > 50, "it counts from the new refusal: {soon:?}");
    assert_eq!(host_of(&cloud.get(&made).await), host);
}

#[tokio::test]
async fn one_that_ran_before_or_is_not_to_run_waits_for_its_host() {
    let (cloud, _) = Cloud::with_host().await;
    cloud.host("host-1").await;
    let made = cloud.create().await;
    let host = host_of(&made);
    cloud.settle(host, &made).await;
    cloud.change("reboot", &made).await.ok();
    refuse(&cloud, &made).await;
    cloud.db.batch("UPDATE instances SET exhausted_at = exhausted_at - interval '1 hour'").await;
    cloud.reconcile(&made).await;
    let waits = cloud.get(&made).await;
    assert_eq!((&waits["state"], host_of(&waits)), (&json!("starting"), host), "its disk is there");
    assert!(condition(&waits, "HostResourcesExhausted").is_some());

    let mut request = asked();
    request["stopped"] = json!(true);
    let stopped = cloud.call("instances.create", request).await.ok();
    let host = host_of(&stopped);
    cloud.say_why(host, instance_of(&stopped), 1, Seen::Stopped, "", SAYS).await;
    assert_eq!(cloud.get(&stopped).await["state"], "stopped");
    assert_eq!(cloud.events("instance.recreating").await, 0);
}

#[tokio::test]
async fn where_it_is_not_gone_yet_it_is_not_placed_again() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    refuse(&cloud, &made).await;
    a_minute_later(&cloud, &made).await;
    let waits = cloud.get(&made).await;
    assert_eq!(waits["state"], "scheduling", "there is no other host");
    assert!(!waits["waitingReason"].as_str().unwrap().is_empty());
    // Ten minutes are over, and what it left is there yet.
    cloud.db.batch("UPDATE instances SET exhausted_until = compute_now()").await;
    cloud.reconcile(&made).await;
    assert_eq!(cloud.get(&made).await["state"], "scheduling");
    let told = cloud.entries(host).await.remove(0);
    cloud.say(host, instance_of(&made), told.revision, Seen::Absent).await;
    cloud.reconcile(&made).await;
    let anew = cloud.get(&made).await;
    assert_eq!((&anew["state"], host_of(&anew)), (&json!("provisioning"), host));
    let entries = cloud.entries(host).await;
    assert_eq!((entries.len(), entries[0].desired()), (1, Desired::Running));
    assert!(entries[0].revision >= told.revision);
    // What it said of what it was to delete is no word on what it is to run.
    cloud.say(host, instance_of(&made), told.revision, Seen::Absent).await;
    assert_eq!(cloud.get(&made).await["state"], "provisioning");
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    cloud.assert_sound().await;
}
