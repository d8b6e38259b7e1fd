//! The end of pools.

use std::sync::Arc;

use kernel::BoxFuture;
use kernel::ports::iam::{AuthenticationPort, Identity, Resource};
use kernel::testing::{self, DecideBy, Told, allow_all};
use kernel::{Fault, Principal};
use model::{PoolId, TokenId};
use serde_json::{Value, json};
use store::Sql;

use crate::cloud::{Cloud, call};

const RESERVATION: &str =
    "INSERT INTO reservations (reservation_id, tenant_id, pool_id, created_by, state, gpus)
    SELECT gen_random_uuid(), p.tenant_id, p.pool_id, u.user_id, 'scheduling', 1
    FROM pools p JOIN users u ON u.tenant_id = p.tenant_id WHERE p.name = 'gpu'";
const DRAFT: &str = "INSERT INTO reservations (reservation_id, tenant_id, pool_id, created_by, state, gpus)
    SELECT gen_random_uuid(), p.tenant_id, p.pool_id, u.user_id, 'draft', 1
    FROM pools p JOIN users u ON u.tenant_id = p.tenant_id WHERE p.name = 'gpu'";
const ADMITTED: &str = "UPDATE reservations SET state = 'scheduling' WHERE state = 'draft'";
const TOKEN: &str =
    "INSERT INTO join_tokens (join_token_id, site_id, pool_id, role, secret_sha256, uses_max, expires_at)
    SELECT gen_random_uuid(), s.site_id, p.pool_id, 'node', sha256('x'), 2, compute_now() + interval '1 hour'
    FROM pools p, sites s WHERE p.name = 'gpu'";
const FLAVOR: &str = "INSERT INTO flavors (flavor_id, pool_id, name, vcpu, memory_mib, disk_gib)
    SELECT gen_random_uuid(), pool_id, 'f', 1, 512, 10 FROM pools WHERE name = 'gpu'";
const JOINED: &str = "INSERT INTO nodes (node_id, site_id, role, name, hostname, state)
    SELECT gen_random_uuid(), site_id, 'node', 'late', 'late', 'joined' FROM sites";
const ADOPTED: &str = "UPDATE nodes SET state = 'accepting', pool_id = (SELECT pool_id FROM pools WHERE name = 'gpu') WHERE name = 'late'";
const ASKED_TO_JOIN: &str =
    "INSERT INTO join_requests (join_request_id, csr_sha256, join_token_id, role, hostname, agent_version, source_ip, state, expires_at)
    SELECT gen_random_uuid(), sha256('x'), join_token_id, 'node', 'm', '1', '::1', 'approved', compute_now() + interval '1 day'
    FROM join_tokens";

fn text(text: &str) -> Sql {
    store::sql("test_statement", String::leak(text.to_owned()))
}

impl Cloud {
    async fn delete(&self, request: Value) -> Told {
        self.call("pools.delete", request).await
    }

    /// What a deletion, or the question what would be deleted, is refused for.
    async fn refused(&self) -> Value {
        let told = self.delete(json!({ "pool": "gpu", "dryRun": true })).await;
        assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
        let in_earnest = self.delete(json!({ "pool": "gpu" })).await;
        assert_eq!(in_earnest.body["error"]["message"], told.body["error"]["message"]);
        assert_eq!(self.deleted().await, 0);
        told.body["error"].clone()
    }

    async fn deleted(&self) -> i64 {
        self.db.scalar_i64("SELECT count(*) FROM pools WHERE deleted_at IS NOT NULL").await
    }
}

