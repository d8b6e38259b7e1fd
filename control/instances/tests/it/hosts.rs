//! What hosts say that was not hoped for.

use serde_json::json;
use wire::proto::agent::{DesiredInstance as Desired, InstanceObservedState as Seen, InstanceStatus};

use crate::cloud::{Cloud, id, instance_of};

#[tokio::test]
async fn what_a_host_cannot_do_is_told_and_may_be_tried_again() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let id = instance_of(&made);
    cloud.say_why(host, id, 1, Seen::Pending, "Downloading", "41 of 100 MiB").await;
    let waits = cloud.get(&made).await;
    assert_eq!(
        (&waits["state"], &waits["conditions"][0]["kind"]),
        (&json!("provisioning"), &json!("HostWaits"))
    );
    assert_eq!(waits["conditions"][0]["message"], "41 of 100 MiB");

    cloud.say_why(host, id, 1, Seen::Error, "BadImage", "the digest\ndiffers").await;
    let failed = cloud.get(&made).await;
    assert_eq!(failed["state"], "error");
    let condition = &failed["conditions"][0];
    assert_eq!((&condition["kind"], &condition["reason"]), (&json!("RuntimeError"), &json!("BadImage")));
    assert_eq!(condition["message"], "the digest differs");
    assert_eq!(cloud.events("instance.failed").await, 1);
    cloud.say_why(host, id, 1, Seen::Error, "BadImage", "the digest\ndiffers").await;
    assert_eq!(cloud.events("instance.failed").await, 1, "the same word again is no news");

    let again = cloud.change("start", &made).await.ok();
    assert_eq!((&again["state"], &again["conditions"]), (&json!("starting"), &json!([])));
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
}

#[tokio::test]
async fn a_host_speaks_of_what_has_its_place_there_and_of_nothing_else() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let other = cloud.host("host-1").await;
    cloud.say(other, instance_of(&made), 1, Seen::Running).await;
    assert_eq!(cloud.get(&made).await["state"], "provisioning");
    assert_eq!(cloud.events("instance.orphaned").await, 1);
    cloud.say(other, id(), 0, Seen::Absent).await;
    assert_eq!(cloud.events("instance.orphaned").await, 1);

    cloud.say(host, instance_of(&made), 2, Seen::Running).await;
    assert_eq!(cloud.get(&made).await["state"], "provisioning", "nobody asked for a second revision");
    let nonsense = InstanceStatus { instance_id: "web".into(), ..InstanceStatus::default() };
    cloud.report(host, vec![nonsense; 2]).await;
    cloud.report(host, vec![InstanceStatus::default(); 65]).await;
    assert_eq!(cloud.events("security.invalid-report").await, 4);
}

#[tokio::test]
async fn nothing_but_the_answer_to_its_deletion_frees_an_instance() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let id = instance_of(&made);
    cloud.settle(host, &made).await;
    // It says so of what should run: that is no deletion.
    cloud.say(host, id, 1, Seen::Absent).await;
    assert_eq!(cloud.get(&made).await["state"], "running");
    cloud.change("delete", &made).await.ok();
    cloud.say(host, id, 1, Seen::Absent).await;
    cloud.say_why(host, id, 2, Seen::Pending, "ShuttingDown", "").await;
    cloud.say_why(host, id, 2, Seen::Error, "Refused", "a disk is busy").await;
    let deleting = cloud.get(&made).await;
    assert_eq!(
        (&deleting["state"], &deleting["conditions"][0]["message"]),
        (&json!("deleting"), &json!("a disk is busy"))
    );
    assert_eq!(cloud.entries(host).await[0].desired(), Desired::Deleted);
    assert_eq!(cloud.count("ip_leases").await, 1);
    cloud.say(host, id, 2, Seen::Absent).await;
    cloud.assert_empty().await;
    // It comes at least once.
    cloud.say(host, id, 2, Seen::Absent).await;
    assert_eq!(cloud.events("instance.deleted").await, 1);
    assert_eq!(cloud.events("instance.orphaned").await, 0);
}

#[tokio::test]
async fn what_was_on_a_host_that_was_given_up_is_lost_and_can_be_deleted() {
    let (cloud, host) = Cloud::with_host().await;
    let (kept, going) = (cloud.create().await, cloud.create().await);
    cloud.settle(host, &kept).await;
    cloud.change("delete", &going).await.ok();
    cloud.given_up(host, "revoked").await;
    assert_eq!(cloud.get(&going).await["state"], "deleted", "nobody is left to confirm it");
    let lost = cloud.get(&kept).await;
    assert_eq!((&lost["state"], &lost["addresses"]), (&json!("lost"), &json!(["10.0.0.2"])));
    assert!(cloud.holds(host).await.is_empty());
    assert_eq!(cloud.change("stop", &kept).await.code(), "INVALID_STATE");
    assert_eq!(cloud.change("delete", &kept).await.ok()["state"], "deleted");
    cloud.assert_empty().await;
}

#[tokio::test]
async fn a_state_that_lasts_too_long_is_told_once() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let soon = cloud.reconcile(&made).await.unwrap();
    assert!(soon.as_secs() > 1700, "{soon:?}");
    cloud.db.batch("UPDATE instances SET state_since = compute_now() - interval '31 minutes'").await;
    for _ in 0..2 {
        assert_eq!(cloud.reconcile(&made).await, None);
    }
    assert_eq!(cloud.events("instance.stuck").await, 1);
    let stuck = cloud.get(&made).await;
    assert_eq!(stuck["conditions"][0]["kind"], "Stuck");
    let message = stuck["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("provisioning for 31 minutes: host host-0"), "{message}");
    assert_eq!(cloud.settle(host, &made).await["conditions"], json!([]));
    assert_eq!(cloud.reconcile(&made).await, None);
}
