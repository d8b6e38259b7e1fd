//! Who may, within which bounds, and what others are told.

use std::sync::Arc;

use kernel::ports::iam::{AuthorizationPort, Resource, Verdict};
use kernel::testing::{DecideBy, allow_all, deny_all};
use kernel::{BoxFuture, Call, Fault, Principal};
use model::TenantId;
use policy::{Compiled, Document, PolicyRef, Request};
use serde_json::{Value, json};

use crate::cloud::{Cloud, call, pipeline};

/// Decides by one policy, as the real port does for a user who holds it at the root.
struct ByPolicy(Compiled);

impl ByPolicy {
    fn of(document: &Value) -> Arc<dyn AuthorizationPort> {
        let document = Document::parse(document.to_string()).expect("the policy of the test parses");
        Arc::new(Self(Compiled::compile(&[(PolicyRef::from("test"), &document)])))
    }
}

impl AuthorizationPort for ByPolicy {
    fn decide<'a>(
        &'a self,
        _: &'a Call,
        action: &'a str,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>> {
        let request = Request { action, resource: &resource.name, attributes: &resource.attributes };
        let allowed = self.0.decide(&request).is_allowed();
        Box::pin(async move { Ok(Verdict { allowed, by: "the policy".to_owned() }) })
    }

    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>> {
        Box::pin(async move {
            let mut verdicts = Vec::new();
            for resource in resources {
                verdicts.push(self.decide(call, action, resource).await?);
            }
            Ok(verdicts)
        })
    }
}

fn with_pools(statement: Value) -> Value {
    json!({ "statements": [statement, {
        "sid": "Offered", "effect": "allow", "actions": ["compute:pools:get"], "resources": ["compute-pool/*"],
    }]})
}

#[tokio::test]
async fn a_policy_is_told_a_begun_gib_as_a_whole_one() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let caller = cloud.caller(ByPolicy::of(&with_pools(json!({
        "sid": "Small", "effect": "allow", "actions": ["compute:reservations:create"],
        "resources": ["compute-reservation/*"],
        "conditions": { "NumericLessThanEquals": { "resource.memoryGiB": 1 } },
    }))));
    let ask = |memory: u64| json!({ "pool": "gpu", "memoryMiB": memory });
    call(&caller, "reservations.create", ask(1024)).await.ok();
    assert_eq!(call(&caller, "reservations.create", ask(1025)).await.code(), "ACCESS_DENIED");
}

#[tokio::test]
async fn reserve_bounded_h100_allows_8_gpus_and_denies_9() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let policy = with_pools(json!({
        "sid": "ReserveBoundedH100", "effect": "allow",
        "actions": ["compute:reservations:create"], "resources": ["compute-reservation/*"],
        "conditions": {
            "StringEquals": { "resource.gpuModel": "H100" },
            "NumericLessThanEquals": { "resource.gpus": 8 },
        },
    }));
    let caller = cloud.caller(ByPolicy::of(&policy));
    let reserve = |gpus: u32, model: Option<&'static str>| {
        let mut request = json!({ "pool": "gpu", "gpus": gpus });
        if let Some(model) = model {
            request["gpuModel"] = json!(model);
        }
        call(&caller, "reservations.create", request)
    };
    assert_eq!(reserve(9, Some("H100")).await.code(), "ACCESS_DENIED");
    assert_eq!(reserve(1, Some("H200")).await.code(), "ACCESS_DENIED");
    assert_eq!(reserve(8, None).await.code(), "ACCESS_DENIED", "who is bound to a model must name it");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 0, "no draft is left");
    let made = reserve(8, Some("H100")).await.ok();
    assert_eq!((&made["state"], &made["tenant"]["name"]), (&json!("placed"), &json!("acme")));
}

#[tokio::test]
async fn bounded_extend_denies_one_hour_more_than_72() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let policy = json!({ "statements": [
        { "sid": "Own", "effect": "allow",
          "actions": ["compute:reservations:create", "compute:reservations:get", "compute:pools:get"], "resources": ["*"] },
        { "sid": "BoundedExtend", "effect": "allow",
          "actions": ["compute:reservations:extend"], "resources": ["compute-reservation/*"],
          "conditions": { "NumericLessThanEquals": { "resource.totalHours": 72 } } },
    ]});
    let caller = cloud.caller(ByPolicy::of(&policy));
    let make = |hours: u32| {
        call(&caller, "reservations.create", json!({ "pool": "gpu", "gpus": 1, "hours": hours }))
    };
    let (full, short) = (make(72).await.ok(), make(48).await.ok());
    let extend = |made: &Value, hours: u32| {
        call(&caller, "reservations.extend", json!({ "id": made["id"], "hours": hours }))
    };
    assert_eq!(extend(&full, 1).await.code(), "ACCESS_DENIED");
    let extended = extend(&short, 24).await.ok();
    let moved = "SELECT extract(epoch FROM expires_at - starts_at)::bigint / 3600 FROM reservations WHERE reservation_id = ";
    let id: model::ReservationId = extended["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(cloud.db.scalar_i64(&format!("{moved}'{}'", id.uuid())).await, 72);
    assert_eq!(extend(&short, 1).await.code(), "ACCESS_DENIED");
}

