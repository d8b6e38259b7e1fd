use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault, Incoming, Module};
use serde_json::{Value, json};

use crate::world::{User, World, text};

/// The table's quota methods with handlers that only ask: `quotas.set` stands for a reservation of `amount` GPUs, and
/// `quotas.list` reads one.
fn gpus() -> Module {
    Module::new("gpus")
        .method::<api::quotas::Set, _>(|call: Arc<Call>, request: api::quotas::SetQuota| {
            Box::pin(async move {
                let request = serde_json::to_value(&request).expect("it was parsed");
                let amount = request["amount"].as_u64().unwrap_or_default();
                let asked = Resource::any("compute-reservation", call.principal.tenant_id)
                    .with("resource.gpus", amount)
                    .with("resource.hours", amount)
                    .with("resource.gpuModel", "NVIDIA H100 80GB HBM3");
                call.require("compute:reservations:create", &asked).await?;
                Err(Fault::from(ApiError::invalid_state("allowed")))
            })
        })
        .method::<api::quotas::List, _>(|call: Arc<Call>, _| {
            Box::pin(async move {
                let asked = Resource::any("compute-reservation", call.principal.tenant_id);
                call.require("compute:reservations:list", &asked).await?;
                Err(Fault::from(ApiError::invalid_state("allowed")))
            })
        })
}

async fn reserves(world: &World, user: &User, gpus: u64) -> String {
    let told = world.call(&user.token, "quotas.set", json!({"resource": "gpu", "amount": gpus})).await;
    told.code().to_owned()
}

#[tokio::test]
async fn a_bounded_reservation_allows_eight_gpus_and_denies_nine() {
    let world = World::with(vec![gpus()]).await;
    let user = world.user(&world.root, "researcher").await;
    let statements = json!([{
        "sid": "ReserveBoundedH100", "effect": "allow", "actions": ["compute:reservations:create"],
        "resources": ["compute-reservation/*"],
        "conditions": {
            "StringLike": {"resource.gpuModel": "*H100*"}, "NumericLessThanEquals": {"resource.gpus": 8},
        },
    }]);
    world.policy(&world.root, "researchers", statements).await;
    assert_eq!(reserves(&world, &user, 1).await, "ACCESS_DENIED", "not bound yet");
    let binding = world.bind(&world.root, "researchers", &user.id).await;
    assert_eq!(reserves(&world, &user, 8).await, "INVALID_STATE");
    assert_eq!(reserves(&world, &user, 9).await, "ACCESS_DENIED");
    world.does("bindings.delete", json!({"id": binding})).await;
    assert_eq!(reserves(&world, &user, 8).await, "ACCESS_DENIED", "a binding that is gone counts at once");
}

#[tokio::test]
async fn a_bounded_extension_denies_one_hour_more() {
    let world = World::with(vec![gpus()]).await;
    let user = world.user(&world.root, "researcher").await;
    let statements = json!([
        {"sid": "Extend", "effect": "allow", "actions": ["compute:reservations:*"], "resources": ["*"]},
        {"sid": "BoundedExtend", "effect": "deny", "actions": ["compute:reservations:create"], "resources": ["*"],
         "conditions": {"NumericGreaterThan": {"resource.hours": 72}}},
    ]);
    world.policy(&world.root, "extenders", statements).await;
    world.bind(&world.root, "extenders", &user.id).await;
    assert_eq!(reserves(&world, &user, 72).await, "INVALID_STATE");
    let told = world.call(&user.token, "quotas.set", json!({"resource": "gpu", "amount": 73})).await;
    assert_eq!(told.code(), "ACCESS_DENIED");
    assert_eq!(told.body["error"]["details"]["decidedBy"], "extenders/BoundedExtend");
}

