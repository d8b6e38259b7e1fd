//! What may be made, and what is refused.

use std::sync::Arc;

use kernel::Principal;
use kernel::ports::iam::Resource;
use kernel::testing::{DecideBy, allow_all, deny_all};
use serde_json::{Value, json};

use crate::cloud::{Cloud, asked, call, instance_of};

fn with(field: &str, value: Value) -> Value {
    let mut request = asked();
    request[field] = value;
    request
}

#[tokio::test]
async fn what_is_not_there_or_not_meant_for_instances_is_refused() {
    let (cloud, _) = Cloud::with_host().await;
    let gpu = json!({ "name": "gpu", "class": "gpu" });
    cloud.call("pools.create", gpu).await.ok();
    let cases = [
        (with("pool", json!("none")), "NOT_FOUND", "no pool none"),
        (with("pool", json!("gpu")), "INVALID_INPUT", "class vps-host"),
        (with("flavor", json!("huge")), "NOT_FOUND", "no flavor huge"),
        (with("image", json!("plan9")), "NOT_FOUND", "no image plan9"),
        (with("sshKeys", json!(["not a key"])), "INVALID_INPUT", ""),
        (with("sshKeys", json!(["-----BEGIN OPENSSH PRIVATE KEY-----"])), "INVALID_INPUT", "private key"),
        (with("colour", json!("red")), "INVALID_INPUT", "colour"),
    ];
    for (request, code, words) in cases {
        let refused = cloud.call("instances.create", request.clone()).await;
        assert_eq!(refused.code(), code, "{request}");
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(cloud.count("instances").await, 0);
    assert_eq!(
        cloud
            .call(
                "flavors.create",
                json!({ "pool": "gpu", "name": "x", "vcpu": 1, "memoryGiB": 1, "diskGiB": 1 })
            )
            .await
            .code(),
        "INVALID_INPUT"
    );
}

#[tokio::test]
async fn a_policy_may_bound_what_is_made_and_a_refusal_leaves_nothing() {
    let (cloud, _) = Cloud::with_host().await;
    let small = |_: &Principal, action: &str, resource: &Resource| {
        let vcpu = resource.attributes.get("resource.vcpu").is_some();
        let verified = resource.attributes.get("resource.imageVerified").is_some();
        action != "compute:instances:create" || (vcpu && verified)
    };
    let bounded = cloud.caller(Arc::new(DecideBy(small)));
    let made = call(&bounded, "instances.create", asked()).await.ok();
    assert_eq!(made["tenant"]["name"], "acme");
    let denied = cloud.caller(deny_all());
    for (method, request) in [
        ("instances.create", asked()),
        ("instances.get", json!({ "id": made["id"] })),
        ("instances.delete", json!({ "id": made["id"] })),
        ("instances.recover", json!({ "id": made["id"] })),
        ("instances.forceRelease", json!({ "id": made["id"] })),
    ] {
        let code = call(&denied, method, request).await.code().to_owned();
        assert!(["NOT_FOUND", "ACCESS_DENIED"].contains(&code.as_str()), "{method}: {code}");
    }
    assert_eq!(cloud.count("instances").await, 1);
    assert_eq!(cloud.count("host_bookings").await, 1);
}

#[tokio::test]
async fn every_resource_of_an_instance_counts_against_quota_until_its_host_lets_go() {
    let (cloud, host) = Cloud::with_host().await;
    for (resource, amount) in [("vcpu", 3), ("memoryGiB", 10), ("diskGiB", 25)] {
        cloud.call("quotas.set", json!({ "resource": resource, "amount": amount })).await.ok();
    }
    let made = cloud.create().await;
    let refused = cloud.call("instances.create", asked()).await;
    assert_eq!(refused.code(), "QUOTA_EXCEEDED");
    let details = &refused.body["error"]["details"];
    assert_eq!(
        (&details["resource"], &details["used"], &details["wanted"]),
        (&json!("vcpu"), &json!(2), &json!(2))
    );
    let quotas = cloud.call("quotas.list", json!({})).await.ok();
    let used: Vec<_> =
        quotas["items"].as_array().unwrap().iter().map(|quota| quota["used"].clone()).collect();
    assert_eq!(used, [json!(10), json!(1), json!(2)]);
    assert_eq!((cloud.count("instances").await, cloud.count("host_bookings").await), (1, 1));

    // Reservations and instances share what a tenant may hold.
    let reserved = cloud.call("reservations.create", json!({ "pool": "vps", "vcpu": 2 })).await;
    assert_eq!(reserved.code(), "QUOTA_EXCEEDED");
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.call("instances.create", asked()).await.code(), "QUOTA_EXCEEDED");
    cloud.settle(host, &made).await;
    cloud.create().await;
    cloud.assert_sound().await;
}

