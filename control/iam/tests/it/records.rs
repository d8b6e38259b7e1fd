//! What a call leaves behind: one audit entry, and the events of what it changed.

use std::sync::Arc;

use kernel::testing::invoke_bytes;
use kernel::{Call, Fault, Module};
use serde_json::{Value, json};
use store::{Op, Sql, sql};

use crate::world::World;

const COUNT: Sql = sql("count_entries", "SELECT count(*) AS entries FROM audit WHERE action = $1");
const LAST: Sql = sql(
    "last_entry",
    "SELECT tenant_id::text, principal, action, resource, decision, outcome, source_ip, detail FROM audit
     WHERE action = $1 ORDER BY at DESC, audit_id DESC LIMIT 1",
);

struct Entry {
    principal: String,
    resource: String,
    decision: String,
    outcome: String,
    source_ip: String,
    detail: Value,
}

async fn entries(world: &World, action: &str) -> i64 {
    world.db.store.read_one(&COUNT, &[&action]).await.expect("it reads").get("entries")
}

async fn last(world: &World, action: &str) -> Entry {
    let row = world.db.store.read_one(&LAST, &[&action]).await.expect("there is an entry");
    Entry {
        principal: row.get("principal"),
        resource: row.get("resource"),
        decision: row.get("decision"),
        outcome: row.get("outcome"),
        source_ip: row.get("source_ip"),
        detail: row.get("detail"),
    }
}

#[tokio::test]
async fn a_change_has_one_entry_that_says_it_was_committed() {
    let world = World::new().await;
    let tenant = world.tenant(&world.root, "org").await;
    assert_eq!(entries(&world, "compute:tenants:create").await, 1);
    let entry = last(&world, "compute:tenants:create").await;
    assert_eq!((entry.principal.as_str(), entry.outcome.as_str()), ("admin", "ok"));
    assert_eq!((entry.decision.as_str(), entry.source_ip.as_str()), ("allowed", "127.0.0.1"));
    assert_eq!(entry.resource, format!("tenant/{tenant}"));
    assert_eq!(entry.detail["committed"], true);
    assert_eq!(entry.detail["decisions"][0]["by"], "administrator/Everything");
    let events = "SELECT count(*) FROM outbox_events WHERE kind = 'iam.tenant.created'";
    assert_eq!(world.db.scalar_i64(events).await, 1);
}

#[tokio::test]
async fn a_denial_a_refusal_and_a_malformed_request_have_an_entry_each() {
    let world = World::new().await;
    let nobody = world.user(&world.root, "nobody").await;
    let before = entries(&world, "compute:tenants:create").await;
    world.call(&nobody.token, "tenants.create", json!({"name": "x"})).await;
    let entry = last(&world, "compute:tenants:create").await;
    assert_eq!((entry.decision.as_str(), entry.outcome.as_str()), ("denied", "ACCESS_DENIED"));
    assert_eq!((entry.principal.as_str(), entry.detail.get("committed")), ("nobody", None));

    world.tenant(&world.root, "org").await;
    world.call(&world.admin, "tenants.create", json!({"name": "org"})).await;
    let entry = last(&world, "compute:tenants:create").await;
    assert_eq!((entry.decision.as_str(), entry.outcome.as_str()), ("allowed", "CONFLICT"));

    invoke_bytes(&world.pipeline, Some(&world.admin), "tenants.create", "{".into()).await;
    let entry = last(&world, "compute:tenants:create").await;
    assert_eq!((entry.decision.as_str(), entry.outcome.as_str()), ("none", "INVALID_INPUT"));
    assert_eq!(entries(&world, "compute:tenants:create").await, before + 4);
}

#[tokio::test]
async fn reads_and_unknown_callers_leave_nothing() {
    let world = World::new().await;
    let before = world.db.scalar_i64("SELECT count(*) FROM audit").await;
    world.does("tenants.list", json!({})).await;
    world.call("bct_nobody", "tenants.create", json!({"name": "x"})).await;
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM audit").await, before);
}

const TOUCH: Sql = sql("touch", "UPDATE iam_version SET version = version + 1");

