//! The end of tenants.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::module::QueueHandler;
use kernel::ports::tenants::{Belongings, counted};
use kernel::testing::Told;
use kernel::{BoxFuture, Fault};
use model::TenantId;
use serde_json::{Value, json};
use store::Tx;

use crate::world::{World, text};

/// Instances of somebody, each of which goes with the second asking.
#[derive(Default)]
struct Instances(Mutex<Vec<(TenantId, bool)>>);

impl Belongings for Instances {
    fn left<'a>(
        &'a self,
        _: &'a mut Tx<'_>,
        tenant_id: TenantId,
    ) -> BoxFuture<'a, Result<Vec<String>, Fault>> {
        let count = self.0.lock().unwrap().iter().filter(|(whose, _)| *whose == tenant_id).count();
        Box::pin(async move { Ok(counted(count as i64, "instance").into_iter().collect()) })
    }

    fn clear(&self, tenant_id: TenantId) -> BoxFuture<'_, Result<bool, Fault>> {
        let mut instances = self.0.lock().unwrap();
        instances.retain(|(whose, asked)| *whose != tenant_id || !asked);
        for (_, asked) in instances.iter_mut().filter(|(whose, _)| *whose == tenant_id) {
            *asked = true;
        }
        Box::pin(async { Ok(false) })
    }
}

struct Tenants {
    world: World,
    instances: Arc<Instances>,
    queue: Arc<dyn QueueHandler>,
}

impl Tenants {
    async fn new() -> Self {
        let world = World::new().await;
        let instances = Arc::new(Instances::default());
        world.iam.set_belongings(vec![instances.clone()]);
        let queue = iam::module(&world.iam).queues.remove(0);
        Self { world, instances, queue }
    }

    fn has(&self, tenant: &str, count: usize) {
        let whose: TenantId = tenant.parse().unwrap();
        self.instances.0.lock().unwrap().extend(vec![(whose, false); count]);
    }

    async fn delete(&self, request: Value) -> Told {
        self.world.call(&self.world.admin, "tenants.delete", request).await
    }

    async fn look(&self, tenant: &str) -> Option<Duration> {
        let key = tenant.parse::<TenantId>().unwrap().uuid().hyphenated().to_string();
        self.queue.handle(&key).await.expect("it is looked at")
    }

    async fn names(&self, request: Value) -> Vec<String> {
        let listed = self.world.does("tenants.list", request).await;
        listed["items"].as_array().unwrap().iter().map(|tenant| text(&tenant["name"])).collect()
    }
}

#[tokio::test]
async fn an_empty_tenant_is_deleted_at_once_and_one_with_others_below_or_pools_never() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let org = world.tenant(&world.root, "org").await;
    let below = world.tenant(&org, "team").await;
    for with_contents in [false, true] {
        let told = tenants.delete(json!({ "id": org, "withContents": with_contents })).await;
        assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
        assert_eq!(told.body["error"]["details"]["has"], json!(["1 tenant below it"]));
    }
    assert_eq!(tenants.delete(json!({ "id": below })).await.ok()["state"], "deleted");
    let pool = "INSERT INTO pools (pool_id, tenant_id, name, class)
         SELECT gen_random_uuid(), tenant_id, 'gpus', 'gpu' FROM tenants WHERE name = 'org'";
    world.db.batch(pool).await;
    let told = tenants.delete(json!({ "id": org, "withContents": true })).await;
    assert_eq!(told.body["error"]["details"]["has"], json!(["1 pool"]), "{}", told.body);
    // One that was deleted stays for readers.
    world.db.batch("UPDATE pools SET deleted_at = compute_now()").await;
    world
        .db
        .batch(
            "INSERT INTO quotas (quota_id, tenant_id, resource, amount)
             SELECT gen_random_uuid(), tenant_id, 'gpu', 1 FROM tenants WHERE name = 'org'",
        )
        .await;
    let dry = tenants.delete(json!({ "id": org, "dryRun": true })).await.ok();
    assert_eq!((&dry["state"], &dry["dryRun"]), (&json!("active"), &json!(true)));
    let deleted = tenants.delete(json!({ "id": org })).await.ok();
    assert_eq!((&deleted["name"], &deleted["state"]), (&json!("org"), &json!("deleted")));
    assert_eq!(deleted, {
        let mut again = tenants.delete(json!({ "id": org })).await.ok();
        again["ageSeconds"] = deleted["ageSeconds"].clone();
        again
    });
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM quotas").await, 0);
    assert_eq!(tenants.names(json!({})).await, ["root"]);
    assert_eq!(tenants.names(json!({ "includeDeleted": true })).await, ["team", "org", "root"]);
    // The name is free, and what is made under it is another.
    assert_ne!(world.tenant(&world.root, "org").await, org);
    for (tenant, why) in [(&world.root, "the root tenant stays"), (&org, "")] {
        let told = tenants.delete(json!({ "id": tenant })).await;
        assert_eq!(told.body["error"]["message"].as_str().unwrap_or_default(), why);
    }
}