#[tokio::test]
async fn a_policy_reaches_downwards_and_a_denial_above_stands() {
    let world = World::new().await;
    let (org, other) = (world.tenant(&world.root, "org").await, world.tenant(&world.root, "other").await);
    let team = world.tenant(&org, "team").await;
    let user = world.user(&org, "lead").await;
    world.allow(&org, &user, "readers", &["compute:tenants:*"]).await;
    for (tenant, expected) in [(&org, "ok"), (&team, "ok"), (&other, "NOT_FOUND"), (&world.root, "NOT_FOUND")]
    {
        assert_eq!(world.call(&user.token, "tenants.get", json!({"id": tenant})).await.code(), expected);
    }
    // The root takes it back for one of the two.
    let deny = json!([{"sid": "Not", "effect": "deny", "actions": ["compute:tenants:get"],
                       "resources": [format!("compute-tenant/{team}")]}]);
    world.policy(&world.root, "closed", deny).await;
    world.bind(&world.root, "closed", &user.id).await;
    assert_eq!(world.call(&user.token, "tenants.get", json!({"id": org})).await.code(), "ok");
    assert_eq!(world.call(&user.token, "tenants.get", json!({"id": team})).await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_changed_policy_holds_from_the_next_call_on() {
    let world = World::new().await;
    let user = world.user(&world.root, "someone").await;
    world.allow(&world.root, &user, "some", &["compute:users:list"]).await;
    world.call(&user.token, "users.list", json!({})).await.ok();
    world
        .policy(
            &world.root,
            "some",
            json!([
        {"sid": "Allow", "effect": "allow", "actions": ["compute:tenants:list"], "resources": ["*"]}]),
        )
        .await;
    assert_eq!(world.call(&user.token, "users.list", json!({})).await.code(), "ACCESS_DENIED");
    world.call(&user.token, "tenants.list", json!({})).await.ok();
}

#[tokio::test]
async fn a_decision_knows_the_callers_address() {
    let world = World::new().await;
    let user = world.user(&world.root, "office").await;
    let statements = json!([{"sid": "Office", "effect": "allow", "actions": ["compute:tenants:list"],
        "resources": ["*"], "conditions": {"IpAddress": {"request.sourceIp": "192.0.2.0/24"},
                                           "StringEquals": {"principal.name": "office"}}}]);
    world.policy(&world.root, "office", statements).await;
    world.bind(&world.root, "office", &user.id).await;
    for (from, expected) in [([192, 0, 2, 7], 200), ([198, 51, 100, 7], 403)] {
        let incoming = Incoming {
            method: "tenants.list",
            body: Bytes::new(),
            bearer: Some(&user.token),
            source_ip: IpAddr::V4(Ipv4Addr::from(from)),
            deadline: Duration::from_secs(10),
            request_id: None,
        };
        assert_eq!(world.pipeline.call(incoming).await.status, expected, "{from:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_decided_is_refused() {
    let world = World::new().await;
    let user = world.user(&world.root, "someone").await;
    world.allow(&world.root, &user, "some", &["compute:*"]).await;
    world.call(&user.token, "users.list", json!({})).await.ok();
    // A stored policy of another program's making.
    world
        .db
        .batch(
            "UPDATE policies SET document = '{\"statements\": []}' WHERE name = 'some';
             UPDATE iam_version SET version = version + 1",
        )
        .await;
    for method in ["users.list", "tenants.list", "tokens.list"] {
        let told = world.call(&user.token, method, json!({})).await;
        assert_eq!((told.status, told.code()), (500, "INTERNAL"), "{method} fails whole: {}", told.body);
        assert!(!told.body.to_string().contains("statements"), "the cause stays inside");
    }
    assert_eq!(world.call(&user.token, "tokens.whoami", json!({})).await.code(), "ok");
}

#[tokio::test]
async fn a_list_shows_what_the_caller_may_see_and_nothing_else() {
    let world = World::new().await;
    let user = world.user(&world.root, "someone").await;
    let seen = world.user(&world.root, "seen").await;
    world.user(&world.root, "hidden").await;
    let statements = json!([{"sid": "Some", "effect": "allow", "actions": ["compute:users:list"],
        "resources": ["compute-user/*"]},
        {"sid": "Hide", "effect": "deny", "actions": ["compute:users:list"], "resources": ["*"],
         "conditions": {"StringEqualsIfExists": {"resource.name": ["hidden", "admin"]},
                        "Null": {"resource.name": false}}}]);
    world.policy(&world.root, "some", statements).await;
    world.bind(&world.root, "some", &user.id).await;
    let listed = world.call(&user.token, "users.list", json!({})).await.ok();
    let names: Vec<String> =
        listed["items"].as_array().unwrap().iter().map(|user| text(&user["name"])).collect();
    assert_eq!(names, ["seen", "someone"]);
    assert_eq!(listed["cursor"], Value::Null);
    assert_eq!(world.call(&user.token, "users.get", json!({"id": seen.id})).await.code(), "NOT_FOUND");
}

/// Binds this many policies of the tenant to the user, past every check.
async fn bind_many(world: &World, tenant: &str, user: &str, count: usize) {
    let tenant = tenant.parse::<model::TenantId>().expect("an id").uuid();
    let user = user.parse::<model::UserId>().expect("an id").uuid();
    let document = json!({"statements": [{"sid": "None", "effect": "allow", "actions": ["compute:none:none"],
                                          "resources": ["*"]}]});
    world
        .db
        .batch(&format!(
            "INSERT INTO policies (policy_id, tenant_id, name, document)
               SELECT gen_random_uuid(), '{tenant}', 'many-' || n, '{document}' FROM generate_series(1, {count}) n;
             INSERT INTO bindings (binding_id, tenant_id, policy_id, user_id)
               SELECT gen_random_uuid(), '{tenant}', policy_id, '{user}' FROM policies WHERE name LIKE 'many-%';
             UPDATE iam_version SET version = version + 1"
        ))
        .await;
}

#[tokio::test]
async fn what_is_bound_in_another_tenant_breaks_no_decision() {
    let world = World::new().await;
    let org = world.tenant(&world.root, "org").await;
    bind_many(&world, &org, &world.admin_id, 300).await;
    world.does("tenants.get", json!({"id": world.root})).await;
    world.tenant(&world.root, "other").await;
    let told = world.call(&world.admin, "tenants.get", json!({"id": org})).await;
    assert_eq!(told.code(), "INTERNAL", "what cannot be decided is refused, there alone");
}

#[tokio::test]
async fn a_user_holds_a_bounded_number_of_policies_in_a_tenant() {
    let world = World::new().await;
    let (org, other) = (world.tenant(&world.root, "org").await, world.tenant(&world.root, "other").await);
    bind_many(&world, &org, &world.admin_id, 63).await;
    let statement =
        json!([{"sid": "A", "effect": "allow", "actions": ["compute:none:none"], "resources": ["*"]}]);
    world.policy(&world.root, "last", statement.clone()).await;
    world.policy(&world.root, "one-more", statement).await;
    world.bind(&org, "last", &world.admin_id).await;
    let put = json!({"tenant": org, "policy": "one-more", "user": world.admin_id});
    let told = world.call(&world.admin, "bindings.put", put).await;
    assert_eq!(told.code(), "CONFLICT");
    assert_eq!(told.body["error"]["details"]["limit"], 64);
    world.bind(&org, "last", &world.admin_id).await;
    world.bind(&other, "one-more", &world.admin_id).await;
    world.does("tenants.get", json!({"id": org})).await;
}