#[tokio::test]
async fn extensions_at_the_same_time_do_not_pass_the_bound_together() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let policy = json!({ "statements": [
        { "sid": "All", "effect": "allow", "actions": ["*"], "resources": ["*"] },
        { "sid": "Bound", "effect": "deny", "actions": ["compute:reservations:extend"], "resources": ["*"],
          "conditions": { "NumericGreaterThan": { "resource.totalHours": 4 } } },
    ]});
    let caller = cloud.caller(ByPolicy::of(&policy));
    let made =
        call(&caller, "reservations.create", json!({ "pool": "gpu", "gpus": 1, "hours": 1 })).await.ok();
    let extend = || call(&caller, "reservations.extend", json!({ "id": made["id"], "hours": 1 }));
    let told = futures::future::join_all((0..6).map(|_| extend())).await;
    let extended = told.iter().filter(|told| told.status == 200).count();
    let hours = cloud
        .db
        .scalar_i64("SELECT extract(epoch FROM expires_at - starts_at)::bigint / 3600 FROM reservations")
        .await;
    assert!(hours <= 4, "{hours} hours");
    assert_eq!(hours, 1 + extended as i64);
}

#[tokio::test]
async fn a_quota_refuses_with_its_numbers_and_frees_with_the_end() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let set = json!({ "resource": "gpu", "amount": 10 });
    assert_eq!(cloud.call("quotas.set", set).await.ok()["used"], 0);
    let first = cloud.reserve(json!({ "gpus": 8 })).await;
    let refused = cloud.call("reservations.create", json!({ "pool": "gpu", "gpus": 4 })).await;
    assert_eq!(refused.code(), "QUOTA_EXCEEDED");
    let details = &refused.body["error"]["details"];
    assert_eq!(
        (&details["resource"], &details["used"], &details["limit"], &details["wanted"]),
        (&json!("gpu"), &json!(8), &json!(10), &json!(4))
    );
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 1, "no draft is left");
    let listed = cloud.call("quotas.list", json!({})).await.ok();
    assert_eq!((&listed["items"][0]["used"], &listed["items"][0]["amount"]), (&json!(8), &json!(10)));
    cloud.call("reservations.release", json!({ "id": first["id"] })).await.ok();
    cloud.confirm_released(&first).await;
    assert_eq!(cloud.reserve(json!({ "gpus": 4 })).await["state"], "placed");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn what_tenants_below_hold_counts_against_the_quota_above_them() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let set = json!({ "resource": "gpu", "amount": 10, "tenant": cloud.tenant.to_string() });
    cloud.call("quotas.set", set).await.ok();
    let (left, right) = (cloud.tenant_below("left").await, cloud.tenant_below("right").await);
    let ask =
        |tenant: TenantId, gpus: u32| json!({ "pool": "gpu", "gpus": gpus, "tenant": tenant.to_string() });
    let first = cloud.call("reservations.create", ask(left, 6)).await.ok();
    for tenant in [left, right, cloud.tenant] {
        let refused = cloud.call("reservations.create", ask(tenant, 5)).await;
        assert_eq!(refused.code(), "QUOTA_EXCEEDED", "{}", refused.body);
        let error = &refused.body["error"];
        assert_eq!((&error["details"]["used"], &error["details"]["limit"]), (&json!(6), &json!(10)));
        assert_eq!(error["details"]["tenant"], cloud.tenant.to_string());
        let above = error["message"].as_str().unwrap().contains("of tenant acme above");
        assert_eq!(above, tenant != cloud.tenant, "{error}");
    }
    assert_eq!(cloud.call("reservations.create", ask(cloud.root_tenant, 5)).await.code(), "ok", "not below");
    cloud.call("reservations.create", ask(right, 4)).await.ok();
    let listed = cloud.call("quotas.list", json!({ "tenant": cloud.tenant.to_string() })).await.ok();
    assert_eq!(listed["items"][0]["used"], 10);
    cloud.call("reservations.release", json!({ "id": first["id"] })).await.ok();
    cloud.confirm_released(&first).await;
    cloud.call("reservations.create", ask(cloud.tenant, 6)).await.ok();
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_that_book_at_once_do_not_pass_the_quota_above_them() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let quota = |tenant: TenantId, resource: &str, amount: u32| json!({ "resource": resource, "amount": amount, "tenant": tenant.to_string() });
    let mut tenants = Vec::new();
    for at in 0..4 {
        tenants.push(cloud.tenant_below(&format!("team-{at}")).await);
    }
    cloud.call("quotas.set", quota(cloud.root_tenant, "gpu", 14)).await.ok();
    cloud.call("quotas.set", quota(cloud.tenant, "gpu", 5)).await.ok();
    cloud.call("quotas.set", quota(cloud.tenant, "reservations", 9)).await.ok();
    for tenant in &tenants {
        cloud.call("quotas.set", quota(*tenant, "gpu", 3)).await.ok();
        cloud.call("quotas.set", quota(*tenant, "vcpu", 30)).await.ok();
    }
    let book = |at: usize| {
        let (cloud, tenant) = (&cloud, tenants[at % tenants.len()]);
        async move {
            let ask = json!({ "pool": "gpu", "gpus": 1, "vcpu": 1, "tenant": tenant.to_string() });
            cloud.call("reservations.create", ask).await.code().to_owned()
        }
    };
    let told = futures::future::join_all((0..24).map(book)).await;
    assert_eq!(told.iter().filter(|code| *code == "ok").count(), 5, "{told:?}");
    assert_eq!(told.iter().filter(|code| *code == "QUOTA_EXCEEDED").count(), 19, "{told:?}");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn a_tenant_does_not_raise_its_own_quota() {
    let cloud = Cloud::empty().await;
    let (own, root) = (cloud.tenant, cloud.root_tenant);
    let own_alone = DecideBy(move |_: &Principal, _: &str, resource: &Resource| resource.tenant_id == own);
    let admin = cloud.caller(Arc::new(own_alone));
    let set = json!({ "resource": "gpu", "amount": 1000 });
    assert_eq!(call(&admin, "quotas.set", set.clone()).await.code(), "ACCESS_DENIED");
    let mut of_root = set.clone();
    of_root["tenant"] = json!(root.to_string());
    assert_eq!(call(&admin, "quotas.set", of_root).await.code(), "NOT_FOUND", "it does not see the root");
    let mut below = set;
    below["tenant"] = json!(own.to_string());
    assert_eq!(cloud.call("quotas.set", below).await.ok()["amount"], 1000);
}