#[tokio::test]
async fn a_tenant_goes_with_what_it_has_only_when_that_is_asked_for() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let org = world.tenant(&world.root, "org").await;
    let user = world.user(&org, "ada").await;
    world.allow(&org, &user, "all", &["compute:*"]).await;
    tenants.has(&org, 2);

    let told = tenants.delete(json!({ "id": org })).await;
    let error = &told.body["error"];
    assert_eq!(told.code(), "INVALID_STATE", "{error}");
    assert_eq!(error["details"]["has"], json!(["2 instances", "1 user", "1 policy"]));
    assert!(
        error["message"].as_str().unwrap().ends_with(&format!("tenants delete {org} --with-contents")),
        "{error}"
    );
    let own = world.call(&user.token, "tenants.delete", json!({ "id": org, "withContents": true })).await;
    assert_eq!(own.code(), "INVALID_STATE", "{}", own.body);

    let going = tenants.delete(json!({ "id": org, "withContents": true })).await.ok();
    assert_eq!((&going["state"], &going["has"]), (&json!("deleting"), &json!(["2 instances"])));
    assert_eq!(world.call(&user.token, "tokens.whoami", json!({})).await.code(), "UNAUTHENTICATED");
    assert_eq!(tenants.delete(json!({ "id": org })).await.ok()["state"], "deleting", "it is on its way");

    // Nothing new, whoever asks.
    let document = json!({ "statements": [
        { "sid": "A", "effect": "allow", "actions": ["compute:pools:get"], "resources": ["*"] }
    ] });
    for (method, request) in [
        ("tenants.create", json!({ "parent": org, "name": "team" })),
        ("users.create", json!({ "tenant": org, "kind": "service", "name": "ci" })),
        ("policies.put", json!({ "tenant": org, "name": "read", "document": document })),
        ("users.enable", json!({ "id": user.id })),
    ] {
        let told = world.call(&world.admin, method, request).await;
        assert_eq!(told.code(), "INVALID_STATE", "{method}: {}", told.body);
    }
    let taken = world.call(&world.admin, "tenants.create", json!({ "name": "org" })).await;
    assert_eq!(taken.code(), "CONFLICT", "its name is its own until it is gone");

    assert!(tenants.look(&org).await.is_some(), "its instances have been asked to go");
    assert_eq!(world.does("tenants.get", json!({ "id": org })).await["has"], json!(["2 instances"]));
    assert_eq!(tenants.look(&org).await, None);
    let gone = world.does("tenants.get", json!({ "id": org, "wait": { "timeoutMs": 1000 } })).await;
    assert_eq!((&gone["state"], gone.get("has")), (&json!("deleted"), None));
    assert!(gone["deletedAt"].is_string());
    assert_eq!(tenants.look(&org).await, None, "and stays so");
    assert_eq!(
        world
            .db
            .scalar_i64("SELECT count(*) FROM bindings b JOIN policies USING (policy_id) WHERE name = 'all'")
            .await,
        0
    );
    assert_eq!(
        world
            .db
            .scalar_i64("SELECT count(*) FROM users WHERE name = 'ada' AND disabled_at IS NOT NULL")
            .await,
        1
    );
    let kinds = "SELECT string_agg(kind, ' ' ORDER BY batch_id, place) FROM outbox_events WHERE kind LIKE 'iam.tenant.%'";
    assert_eq!(
        world.db.scalar_text(kinds).await,
        "iam.tenant.created iam.tenant.deleting iam.tenant.deleted"
    );
}

