use serde_json::json;

use super::{Api, audited};
use crate::world::world;

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_finds_the_site_it_made() {
    let world = world().await;
    let api = Api::new(&world);
    let request = json!({ "name": "hall-2", "idempotencyKey": "k1" });
    let first = api.ok("sites.create", request.clone()).await;
    let again = api.ok("sites.create", request).await;
    assert_eq!(first["id"], again["id"]);
    let other = api.call("sites.create", json!({ "name": "hall-3", "idempotencyKey": "k1" })).await;
    assert_eq!(other.code(), "CONFLICT");
    assert_eq!(api.call("sites.create", json!({ "name": "hall-2" })).await.code(), "CONFLICT");
    assert_eq!(world.events("site.created").await.len(), 1);
    assert_eq!(audited(&world).await, [("compute:sites:create".to_owned(), "ok".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_site_exists_is_told_only_to_who_may_see_it() {
    let world = world().await;
    let blind =
        Api::may(&world, &["compute:nodes:list", "compute:joinTokens:list", "compute:joinRequests:list"]);
    for method in ["sites.get", "nodes.list", "joinTokens.list", "joinRequests.list"] {
        let there = blind.call(method, json!({ "site": "hall-1" })).await;
        let missing = blind.call(method, json!({ "site": "hall-9" })).await;
        assert_eq!((there.code(), missing.code()), ("NOT_FOUND", "NOT_FOUND"), "{method}");
    }
    let seeing = Api::new(&world);
    assert_eq!(seeing.ok("sites.get", json!({ "site": "hall-1" })).await["name"], "hall-1");
    assert_eq!(seeing.call("sites.create", json!({ "name": "hall-1" })).await.code(), "CONFLICT");
    assert_eq!(
        Api::may(&world, &[]).call("sites.create", json!({ "name": "x" })).await.code(),
        "ACCESS_DENIED"
    );
}
