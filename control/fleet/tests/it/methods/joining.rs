use pki::JoinToken;
use serde_json::json;
use wire::proto::agent::join_reply::Outcome;

use super::{Api, audited};
use crate::machine::Machine;
use crate::world::{TokenIs, id, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_joins_with_the_secret_that_was_told_once() {
    let world = world().await;
    let api = Api::new(&world);
    let request = json!({ "site": "hall-1", "pool": "gpus", "idempotencyKey": "k1" });
    let made = api.ok("joinTokens.create", request.clone()).await;
    let token: JoinToken = made["secret"].as_str().unwrap().parse().unwrap();
    let again = api.ok("joinTokens.create", request).await;
    assert_eq!(again["joinToken"]["id"], made["joinToken"]["id"]);
    assert_eq!(again.get("secret"), None);

    let mut machine = Machine::new("gpu-1");
    let outcome = world.join(&machine, &token).await.unwrap();
    machine.accept(&world, outcome);
    assert_eq!(world.state(&machine).await, "accepting");
    let listed = api.ok("joinTokens.list", json!({ "includeEnded": true })).await;
    assert_eq!((&listed["items"][0]["state"], &listed["items"][0]["uses"]), (&json!("used"), &json!(1)));
    assert!(api.ok("joinTokens.list", json!({})).await["items"].as_array().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_revoked_once() {
    let world = world().await;
    let api = Api::new(&world);
    let made = api.ok("joinTokens.create", json!({ "site": "hall-1" })).await;
    let token_id = made["joinToken"]["id"].clone();
    let told = api.ok("joinTokens.revoke", json!({ "id": token_id, "dryRun": true })).await;
    assert_eq!(told["state"], "active");
    for _ in 0..2 {
        let told = api.ok("joinTokens.revoke", json!({ "id": token_id })).await;
        assert_eq!(told["state"], "revoked");
    }
    let revoked =
        world.events("join-token.changed").await.iter().filter(|data| data["revoked"] == true).count();
    assert_eq!(revoked, 1);
    let token: JoinToken = made["secret"].as_str().unwrap().parse().unwrap();
    assert!(world.join(&Machine::new("late"), &token).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_needs_a_site_and_a_pool_that_are_there_for_its_maker() {
    let world = world().await;
    let api = Api::new(&world);
    let unknown: model::SiteId = id();
    let told = api.call("joinTokens.create", json!({ "site": unknown.to_string() })).await;
    assert_eq!(told.code(), "NOT_FOUND");
    let blind = Api::may(&world, &["compute:joinTokens:create"]);
    for pool in ["gpus", "nothing"] {
        let told = blind.call("joinTokens.create", json!({ "site": "hall-1", "pool": pool })).await;
        assert_eq!(told.code(), "NOT_FOUND", "{pool}");
    }
    let seeing = Api::may(&world, &["compute:joinTokens:create", "compute:pools:get"]);
    let told = seeing.call("joinTokens.create", json!({ "site": "hall-1", "pool": "gpus" })).await;
    assert_eq!(told.code(), "ACCESS_DENIED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_lets_a_waiting_machine_in() {
    let world = world().await;
    let api = Api::new(&world);
    let token = world.token(TokenIs { deferred: true, uses_max: 2, ..TokenIs::default() }).await;
    let (mut machine, other) = (Machine::new("gpu-1"), Machine::new("gpu-2"));
    for machine in [&machine, &other] {
        assert!(matches!(world.join(machine, &token).await, Ok(Outcome::Deferred(_))));
    }
    let listed = api.ok("joinRequests.list", json!({ "state": "pending" })).await;
    let waiting = |hostname: &str| {
        let items = listed["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["hostname"] == hostname).unwrap();
        (item["id"].clone(), item["fingerprint"].as_str().unwrap().to_owned())
    };
    let (first, fingerprint) = waiting("gpu-1");
    let csr: Vec<String> = pki::csr_sha256(&machine.csr).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(fingerprint, csr.concat());
    assert_eq!(api.ok("joinRequests.approve", json!({ "id": first })).await["state"], "approved");
    let (second, _) = waiting("gpu-2");
    assert_eq!(api.ok("joinRequests.reject", json!({ "id": second })).await["state"], "rejected");

    let outcome = world.join(&machine, &token).await.unwrap();
    machine.accept(&world, outcome);
    assert!(world.join(&other, &token).await.is_err());
    let again = api.ok("joinRequests.approve", json!({ "id": first })).await;
    assert_eq!((&again["state"], &again["node"]["name"]), (&json!("issued"), &json!("gpu-1")));
    assert_eq!(api.call("joinRequests.reject", json!({ "id": first })).await.code(), "INVALID_STATE");
    let actions: Vec<String> = audited(&world).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["compute:joinRequests:approve", "compute:joinRequests:reject"]);

    let blind = Api::may(&world, &[]);
    assert_eq!(blind.call("joinRequests.approve", json!({ "id": first })).await.code(), "NOT_FOUND");
    let seeing = Api::may(&world, &["compute:joinRequests:list"]);
    assert_eq!(seeing.call("joinRequests.approve", json!({ "id": first })).await.code(), "ACCESS_DENIED");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_joins_a_pool_that_is_deleted() {
    let world = world().await;
    let api = Api::new(&world);
    world.joined("gpu-1", TokenIs::default()).await;
    let token = world.token(TokenIs { pool: true, ..TokenIs::default() }).await;
    let adopt = || api.call("nodes.adopt", json!({ "node": "gpu-1", "pool": world.pool.to_string() }));
    let make = || api.call("joinTokens.create", json!({ "site": "hall-1", "pool": "gpus" }));
    // While it is being deleted, and afterwards.
    let delete = ["SELECT 1 FROM pools FOR UPDATE", "UPDATE pools SET deleted_at = compute_now()"];
    assert_eq!(world.db.meet(&delete, adopt()).await.code(), "NOT_FOUND");
    world.run("UPDATE pools SET deleted_at = NULL", &[]).await;
    assert_eq!(world.db.meet(&delete, make()).await.code(), "NOT_FOUND");
    assert_eq!((adopt().await.code(), make().await.code()), ("NOT_FOUND", "NOT_FOUND"));
    let refused = world.join(&Machine::new("late"), &token).await.unwrap_err();
    assert!(refused.contains("unknown"), "{refused}");
    assert_eq!(world.uses(&token).await, 0);
    assert_eq!(world.count("SELECT count(*) FROM nodes WHERE pool_id IS NOT NULL OR name = 'late'").await, 0);
    assert_eq!(world.count("SELECT count(*) FROM join_tokens WHERE pool_id IS NOT NULL").await, 1);
}
