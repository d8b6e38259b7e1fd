//! What keeps a pool of hosts from being deleted, and what goes with it.

use model::NodeId;
use serde_json::{Value, json};

use crate::cloud::{Cloud, asked};

/// What the pool has, by its refusal to go.
async fn has(cloud: &Cloud) -> (Value, String) {
    let told = cloud.call("pools.delete", json!({ "pool": "vps" })).await;
    assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
    let error = &told.body["error"];
    (error["details"]["has"].clone(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_pool_of_hosts_goes_after_its_instances_and_hosts_with_its_flavors() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    cloud.settle(host, &made).await;
    let huge = json!({ "pool": "vps", "name": "huge", "vcpu": 64, "memoryMiB": 512, "diskGiB": 10 });
    cloud.call("flavors.create", huge).await.ok();
    let mut ask = asked();
    ask["flavor"] = json!("huge");
    let waiting = cloud.call("instances.create", ask).await.ok();
    assert_eq!(waiting["state"], "scheduling");
    let (all, message) = has(&cloud).await;
    assert_eq!(all, json!(["2 instances", "1 address lease", "1 node"]));
    let next =
        format!("Next: better-compute instances list --tenant {} --pool {}", cloud.root_tenant, cloud.pool);
    assert!(message.ends_with(&next), "{message}");

    cloud.change("delete", &made).await.ok();
    cloud.settle(host, &made).await;
    assert_eq!(has(&cloud).await.0, json!(["1 instance", "1 node"]), "one waits, and is nowhere");
    cloud.change("delete", &waiting).await.ok();
    assert_eq!(has(&cloud).await.0, json!(["1 node"]));
    cloud.host_becomes(host, "revoked").await;

    let flavors = cloud.call("flavors.list", json!({ "pool": "vps" })).await.ok();
    let gone = cloud.call("pools.delete", json!({ "pool": "vps" })).await.ok();
    assert_eq!((&gone["state"], &gone["flavors"]), (&json!("deleted"), &json!(2)));
    let fresh = json!({ "pool": "vps", "name": "new", "vcpu": 1, "memoryMiB": 512, "diskGiB": 10 });
    for (method, request) in [
        ("flavors.get", json!({ "id": flavors["items"][0]["id"] })),
        ("flavors.list", json!({ "pool": gone["id"] })),
        ("flavors.create", fresh),
        ("instances.create", asked()),
    ] {
        assert_eq!(cloud.call(method, request).await.code(), "NOT_FOUND", "{method}");
    }
    let ended = cloud.get(&made).await;
    assert_eq!((&ended["pool"]["name"], &ended["flavor"]["name"]), (&json!("vps"), &json!("small")));
    let request = json!({ "pool": "vps", "includeDeleted": true });
    let listed = cloud.call("instances.list", request).await.ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);

    let anew = json!({ "name": "vps", "class": "vps-host" });
    let anew = cloud.call("pools.create", anew).await.ok();
    assert_eq!((&anew["flavors"], &anew["state"]), (&json!(0), &json!("active")));
    cloud.assert_empty().await;
}

#[tokio::test]
async fn an_address_that_a_lost_host_may_have_keeps_its_pool() {
    let cloud = Cloud::with_policy(json!({
        "network": { "subnet": "10.0.0.0/29", "gateway": "10.0.0.1" }, "recreateOnHostLoss": true,
    }))
    .await;
    let hosts = [cloud.host("host-0").await, cloud.host("host-1").await];
    let made = cloud.create().await;
    let host: NodeId = made["node"]["id"].as_str().unwrap().parse().unwrap();
    let other = if host == hosts[0] { hosts[1] } else { hosts[0] };
    cloud.settle(host, &made).await;
    cloud.host_becomes(host, "lost").await;
    cloud.reconcile(&made).await;
    cloud.given_up(host, "lost").await;
    cloud.reconcile(&made).await;
    cloud.reconcile(&made).await;
    cloud.settle(other, &made).await;
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.settle(other, &made).await["state"], "deleted");
    let (all, message) = has(&cloud).await;
    assert_eq!(all, json!(["1 address lease", "2 nodes"]));
    assert!(message.ends_with(&format!("Next: better-compute nodes get {host}")), "{message}");

    cloud.host_becomes(other, "revoked").await;
    assert_eq!(has(&cloud).await.0, json!(["1 address lease", "1 node"]));
    cloud.host_becomes(host, "revoked").await;
    cloud.call("pools.delete", json!({ "pool": "vps" })).await.ok();
    cloud.assert_empty().await;
}

#[tokio::test]
async fn of_an_instance_and_the_deletion_of_its_pool_one_finds_the_other() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    cloud.change("delete", &made).await.ok();
    cloud.settle(host, &made).await;
    cloud.db.batch("UPDATE nodes SET state = 'revoked'").await;
    // An instance that is being made when the deletion comes.
    let copy = "INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime, vcpu,
           memory_mib, disk_gib)
         SELECT gen_random_uuid(), tenant_id, pool_id, flavor_id, image_id, created_by, 'scheduling', 'running', runtime, vcpu,
           memory_mib, disk_gib FROM instances";
    let told = cloud.db.meet(&[copy], cloud.call("pools.delete", json!({ "pool": "vps" }))).await;
    assert_eq!(told.body["error"]["details"]["has"], json!(["1 instance"]), "{}", told.body);
    cloud.db.batch("DELETE FROM instances WHERE ended_at IS NULL").await;

    // A deletion that is under way when an instance is made.
    cloud.db.batch("UPDATE nodes SET state = 'ready'").await;
    let delete = [
        "SELECT 1 FROM pools WHERE name = 'vps' FOR UPDATE",
        "UPDATE pools SET deleted_at = compute_now() WHERE name = 'vps'",
    ];
    let told = cloud.db.meet(&delete, cloud.call("instances.create", asked())).await;
    assert_eq!(told.code(), "NOT_FOUND", "{}", told.body);
    let live = "instances WHERE ended_at IS NULL";
    assert_eq!((cloud.count(live).await, cloud.count("instance_holds").await), (0, 0));
}
