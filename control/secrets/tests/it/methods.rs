//! What callers do with secrets.

use std::sync::Arc;

use kernel::Principal;
use kernel::ports::iam::Resource;
use kernel::ports::tenants::Belongings;
use kernel::testing::{self, DecideBy, deny_all};
use serde_json::json;

use crate::world::{OP, with_ring, world};

const VALUE: &str = "hunter2-and-more-of-it";

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_kept_and_told_to_no_caller() {
    let world = world().await;
    let put = world.call("secrets.put", json!({ "name": "database", "value": VALUE })).await.ok();
    assert_eq!((put["version"].as_u64(), put["sizeBytes"].as_u64()), (Some(1), Some(22)));
    let got = world.call("secrets.get", json!({ "secret": "database" })).await.ok();
    assert_eq!((&got["id"], &got["name"]), (&put["id"], &json!("database")));
    let listed = world.call("secrets.list", json!({})).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    for told in [put.to_string(), got.to_string(), listed.to_string()] {
        assert!(!told.contains(VALUE), "{told}");
    }
    // Nor is it anywhere in the database, in no way that it may be written.
    let hex: String = VALUE.bytes().map(|byte| format!("{byte:02x}")).collect();
    for table in ["secrets", "audit", "outbox_events", "idempotency"] {
        let found =
            world.count(&format!("{table} t WHERE t::text LIKE '%{VALUE}%' OR t::text LIKE '%{hex}%'")).await;
        assert_eq!(found, 0, "{table}");
    }
    assert_eq!(
        world.count("audit WHERE action = 'compute:secrets:put' AND resource = 'secret/database'").await,
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_value_again_changes_nothing_and_another_is_the_next_version() {
    let world = world().await;
    let put = async |value: &str| {
        world.call("secrets.put", json!({ "name": "database", "value": value })).await.ok()["version"].clone()
    };
    assert_eq!(put("one").await, 1);
    assert_eq!(put("one").await, 1);
    assert_eq!(put("two").await, 2);
    assert_eq!(world.count("outbox_events WHERE kind = 'secret.put'").await, 2);
    let stale = json!({ "name": "database", "value": "three", "ifVersion": 1 });
    assert_eq!(world.call("secrets.put", stale).await.code(), "CONFLICT");
    let fresh = json!({ "name": "other", "value": "x", "ifVersion": 1 });
    assert_eq!(world.call("secrets.put", fresh).await.code(), "CONFLICT");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_come_as_base64_and_nothing_is_longer_than_it_may_be() {
    let world = world().await;
    let put = async |value: String, encoding: &str| {
        world.call("secrets.put", json!({ "name": "blob", "value": value, "encoding": encoding })).await
    };
    let told = put("AP8=".to_owned(), "base64").await.ok();
    assert_eq!(told["sizeBytes"], 2);
    assert_eq!(put("AP8".to_owned(), "base64").await.code(), "INVALID_INPUT");
    assert_eq!(put(String::new(), "text").await.code(), "INVALID_INPUT");
    assert_eq!(put("x".repeat(64 * 1024), "text").await.code(), "ok");
    let long = put("x".repeat(64 * 1024 + 1), "text").await;
    assert_eq!(long.code(), "INVALID_INPUT");
    assert!(!long.body.to_string().contains("xxxx"), "{}", long.body);
    // 65,537 bytes in 87,384 characters.
    let long = format!("{}AAA=", "AAAA".repeat(21_845));
    assert_eq!(put(long, "base64").await.code(), "INVALID_INPUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_learns_nothing() {
    let world = world().await;
    world.put("database", VALUE).await;
    let denied = world.caller(deny_all());
    for (method, request, code) in [
        ("secrets.put", json!({ "name": "database", "value": "x" }), "ACCESS_DENIED"),
        ("secrets.get", json!({ "secret": "database" }), "NOT_FOUND"),
        ("secrets.list", json!({}), "ACCESS_DENIED"),
        ("secrets.delete", json!({ "secret": "database" }), "NOT_FOUND"),
        ("secrets.get", json!({ "tenant": world.other.to_string(), "secret": "database" }), "NOT_FOUND"),
        ("secrets.put", json!({ "tenant": world.other.to_string(), "name": "x", "value": "x" }), "NOT_FOUND"),
    ] {
        let told = testing::invoke(&denied, Some("token"), method, request).await;
        assert_eq!(told.code(), code, "{method}: {}", told.body);
    }
    let may_see = |_: &Principal, action: &str, _: &Resource| action == "compute:secrets:get";
    let reader = world.caller(Arc::new(DecideBy(may_see)));
    let told =
        testing::invoke(&reader, Some("token"), "secrets.delete", json!({ "secret": "database" })).await;
    assert_eq!(told.code(), "ACCESS_DENIED");
    assert_eq!(world.count("secrets").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_secret_is_gone_and_a_dry_run_deletes_none() {
    let world = world().await;
    let id = world.put("database", VALUE).await;
    let dry = world.call("secrets.delete", json!({ "secret": id.to_string(), "dryRun": true })).await.ok();
    assert_eq!((dry["dryRun"].as_bool(), world.count("secrets").await), (Some(true), 1));
    world.call("secrets.delete", json!({ "secret": "database" })).await.ok();
    assert_eq!(world.count("secrets").await, 0);
    assert_eq!(world.call("secrets.delete", json!({ "secret": "database" })).await.code(), "NOT_FOUND");
    assert_eq!(world.count("outbox_events WHERE kind = 'secret.deleted'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_without_a_key_says_how_to_make_one() {
    let world = with_ring(None).await;
    let told = world.call("secrets.put", json!({ "name": "database", "value": VALUE })).await;
    assert_eq!(told.code(), "UNSUPPORTED");
    assert!(told.body.to_string().contains("pki add-secrets-key"), "{}", told.body);
    assert_eq!(world.call("secrets.list", json!({})).await.code(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_of_nobody_gets_none() {
    let world = world().await;
    let nobody: model::TenantId = crate::world::id();
    let told =
        world.call("secrets.put", json!({ "tenant": nobody.to_string(), "name": "x", "value": "x" })).await;
    assert_eq!(told.code(), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_secrets_go_with_it_and_no_others() {
    let world = world().await;
    let (secrets, tenant, other) = (&world.secrets, world.tenant, world.other);
    let left = async |tenant| world.db.store.tx(OP, |tx| Box::pin(secrets.left(tx, tenant))).await.unwrap();
    world.put("one", VALUE).await;
    world.put("two", VALUE).await;
    world
        .call("secrets.put", json!({ "tenant": other.to_string(), "name": "kept", "value": VALUE }))
        .await
        .ok();
    assert_eq!(left(tenant).await, ["2 secrets"]);
    secrets.clear(tenant).await.unwrap();
    assert!(left(tenant).await.is_empty());
    assert_eq!(left(other).await, ["1 secret"]);
    assert_eq!(world.count("outbox_events WHERE kind = 'secret.deleted'").await, 2);
    world.db.batch("UPDATE tenants SET deleting_at = compute_now() WHERE name = 'acme'").await;
    let late = world.call("secrets.put", json!({ "name": "late", "value": VALUE })).await;
    assert_eq!(late.code(), "INVALID_STATE", "{}", late.body);
}