#[tokio::test]
async fn an_empty_pool_goes_with_its_flavors_and_what_ended_in_it_is_read_as_before() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    cloud.db.batch(FLAVOR).await;
    let ended = cloud.reserve(json!({ "gpus": 1 })).await;
    cloud.bind(&ended).await;
    cloud.call("reservations.release", json!({ "id": ended["id"] })).await.ok();
    cloud.confirm_released(&ended).await;
    cloud.node_becomes(nodes[0], "revoked").await;
    let before = cloud.call("pools.get", json!({ "pool": "gpu" })).await.ok();
    assert_eq!((&before["state"], &before["flavors"]), (&json!("active"), &json!(1)));

    let dry = cloud.delete(json!({ "pool": "gpu", "dryRun": true })).await.ok();
    assert_eq!((&dry["state"], &dry["flavors"], &dry["dryRun"]), (&json!("active"), &json!(1), &json!(true)));
    assert_eq!((cloud.deleted().await, cloud.events("pool.deleted").await), (0, 0));

    let gone = cloud.delete(json!({ "pool": "gpu" })).await.ok();
    assert_eq!((&gone["state"], &gone["flavors"]), (&json!("deleted"), &json!(1)));
    assert!(gone["deletedAt"].is_string() && gone.get("dryRun").is_none(), "{gone}");
    let id = &before["id"];
    let again = cloud.delete(json!({ "pool": id })).await.ok();
    assert_eq!((&again["id"], &again["deletedAt"]), (id, &gone["deletedAt"]));
    assert_eq!(cloud.events("pool.deleted").await, 1);

    for pool in [json!("gpu"), id.clone()] {
        for (method, request) in [
            ("pools.update", json!({ "pool": pool, "name": "x" })),
            ("reservations.create", json!({ "pool": pool, "gpus": 1 })),
            ("reservations.explain", json!({ "pool": pool, "gpus": 1 })),
        ] {
            assert_eq!(cloud.call(method, request).await.code(), "NOT_FOUND", "{method} {pool}");
        }
    }
    assert_eq!(cloud.delete(json!({ "pool": "gpu" })).await.code(), "NOT_FOUND");
    assert_eq!(cloud.call("pools.get", json!({ "pool": "gpu" })).await.code(), "NOT_FOUND");
    assert_eq!(cloud.call("pools.get", json!({ "pool": id })).await.ok()["state"], "deleted");
    assert_eq!(cloud.call("pools.list", json!({})).await.ok()["items"], json!([]));

    assert_eq!(cloud.get(&ended).await["pool"]["name"], "gpu");
    let listed = cloud.call("reservations.list", json!({ "pool": "gpu", "includeEnded": true })).await.ok();
    assert_eq!(listed["items"][0]["id"], ended["id"]);

    // The name is free, and what is made under it is another.
    let anew = cloud.call("pools.create", json!({ "name": "gpu", "class": "gpu" })).await.ok();
    assert_ne!(&anew["id"], id);
    let taken = cloud.call("pools.create", json!({ "name": "gpu", "class": "gpu" })).await;
    assert_eq!(taken.code(), "CONFLICT");
    assert_eq!(cloud.call("pools.get", json!({ "pool": "gpu" })).await.ok()["id"], anew["id"]);
    let all = cloud.call("pools.list", json!({ "includeDeleted": true })).await.ok();
    let ids: Vec<&Value> = all["items"].as_array().unwrap().iter().map(|pool| &pool["id"]).collect();
    assert_eq!(ids, [&anew["id"], id]);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_is_in_a_pool_keeps_it_and_is_said_with_what_to_do_next() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 8 })).await;
    let mut ask = json!({ "pool": "gpu", "gpus": 1 });
    ask["tenant"] = json!(cloud.tenant.to_string());
    let waiting = cloud.call("reservations.create", ask).await.ok();
    assert_eq!(waiting["state"], "scheduling");
    let error = cloud.refused().await;
    assert_eq!(error["details"]["has"], json!(["2 reservations", "1 node"]), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("Next: better-compute reservations list --tenant tnt_"), "{message}");

    for reservation in [&placed, &waiting] {
        cloud.call("reservations.release", json!({ "id": reservation["id"] })).await.ok();
    }
    assert_eq!(
        cloud.refused().await["details"]["has"],
        json!(["1 reservation", "1 node"]),
        "its node has it"
    );
    cloud.confirm_released(&placed).await;
    for state in ["ready", "lost"] {
        cloud.node_becomes(nodes[0], state).await;
        let error = cloud.refused().await;
        assert_eq!(error["details"]["has"], json!(["1 node"]), "{state}");
        let next = format!("Next: better-compute nodes revoke {}", nodes[0]);
        assert!(error["message"].as_str().unwrap().ends_with(&next), "{error}");
    }
    cloud.node_becomes(nodes[0], "revoked").await;

    cloud.db.batch(TOKEN).await;
    let error = cloud.refused().await;
    assert_eq!(error["details"]["has"], json!(["1 join token"]));
    assert!(error["message"].as_str().unwrap().contains("better-compute join-tokens revoke jt_"), "{error}");
    // A machine that a person let in comes though the token has expired meanwhile.
    cloud.db.batch(ASKED_TO_JOIN).await;
    cloud.db.batch("UPDATE join_tokens SET expires_at = compute_now() - interval '1 hour'").await;
    assert_eq!(cloud.refused().await["details"]["has"], json!(["1 join request"]));
    for over in ["uses = uses_max", "uses = 0, revoked_at = compute_now()"] {
        cloud.db.batch(&format!("UPDATE join_tokens SET {over}")).await;
        cloud.delete(json!({ "pool": "gpu", "dryRun": true })).await.ok();
    }
    cloud.delete(json!({ "pool": "gpu" })).await.ok();
    cloud.assert_sound().await;
}