#[tokio::test]
async fn another_tenants_reservation_is_not_there() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let roots = cloud.reserve(json!({ "gpus": 1, "hours": 1 })).await;
    let own = cloud.tenant;
    let own_alone = DecideBy(move |_: &Principal, _: &str, resource: &Resource| resource.tenant_id == own);
    let stranger = cloud.caller(Arc::new(own_alone));
    for (method, request) in [
        ("reservations.get", json!({ "id": roots["id"] })),
        ("reservations.extend", json!({ "id": roots["id"], "hours": 1 })),
        ("reservations.release", json!({ "id": roots["id"] })),
        ("reservations.list", json!({ "tenant": cloud.root_tenant.to_string() })),
        ("reservations.create", json!({ "pool": "gpu", "gpus": 1 })),
        ("reservations.create", json!({ "pool": "gpu", "gpus": 1, "tenant": cloud.root_tenant.to_string() })),
        ("reservations.explain", json!({ "pool": "gpu", "gpus": 1 })),
        ("pools.get", json!({ "pool": "gpu" })),
        ("pools.update", json!({ "pool": cloud.pool.to_string(), "name": "mine" })),
        ("pools.delete", json!({ "pool": cloud.pool.to_string() })),
    ] {
        assert_eq!(call(&stranger, method, request.clone()).await.code(), "NOT_FOUND", "{method} {request}");
    }
    let listed = call(&stranger, "reservations.list", json!({})).await.ok();
    assert_eq!(listed["items"], json!([]));
    assert_eq!(cloud.get(&roots).await["state"], "placed");
}

#[tokio::test]
async fn who_may_nothing_is_refused_everywhere() {
    let (cloud, _) = Cloud::with_nodes(1).await;
    let made = cloud.reserve(json!({ "gpus": 1 })).await;
    let nobody = pipeline(&cloud.capacity, &cloud.db, cloud.root_user, cloud.root_tenant, deny_all());
    for (method, request) in [
        ("pools.create", json!({ "name": "x", "class": "gpu" })),
        ("pools.get", json!({ "pool": "gpu" })),
        ("pools.update", json!({ "pool": "gpu", "name": "x" })),
        ("pools.delete", json!({ "pool": "gpu" })),
        ("quotas.set", json!({ "resource": "gpu", "amount": 1 })),
        ("reservations.create", json!({ "pool": "gpu", "gpus": 1 })),
        ("reservations.create", json!({ "pool": "gpu", "gpus": 1, "dryRun": true })),
        ("reservations.create", json!({ "pool": "nowhere", "gpus": 1 })),
        ("reservations.get", json!({ "id": made["id"] })),
        ("reservations.extend", json!({ "id": made["id"], "hours": 1 })),
        ("reservations.release", json!({ "id": made["id"] })),
        ("reservations.explain", json!({ "pool": "gpu", "gpus": 1 })),
    ] {
        let code = call(&nobody, method, request.clone()).await.code().to_owned();
        assert!(matches!(code.as_str(), "ACCESS_DENIED" | "NOT_FOUND"), "{method} {request}: {code}");
    }
    for method in ["pools.list", "quotas.list", "reservations.list"] {
        assert_eq!(call(&nobody, method, json!({})).await.ok()["items"], json!([]), "{method}");
    }
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 1);
    let anyone = cloud.caller(allow_all());
    assert_eq!(call(&anyone, "reservations.list", json!({})).await.ok()["items"], json!([]));
}