#[tokio::test]
async fn who_may_not_end_what_a_tenant_has_may_not_end_it_with_the_tenant() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let org = world.tenant(&world.root, "org").await;
    let bot = world.user(&world.root, "bot").await;
    world.allow(&world.root, &bot, "tenants", &["compute:tenants:*"]).await;
    tenants.has(&org, 1);
    let with_contents = json!({ "id": org, "withContents": true });
    let told = world.call(&bot.token, "tenants.delete", with_contents.clone()).await;
    assert_eq!(told.code(), "ACCESS_DENIED", "{}", told.body);
    world.allow(&world.root, &bot, "all", &["compute:*"]).await;
    let deny = json!([{"sid": "Keep", "effect": "deny", "actions": ["compute:instances:delete"], "resources": ["*"]}]);
    world.policy(&org, "keep", deny).await;
    world.bind(&org, "keep", &bot.id).await;
    let told = world.call(&bot.token, "tenants.delete", with_contents).await;
    assert_eq!(told.code(), "ACCESS_DENIED", "a denial stands: {}", told.body);
}

#[tokio::test]
async fn the_tenant_of_the_last_administrators_stays() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let ops = world.tenant(&world.root, "ops").await;
    let ada = world.user(&ops, "ada").await;
    world.bind(&world.root, "administrator", &ada.id).await;
    let bot = world.user(&world.root, "bot").await;
    world.allow(&world.root, &bot, "all", &["compute:*"]).await;
    let disable = json!({ "id": world.admin_id });
    assert_eq!(world.call(&ada.token, "users.disable", disable).await.code(), "ok");
    let told = world.call(&bot.token, "tenants.delete", json!({ "id": ops, "withContents": true })).await;
    assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
    assert!(told.body["error"]["message"].as_str().unwrap().contains("administrator"), "{}", told.body);
    assert_eq!(world.call(&ada.token, "tokens.whoami", json!({})).await.code(), "ok");
}

#[tokio::test]
async fn nothing_of_a_tenant_ends_in_a_database_that_may_be_an_older_one() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let org = world.tenant(&world.root, "org").await;
    let restored =
        "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()";
    world.db.batch(restored).await;
    // What is known of a caller is known for a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(tenants.delete(json!({ "id": org })).await.code(), "UNAVAILABLE");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM tenants WHERE deleting_at IS NOT NULL").await, 0);
}

/// Whoever adds to a tenant and whoever deletes it wait for each other, and the second sees what the first did.
#[tokio::test]
async fn what_is_added_while_a_tenant_is_deleted_is_seen_or_refused() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let org = world.tenant(&world.root, "org").await;
    let org_uuid = org.parse::<TenantId>().unwrap().uuid();

    // A user that is being added when the deletion comes.
    let add = format!(
        "INSERT INTO users (user_id, tenant_id, kind, name) VALUES (gen_random_uuid(), '{org_uuid}', 'service', 'ci')"
    );
    let told = world.db.meet(&[&add], tenants.delete(json!({ "id": org }))).await;
    assert_eq!(told.body["error"]["details"]["has"], json!(["1 user"]), "{}", told.body);

    // A deletion that is under way when a user is added.
    world.db.batch("UPDATE users SET disabled_at = compute_now() WHERE name = 'ci'").await;
    let lock = format!("SELECT 1 FROM tenants WHERE tenant_id = '{org_uuid}' FOR UPDATE");
    let mark = format!("UPDATE tenants SET deleting_at = compute_now() WHERE tenant_id = '{org_uuid}'");
    let request = json!({ "tenant": org, "kind": "service", "name": "late" });
    let told = world.db.meet(&[&lock, &mark], world.call(&world.admin, "users.create", request)).await;
    assert_eq!(told.code(), "INVALID_STATE", "{}", told.body);
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM users WHERE name = 'late'").await, 0);
}