#[tokio::test]
async fn who_may_not_delete_a_pool_is_refused_and_a_name_means_an_own_one() {
    let cloud = Cloud::empty().await;
    let none = |_: &Principal, action: &str, _: &Resource| action != "compute:pools:delete";
    let none = cloud.caller(Arc::new(DecideBy(none)));
    let id = cloud.pool.to_string();
    assert_eq!(call(&none, "pools.delete", json!({ "pool": id })).await.code(), "ACCESS_DENIED");
    let own = cloud.tenant;
    let stranger = DecideBy(move |_: &Principal, _: &str, resource: &Resource| resource.tenant_id == own);
    let stranger = cloud.caller(Arc::new(stranger));
    assert_eq!(call(&stranger, "pools.delete", json!({ "pool": id })).await.code(), "NOT_FOUND");

    // The tenant's own pool is deleted once, and the one of that name above stays.
    let ada = cloud.caller(allow_all());
    call(&ada, "pools.create", json!({ "name": "gpu", "class": "gpu" })).await.ok();
    call(&ada, "pools.delete", json!({ "pool": "gpu" })).await.ok();
    assert_eq!(call(&ada, "pools.delete", json!({ "pool": "gpu" })).await.code(), "NOT_FOUND");
    let rename = json!({ "pool": "gpu", "name": "mine" });
    assert_eq!(call(&ada, "pools.update", rename).await.code(), "NOT_FOUND");
    assert_eq!(call(&ada, "pools.get", json!({ "pool": "gpu" })).await.ok()["id"], id);
}

/// The same caller, while the deployment is observe-only.
struct Observing(Principal);

impl AuthenticationPort for Observing {
    fn authenticate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        self.again(self.0.token_id)
    }

    fn again(&self, _: TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        let principal = self.0.clone();
        Box::pin(async move {
            Ok(Identity { principal, now: testing::now(), iam_version: None, observe_only: true })
        })
    }
}

#[tokio::test]
async fn no_pool_is_deleted_in_a_database_that_may_be_an_older_one() {
    let cloud = Cloud::empty().await;
    let caller = Arc::new(Observing(testing::principal(cloud.root_user, cloud.root_tenant)));
    let modules = [capacity::module(&cloud.capacity)];
    let pipeline = testing::pipeline_with(&modules, caller, allow_all(), cloud.db.store.clone());
    assert_eq!(call(&pipeline, "pools.delete", json!({ "pool": "gpu" })).await.code(), "UNAVAILABLE");
    assert_eq!(cloud.deleted().await, 0);
}

