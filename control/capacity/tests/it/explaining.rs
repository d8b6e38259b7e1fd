//! Refusals and explanations.

use std::sync::Arc;

use kernel::Principal;
use kernel::ports::iam::Resource;
use kernel::testing::DecideBy;
use serde_json::json;

use crate::cloud::{Cloud, call, facts, pipeline};

#[tokio::test]
async fn what_no_node_could_ever_hold_is_refused_with_reasons_and_hints() {
    let (cloud, nodes) = Cloud::with_nodes(3).await;
    cloud
        .db
        .batch("UPDATE nodes SET cordoned_at = compute_now(), cordoned_by = 'alice', cordon_reason = 'firmware' WHERE name = 'node-2'")
        .await;
    cloud.schedulable_changed(nodes[2]).await;
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 16 })).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    let error = &refused.body["error"];
    assert_eq!(error["message"], "no node in pool \"gpu\" can hold 16 GPUs together");
    let details = &error["details"];
    assert_eq!(
        details["groups"],
        json!([
            { "nodes": 2, "verdict": "never", "reason": "8 GPUs in all, 16 wanted on one node" },
            { "nodes": 1, "verdict": "closed", "reason": "cordoned" },
        ])
    );
    assert_eq!(details["hints"], json!(["--gpus 8", "2 reservations with --gpus 8"]));
    assert_eq!(details["explain"], "better-compute reservations explain --pool gpu --gpus 16");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 0, "no draft is left");
}

#[tokio::test]
async fn an_explanation_names_only_nodes_that_the_caller_may_see() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let mut ill = facts(nodes[1], "node-1", Some((cloud.pool, cloud.root_tenant)));
    for index in 0..3 {
        ill.unhealthy.insert(format!("GPU-node-1-{index}"), "Xid: 79".to_owned());
    }
    cloud.facts(&ill).await;
    let request = json!({ "pool": "gpu", "gpus": 6 });
    let all = cloud.call("reservations.explain", request.clone()).await.ok();
    assert_eq!((&all["fits"], &all["node"]["name"]), (&json!(true), &json!("node-0")));
    assert_eq!(all["summary"], "1 of 2 nodes in pool \"gpu\" can hold it now");
    assert_eq!(all["nodes"][1]["reasons"], json!(["3 GPUs unhealthy (Xid: 79), 5 left, 6 wanted"]));

    let blind = DecideBy(|_: &Principal, action: &str, _: &Resource| action == "compute:reservations:create");
    let caller = pipeline(&cloud.capacity, &cloud.db, cloud.root_user, cloud.root_tenant, Arc::new(blind));
    let some = call(&caller, "reservations.explain", request).await.ok();
    assert_eq!((&some["fits"], &some["nodes"]), (&json!(true), &json!([])));
    assert!(some.get("node").is_none());
    assert_eq!(some["groups"][1]["reason"], "3 GPUs unhealthy, 5 left, 6 wanted");
}

#[tokio::test]
async fn an_empty_pool_says_so() {
    let cloud = Cloud::empty().await;
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1 })).await;
    assert_eq!(refused.body["error"]["message"], "pool \"gpu\" has no nodes yet");
}
