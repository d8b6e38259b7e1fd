//! What hosts hold and no row places there, and what is counted.

use kernel::module::PassOutcome;
use model::InstanceId;
use prometheus_client::registry::Registry;
use wire::proto::agent::InstanceObservedState as Seen;

use crate::cloud::{Cloud, id, instance_of};

async fn counted(cloud: &Cloud) -> String {
    let module = instances::module(&cloud.instances, None);
    let pass = module.passes.iter().find(|pass| pass.name() == "instance-vitals").unwrap();
    assert_eq!(pass.run().await.unwrap(), PassOutcome::Idle);
    let mut registry = Registry::default();
    cloud.instances.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[tokio::test]
async fn orphans_are_told_once_for_each_set_and_left_as_they_are() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let (one, other): (InstanceId, InstanceId) = (id(), id());
    for _ in 0..2 {
        cloud.says_unlisted(host, &[one]).await;
        cloud.say(host, one, 0, Seen::Running).await;
    }
    assert_eq!(cloud.events("instance.orphaned").await, 1, "the same set is no news");
    cloud.says_unlisted(host, &[one, other, instance_of(&made)]).await;
    assert_eq!(cloud.events("instance.orphaned").await, 2);
    assert_eq!(cloud.count("instance_orphans").await, 2, "what has its place there is none");
    let text = counted(&cloud).await;
    assert!(text.contains(&format!("instances_orphaned{{pool=\"{}\"}} 2", cloud.pool)), "{text}");

    // What it said just now may not be in its conditions yet.
    cloud.says_unlisted(host, &[]).await;
    assert_eq!(cloud.count("instance_orphans").await, 2);
    cloud.db.batch("UPDATE instance_orphans SET since = since - interval '2 minutes'").await;
    cloud.says_unlisted(host, &[other]).await;
    assert_eq!((cloud.count("instance_orphans").await, cloud.events("instance.orphaned").await), (1, 3));
    cloud.says_unlisted(host, &[]).await;
    assert_eq!((cloud.count("instance_orphans").await, cloud.events("instance.orphaned").await), (0, 4));
    assert!(!counted(&cloud).await.contains("orphaned{"));
    assert_eq!(cloud.entries(host).await.len(), 1, "none was asked to go");
}

#[tokio::test]
async fn a_host_that_names_more_than_it_may_is_heard_as_far_as_it_may() {
    let (cloud, host) = Cloud::with_host().await;
    for _ in 0..11 {
        let said = (0..64).map(|_| wire::proto::agent::InstanceStatus {
            instance_id: id::<InstanceId>().to_string(),
            state: Seen::Running.into(),
            ..Default::default()
        });
        cloud.report(host, said.collect()).await;
    }
    assert_eq!(cloud.count("instance_orphans").await, 512);
    let named = "SELECT max(jsonb_array_length(data->'instanceIds'))::bigint FROM outbox_events
                 WHERE kind = 'instance.orphaned'";
    assert!(cloud.db.scalar_i64(named).await <= 100);
}

#[tokio::test]
async fn what_is_stuck_is_counted_by_pool_and_state() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    assert!(!counted(&cloud).await.contains("stuck{"));
    cloud.db.batch("UPDATE instances SET state_since = compute_now() - interval '31 minutes'").await;
    cloud.reconcile(&made).await;
    let line = format!("instances_stuck{{pool=\"{}\",state=\"provisioning\"}} 1", cloud.pool);
    let text = counted(&cloud).await;
    assert!(text.contains(&line), "{text}");
    cloud.settle(host, &made).await;
    assert!(!counted(&cloud).await.contains("stuck{"));
}

#[tokio::test]
async fn one_that_no_host_takes_is_stuck_too() {
    let (cloud, host) = Cloud::with_host().await;
    cloud.host_becomes(host, "unreachable").await;
    let made = cloud.create().await;
    assert_eq!(made["state"], "scheduling");
    cloud.db.batch("UPDATE instances SET state_since = compute_now() - interval '31 minutes'").await;
    for _ in 0..2 {
        cloud.reconcile(&made).await;
    }
    assert_eq!(cloud.events("instance.stuck").await, 1);
    let waits = cloud.get(&made).await;
    assert_eq!(waits["conditions"][0]["kind"], "Stuck");
    assert!(cloud.entries(host).await.is_empty());
}