/// A handler for `quotas.set` that does what its resource's name says, and one for `quotas.list` that decides nothing.
fn misbehaving(store: store::Store) -> Module {
    Module::new("misbehaving")
        .method::<api::quotas::Set, _>(move |call: Arc<Call>, request: api::quotas::SetQuota| {
            let store = store.clone();
            Box::pin(async move {
                let asked = kernel::ports::iam::Resource::any("compute-quota", call.principal.tenant_id);
                call.require("compute:quotas:set", &asked).await?;
                let changed: Result<(), Fault> = call
                    .tx(&store, Op::new("touch"), |tx| {
                        Box::pin(async move { Ok(tx.execute(&TOUCH, &[]).await.map(drop)?) })
                    })
                    .await;
                changed?;
                match serde_json::to_value(&request).expect("it was parsed")["amount"].as_u64() {
                    Some(1) => panic!("as the test wants it"),
                    Some(2) => std::future::pending().await,
                    _ => Err(kernel::ApiError::conflict("after the change").into()),
                }
            })
        })
        .method::<api::quotas::List, _>(|_, _| Box::pin(async move { Ok(api::List::new(Vec::new(), None)) }))
}

#[tokio::test]
async fn a_failure_after_a_commit_keeps_the_fact_of_the_commit() {
    let world = World::new().await;
    let store = world.db.store.clone();
    let authorizer = iam::Authorizer::new(store.clone());
    let iam = iam::Iam::new(
        store.clone(),
        Arc::new(kit::SystemClock::new()),
        Arc::new(kit::OsRng),
        Arc::new(pki::OsEntropy),
    );
    let modules = [misbehaving(store.clone())];
    let pipeline = kernel::testing::pipeline_with(&modules, iam, authorizer, store);
    for (amount, code, status) in [(0u64, "CONFLICT", 409), (1, "INTERNAL", 500), (2, "UNAVAILABLE", 503)] {
        let body = json!({"resource": "gpu", "amount": amount}).to_string();
        let answer = pipeline
            .call(kernel::Incoming {
                method: "quotas.set",
                body: body.into(),
                bearer: Some(&world.admin),
                source_ip: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
                deadline: std::time::Duration::from_millis(500),
                request_id: None,
            })
            .await;
        assert_eq!((answer.status, answer.code.map(model::ErrorCode::name)), (status, Some(code)));
        let entry = last(&world, "compute:quotas:set").await;
        assert_eq!(entry.outcome, code);
        assert_eq!(entry.detail["committed"], true, "{code}: the change is there, and the entry says so");
    }
    assert_eq!(entries(&world, "compute:quotas:set").await, 3);
    let told = kernel::testing::invoke(&pipeline, Some(&world.admin), "quotas.list", json!({})).await;
    assert_eq!(told.code(), "INTERNAL", "an answer that nothing was decided about is not given");
}

#[tokio::test]
async fn a_deployment_that_only_observes_takes_no_intent_but_keeps_its_doors() {
    let world = World::new().await;
    let store = world.db.store.clone();
    let authorizer = iam::Authorizer::new(store.clone());
    let iam = iam::Iam::new(
        store.clone(),
        Arc::new(kit::SystemClock::new()),
        Arc::new(kit::OsRng),
        Arc::new(pki::OsEntropy),
    );
    let modules = [iam::module(&iam), misbehaving(store.clone())];
    let pipeline = kernel::testing::pipeline_with(&modules, iam, authorizer, store);
    world
        .db
        .batch(
            "UPDATE deployment SET observe_only = true, observe_reason = 'x', observe_since = compute_now()",
        )
        .await;
    let set = json!({"resource": "gpu", "amount": 0});
    let told = kernel::testing::invoke(&pipeline, Some(&world.admin), "quotas.set", set.clone()).await;
    assert_eq!((told.status, told.code()), (503, "UNAVAILABLE"));
    assert!(told.body["error"]["message"].as_str().unwrap().contains("system.confirmRestore"));
    assert_eq!(last(&world, "compute:quotas:set").await.outcome, "UNAVAILABLE");
    for (method, request) in [("tokens.create", json!({"name": "t"})), ("tenants.list", json!({}))] {
        kernel::testing::invoke(&pipeline, Some(&world.admin), method, request).await.ok();
    }
    world
        .db
        .batch("UPDATE deployment SET observe_only = false, observe_reason = NULL, observe_since = NULL")
        .await;
    let told = kernel::testing::invoke(&pipeline, Some(&world.admin), "quotas.set", set).await;
    assert_eq!(told.code(), "CONFLICT", "the handler is reached again");
}
