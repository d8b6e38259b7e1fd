//! Instances that are named by what they are called.

use std::sync::Arc;

use kernel::Principal;
use kernel::ports::iam::Resource;
use kernel::testing::{DecideBy, allow_all, deny_all};
use serde_json::{Value, json};

use crate::cloud::{Cloud, asked, call, instance_of};

async fn called(cloud: &Cloud, name: &str) -> Value {
    let mut request = asked();
    request["name"] = json!(name);
    cloud.call("instances.create", request).await.ok()
}

fn web() -> Value {
    json!({ "id": "web" })
}

#[tokio::test]
async fn an_instance_lives_and_goes_by_its_name() {
    let (cloud, host) = Cloud::with_host().await;
    let larger = json!({ "pool": "vps", "name": "larger", "vcpu": 4, "memoryMiB": 1024, "diskGiB": 10 });
    cloud.call("flavors.create", larger).await.ok();
    let made = called(&cloud, "web").await;
    called(&cloud, "db").await;
    cloud.settle(host, &made).await;
    assert_eq!(cloud.call("instances.get", web()).await.ok()["id"], made["id"]);
    assert_eq!(cloud.call("instances.stop", web()).await.ok()["state"], "stopping");
    cloud.settle(host, &made).await;
    let resized = cloud.call("instances.resize", json!({ "id": "web", "flavor": "larger" })).await.ok();
    assert_eq!((&resized["id"], &resized["flavor"]["name"]), (&made["id"], &json!("larger")));
    assert_eq!(cloud.call("instances.start", web()).await.ok()["state"], "starting");
    assert_eq!(cloud.call("instances.recover", web()).await.ok()["id"], made["id"]);
    cloud.settle(host, &made).await;
    assert_eq!(cloud.call("instances.reboot", web()).await.ok()["state"], "starting");
    assert_eq!(cloud.call("instances.forceRelease", web()).await.code(), "INVALID_STATE");
    assert_eq!(cloud.call("instances.delete", web()).await.ok()["state"], "deleting");
    assert_eq!(cloud.call("instances.delete", web()).await.ok()["id"], made["id"], "it is going already");
    cloud.settle(host, &made).await;
    let stopped =
        format!("audit WHERE action = 'compute:instances:stop' AND resource LIKE '%{}'", instance_of(&made));
    assert_eq!(cloud.count(&stopped).await, 1, "the audit log has its id");
}

#[tokio::test]
async fn an_instance_that_ended_left_its_name_to_the_next() {
    let (cloud, host) = Cloud::with_host().await;
    let first = called(&cloud, "web").await;
    cloud.call("instances.delete", web()).await.ok();
    cloud.settle(host, &first).await;
    let gone = cloud.call("instances.get", web()).await;
    assert_eq!(gone.code(), "NOT_FOUND");
    assert_eq!(gone.body["error"]["message"], "no instance web");
    assert_eq!(cloud.get(&first).await["state"], "deleted", "by its id it is known for ever");
    let second = called(&cloud, "web").await;
    assert_eq!(cloud.call("instances.get", web()).await.ok()["id"], second["id"]);
}

#[tokio::test]
async fn a_name_that_two_have_is_refused_with_their_ids_and_changes_nothing() {
    let (cloud, host) = Cloud::with_host().await;
    let made = [called(&cloud, "web").await, called(&cloud, "web").await];
    for one in &made {
        cloud.settle(host, one).await;
    }
    for verb in ["get", "start", "stop", "reboot", "recover", "forceRelease", "delete"] {
        let refused = cloud.call(&format!("instances.{verb}"), web()).await;
        assert_eq!(refused.code(), "INVALID_INPUT", "{verb}");
        let error = &refused.body["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("2 instances are called web"), "{message}");
        assert!(message.contains("better-compute instances list --name web"), "{message}");
        assert_eq!(error["details"]["pointer"], "/id");
        assert_eq!(error["details"]["instances"], json!([made[1]["id"], made[0]["id"]]));
    }
    for one in &made {
        assert_eq!(cloud.get(one).await["state"], "running");
    }
    cloud.change("delete", &made[0]).await.ok();
    cloud.settle(host, &made[0]).await;
    assert_eq!(cloud.call("instances.get", web()).await.ok()["id"], made[1]["id"]);
}

#[tokio::test]
async fn one_that_a_caller_may_not_see_is_in_nobodys_way_and_not_told_of() {
    let (cloud, _) = Cloud::with_host().await;
    let ada = cloud.caller(allow_all());
    let mut request = asked();
    request["name"] = json!("web");
    let hidden = call(&ada, "instances.create", request.clone()).await.ok();
    let seen = call(&ada, "instances.create", request).await.ok();
    let ending = instance_of(&hidden).to_string();
    let but_one = move |_: &Principal, _: &str, resource: &Resource| !resource.name.ends_with(&ending);
    let bounded = cloud.caller(Arc::new(DecideBy(but_one)));
    assert_eq!(call(&bounded, "instances.get", web()).await.ok()["id"], seen["id"]);
    assert_eq!(call(&bounded, "instances.stop", web()).await.ok()["id"], seen["id"]);

    // A name is looked up in the caller's tenant, or in the one that is named.
    assert_eq!(cloud.call("instances.get", web()).await.code(), "NOT_FOUND");
    let there = json!({ "id": "web", "tenant": hidden["tenant"]["id"] });
    assert_eq!(cloud.call("instances.get", there).await.code(), "INVALID_INPUT");
    let denied = cloud.caller(deny_all());
    for (method, id) in [("get", "web"), ("delete", "web"), ("delete", "none")] {
        let refused = call(&denied, &format!("instances.{method}"), json!({ "id": id })).await;
        assert_eq!(refused.code(), "NOT_FOUND", "{method} {id}");
        assert_eq!(refused.body["error"]["details"], json!({ "kind": "instance", "id": id }));
    }
}