#[tokio::test]
async fn the_same_request_under_one_key_makes_one_instance() {
    let (cloud, _) = Cloud::with_host().await;
    let request = with("idempotencyKey", json!("build-7"));
    let made = cloud.call("instances.create", request.clone()).await.ok();
    let again = cloud.call("instances.create", request.clone()).await.ok();
    assert_eq!(again["id"], made["id"]);
    let mut other = request.clone();
    other["wait"] = json!({ "timeoutMs": 0 });
    assert_eq!(
        cloud.call("instances.create", other).await.ok()["id"],
        made["id"],
        "how long to wait is no part of it"
    );
    let mut other = request.clone();
    other["name"] = json!("web");
    assert_eq!(cloud.call("instances.create", other).await.code(), "CONFLICT");
    let fresh = with("idempotencyKey", json!("build-8"));
    let (one, two) = tokio::join!(
        cloud.call("instances.create", fresh.clone()),
        cloud.call("instances.create", fresh.clone())
    );
    assert_eq!(one.ok()["id"], two.ok()["id"]);
    assert_eq!(cloud.count("instances").await, 2);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_no_host_can_take_now_waits_and_is_placed_when_one_can() {
    let cloud = Cloud::empty().await;
    let never = cloud.call("instances.create", asked()).await;
    assert_eq!(never.code(), "CAPACITY_UNAVAILABLE", "no host is there at all");
    let other = cloud.host_that_runs("host-0", "kata").await;
    assert_eq!(cloud.call("instances.create", asked()).await.code(), "CAPACITY_UNAVAILABLE");
    assert!(cloud.entries(other).await.is_empty());

    let host = cloud.host("host-1").await;
    let huge = json!({ "pool": "vps", "name": "huge", "vcpu": 64, "memoryGiB": 64, "diskGiB": 10 });
    cloud.call("flavors.create", huge).await.ok();
    let larger = json!({ "pool": "vps", "name": "larger", "vcpu": 65, "memoryGiB": 64, "diskGiB": 10 });
    cloud.call("flavors.create", larger).await.ok();
    let never = cloud.call("instances.create", with("flavor", json!("larger"))).await;
    let message = never.body["error"]["message"].as_str().unwrap();
    assert_eq!(never.code(), "CAPACITY_UNAVAILABLE", "it is larger than any host");
    assert!(message.contains("\"vps\"") && message.contains("flavors list --pool vps"), "{message}");
    assert_eq!(cloud.count("instances").await, 0);
    let first = cloud.call("instances.create", with("flavor", json!("huge"))).await.ok();
    let waits = cloud.call("instances.create", with("flavor", json!("huge"))).await.ok();
    assert_eq!(waits["state"], "scheduling");
    assert!(waits["waitingReason"].as_str().is_some_and(|reason| !reason.is_empty()), "{waits}");
    assert!(cloud.reconcile(&waits).await.is_some());
    assert_eq!(cloud.get(&waits).await["state"], "scheduling");

    cloud.change("delete", &first).await.ok();
    cloud.settle(host, &first).await;
    assert_eq!(cloud.reconcile(&waits).await, None);
    let placed = cloud.get(&waits).await;
    assert_eq!((&placed["state"], &placed["node"]["name"]), (&json!("provisioning"), &json!("host-1")));
    assert!(placed.get("waitingReason").is_none(), "{placed}");

    let third = cloud.call("instances.create", with("flavor", json!("huge"))).await.ok();
    // It may have been placed after the backup was made, and run since.
    cloud.db.batch("UPDATE deployment SET epoch = 2, restored_at = compute_now()").await;
    cloud.change("delete", &placed).await.ok();
    cloud.settle(host, &placed).await;
    assert!(cloud.reconcile(&third).await.is_some());
    let third = cloud.get(&third).await;
    assert_eq!(third["state"], "scheduling", "there is room, and nobody knows whether it has a host");
    assert!(third["waitingReason"].as_str().is_some_and(|reason| reason.contains("restored")), "{third}");
    let fresh = cloud.call("instances.create", with("flavor", json!("huge"))).await.ok();
    assert_eq!(fresh["state"], "provisioning", "one of since then has none");
    assert_eq!(cloud.change("delete", &third).await.ok()["state"], "deleted", "it was on no host");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_tenant_uses_its_own_images_and_those_shared_with_it() {
    let (cloud, _) = Cloud::with_host().await;
    let ada = cloud.caller(allow_all());
    let own = json!({
        "name": "own", "url": "https://acme.example.com/own.raw", "sha256": "cd".repeat(32), "format": "raw",
    });
    call(&ada, "images.create", own.clone()).await.ok();
    assert_eq!(call(&ada, "images.create", own).await.code(), "CONFLICT");
    let hidden = json!({
        "name": "hidden", "url": "https://root.example.com/x", "sha256": "ef".repeat(32), "format": "iso",
    });
    cloud.call("images.create", hidden).await.ok();
    let names = |listed: Value| {
        let items = listed["items"].as_array().unwrap().clone();
        items.into_iter().map(|image| image["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(call(&ada, "images.list", json!({})).await.ok()), ["own", "debian-12"]);
    assert_eq!(names(cloud.call("images.list", json!({})).await.ok()), ["hidden", "debian-12"]);
    for (image, code) in [("own", "ok"), ("debian-12", "ok"), ("hidden", "NOT_FOUND")] {
        let told = call(&ada, "instances.create", with("image", json!(image))).await;
        assert_eq!(told.code(), code, "{image}");
    }
    assert_eq!(cloud.call("instances.create", with("image", json!("own"))).await.code(), "NOT_FOUND");
    let listed = call(&ada, "flavors.list", json!({ "pool": "vps" })).await.ok();
    assert_eq!(names(listed), ["small"]);
}

#[tokio::test]
async fn a_burst_of_creates_books_each_once() {
    let (cloud, _) = Cloud::with_host().await;
    let burst = (0..5).map(|_| cloud.call("instances.create", asked()));
    let made: Vec<Value> = futures_join(burst).await.into_iter().map(kernel::testing::Told::ok).collect();
    let mut addresses: Vec<_> = made.iter().map(|one| one["addresses"][0].to_string()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 5);
    let mut ids: Vec<_> = made.iter().map(instance_of).collect();
    ids.dedup();
    assert_eq!((ids.len(), cloud.count("host_bookings").await), (5, 5));
    cloud.assert_sound().await;
}

async fn futures_join<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = all.map(|one| Some(Box::pin(one))).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (slot, out) in running.iter_mut().zip(&mut done) {
            if let Some(one) = slot
                && let std::task::Poll::Ready(output) = one.as_mut().poll(context)
            {
                *out = Some(output);
                *slot = None;
            }
        }
        match running.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
