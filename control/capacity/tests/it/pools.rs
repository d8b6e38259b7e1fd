//! Pools and their totals.

use serde_json::json;

use crate::cloud::{Cloud, facts};

#[tokio::test]
async fn a_pool_is_made_once_and_counts_what_is_free() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let request = json!({ "name": "metal", "class": "metal", "idempotencyKey": "k" });
    let made = cloud.call("pools.create", request.clone()).await.ok();
    assert_eq!(cloud.call("pools.create", request).await.ok()["id"], made["id"]);
    let again = cloud.call("pools.create", json!({ "name": "gpu", "class": "gpu" })).await;
    assert_eq!(again.code(), "CONFLICT");

    cloud.reserve(json!({ "gpus": 3 })).await;
    let mut ill = facts(nodes[1], "node-1", Some((cloud.pool, cloud.root_tenant)));
    ill.unhealthy.insert("GPU-node-1-7".to_owned(), "Xid: 79".to_owned());
    cloud.facts(&ill).await;
    let shown = cloud.call("pools.get", json!({ "pool": "gpu" })).await.ok();
    assert_eq!((&shown["nodes"], &shown["nodesReady"]), (&json!(2), &json!(2)));
    assert_eq!(shown["gpus"], json!({ "total": 16, "free": 12, "unhealthy": 1, "model": "H100" }));
    let listed = cloud.call("pools.list", json!({ "class": "gpu" })).await.ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_changed_reserve_holds_at_once() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let policy = json!({ "placement": "spread", "hostReserve": { "vcpu": 60, "memoryGiB": 500 } });
    let updated =
        cloud.call("pools.update", json!({ "pool": "gpu", "policy": policy, "ifVersion": 1 })).await.ok();
    assert_eq!((&updated["version"], &updated["policy"]), (&json!(2), &policy));
    let stale = cloud.call("pools.update", json!({ "pool": "gpu", "name": "x", "ifVersion": 1 })).await;
    assert_eq!(stale.code(), "CONFLICT");
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "vcpu": 5 })).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    let held = cloud.reserve(json!({ "vcpu": 4, "memoryGiB": 12 })).await;
    assert_eq!(held["state"], "placed");
    let totals = "SELECT format('%s/%s %s/%s', cpu_millis_free / 1000, cpu_millis_total / 1000, memory_bytes_free >> 30, memory_bytes_total >> 30)
                  FROM node_totals";
    assert_eq!(cloud.db.scalar_text(totals).await, "0/4 0/12");
}