#[tokio::test]
async fn what_comes_into_a_pool_before_its_deletion_is_seen_by_it() {
    let cloud = Cloud::empty().await;
    cloud.db.batch(JOINED).await;
    for (what, has, undo) in [
        (RESERVATION, "1 reservation", "DELETE FROM reservations"),
        (TOKEN, "1 join token", "DELETE FROM join_tokens"),
        (ADOPTED, "1 node", "UPDATE nodes SET pool_id = NULL"),
    ] {
        let told = cloud.db.meet(&[what], cloud.delete(json!({ "pool": "gpu" }))).await;
        assert_eq!(told.body["error"]["details"]["has"], json!([has]), "{}", told.body);
        cloud.db.batch(undo).await;
    }
    // A draft that is admitted at this moment.
    cloud.db.batch(DRAFT).await;
    let told = cloud.db.meet(&[ADMITTED], cloud.delete(json!({ "pool": "gpu" }))).await;
    assert_eq!(told.body["error"]["details"]["has"], json!(["1 reservation"]), "{}", told.body);
    cloud.db.batch("DELETE FROM reservations").await;
    // One that nobody has admitted, and then cannot.
    cloud.db.batch(DRAFT).await;
    cloud.delete(json!({ "pool": "gpu" })).await.ok();
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 0);
}

#[tokio::test]
async fn what_comes_into_a_pool_that_is_being_deleted_is_refused() {
    let cloud = Cloud::empty().await;
    let lock = "SELECT 1 FROM pools WHERE name = 'gpu' FOR UPDATE";
    let mark = "UPDATE pools SET deleted_at = compute_now() WHERE name = 'gpu'";
    let delete = [lock, mark];
    cloud.db.batch(JOINED).await;
    for statement in [RESERVATION, DRAFT, FLAVOR, TOKEN, ADOPTED] {
        let statement = text(statement);
        let done = cloud.db.meet(&delete, cloud.db.store.execute(&statement, &[])).await;
        let err = done.expect_err("the pool is gone");
        assert!(err.is_check("pool_is_open"), "{err}");
        cloud.db.batch("UPDATE pools SET deleted_at = NULL").await;
    }
    // And so are callers, in words.
    cloud.node("node-0").await;
    let create = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 1 }));
    let told = cloud.db.meet(&delete, create).await;
    assert_eq!(told.code(), "NOT_FOUND", "{}", told.body);
    cloud.db.batch("UPDATE pools SET deleted_at = NULL").await;
    let told =
        cloud.db.meet(&delete, cloud.call("pools.update", json!({ "pool": "gpu", "name": "x" }))).await;
    assert_eq!(told.code(), "NOT_FOUND", "{}", told.body);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 0);
}

#[tokio::test]
async fn of_deletions_and_creates_at_once_one_deletion_is_told_and_nothing_is_left_inside() {
    let cloud = Cloud::empty().await;
    for _ in 0..12 {
        let pool = cloud.call("pools.create", json!({ "name": "short", "class": "metal" })).await.ok();
        let pool_id: PoolId = pool["id"].as_str().unwrap().parse().unwrap();
        let delete = || cloud.delete(json!({ "pool": pool["id"] }));
        let reservation = text(&format!(
            "INSERT INTO reservations (reservation_id, tenant_id, pool_id, created_by, state, gpus)
             VALUES (gen_random_uuid(), '{}', '{}', '{}', 'scheduling', 1)",
            cloud.root_tenant.uuid(),
            pool_id.uuid(),
            cloud.root_user.uuid(),
        ));
        let insert = cloud.db.store.execute(&reservation, &[]);
        let (one, made, two) = futures::join!(delete(), insert, delete());
        match made {
            Ok(_) => assert_eq!((one.code(), two.code()), ("INVALID_STATE", "INVALID_STATE")),
            Err(err) => {
                assert!(err.is_check("pool_is_open"), "{err}");
                assert_eq!((one.code(), two.code()), ("ok", "ok"));
            }
        }
        cloud.db.batch("DELETE FROM reservations").await;
        delete().await.ok();
    }
    assert_eq!(cloud.events("pool.deleted").await, 12);
}
