use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_restore_is_confirmed_once_by_name_and_raises_the_epoch() {
    let world = World::new().await;
    let info = world.does("system.info", json!({})).await;
    assert_eq!((info["epoch"].as_u64(), info.get("observeOnly")), (Some(1), None));
    let id = info["deploymentId"].clone();
    let confirm = async |request| {
        let told = world.call(&world.admin, "system.confirmRestore", request).await;
        (told.code().to_owned(), told.body)
    };
    assert_eq!(confirm(json!({"confirm": id, "epoch": 1})).await.0, "INVALID_STATE", "nothing is suspected");

    world
        .db
        .batch(
            "UPDATE deployment SET observe_only = true, observe_reason = 'older', observe_since = compute_now(),
                                   epoch_floor = 7",
        )
        .await;
    let info = world.does("system.info", json!({})).await;
    assert_eq!(info["observeOnly"]["reason"], "older");
    let (code, body) = confirm(json!({"epoch": 1})).await;
    assert_eq!((code.as_str(), &body["error"]["details"]["confirm"]), ("CONFIRMATION_REQUIRED", &id));
    assert_eq!(confirm(json!({"confirm": id, "epoch": 2})).await.0, "CONFLICT");
    let (code, body) = confirm(json!({"confirm": id, "epoch": 1, "reason": "disk died"})).await;
    assert_eq!((code.as_str(), body["epoch"].as_u64(), body.get("observeOnly")), ("ok", Some(8), None));
    assert_eq!(
        confirm(json!({"confirm": id, "epoch": 1})).await.0,
        "CONFLICT",
        "a second time changes nothing"
    );
    let told = "SELECT count(*) FROM outbox_events WHERE kind = 'deployment.restored' AND data->>'reason' = 'disk died'";
    assert_eq!(world.db.scalar_i64(told).await, 1);
}

#[tokio::test]
async fn the_deployment_counts_what_it_has() {
    let world = World::new().await;
    world
        .db
        .batch(
            "INSERT INTO gateways (gateway_id, epoch, address, expires_at)
               VALUES (gen_random_uuid(), 1, '10.0.0.1:8443', compute_now() + interval '1 minute'),
                      (gen_random_uuid(), 2, '10.0.0.2:8443', compute_now() - interval '1 minute')",
        )
        .await;
    let info = world.does("system.info", json!({})).await;
    let gateways = info["gateways"].as_array().unwrap();
    assert_eq!(
        (gateways.len(), gateways[0]["address"].as_str()),
        (1, Some("10.0.0.1:8443")),
        "a lapsed one is gone"
    );
    assert!(info["nodes"].as_object().unwrap().is_empty());
}
