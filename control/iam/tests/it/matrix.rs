//! Every method of the table that is served here, by those who may not.

use kernel::testing::invoke;
use serde_json::{Value, json};

use crate::world::World;

/// A request that parses, about something that is there.
fn request(world: &World, method: &str, binding: &str) -> Value {
    let document =
        json!({"statements": [{"sid": "A", "effect": "allow", "actions": ["*"], "resources": ["*"]}]});
    match method {
        "tenants.create" => json!({"name": "new"}),
        "tenants.get" | "tenants.delete" => json!({"id": world.root}),
        "users.create" => json!({"kind": "service", "name": "new"}),
        "users.get" | "users.disable" | "users.enable" => json!({"id": world.admin_id}),
        "tokens.create" => json!({"name": "new"}),
        "tokens.revoke" => json!({"id": token_id(&world.admin)}),
        "policies.put" => json!({"name": "new", "document": document}),
        "policies.get" | "policies.delete" => json!({"policy": "administrator"}),
        "bindings.put" => json!({"policy": "administrator", "user": "nobody"}),
        "bindings.delete" => json!({"id": binding}),
        _ => json!({}),
    }
}

/// `bct_<id>_<secret>`.
fn token_id(token: &str) -> String {
    token["bct_".len().."bct_tok_".len() + 26].to_owned()
}

async fn admins_binding(world: &World) -> String {
    let bindings = world.does("bindings.list", json!({})).await;
    bindings["items"][0]["id"].as_str().expect("the administrator's").to_owned()
}

#[tokio::test]
async fn a_user_without_policies_may_do_nothing_and_nothing_changes() {
    let world = World::new().await;
    let nobody = world.user(&world.root, "nobody").await;
    let binding = admins_binding(&world).await;
    let count =
        "SELECT (SELECT count(*) FROM tenants) + (SELECT count(*) FROM users) + (SELECT count(*) FROM tokens)
                      + (SELECT count(*) FROM policies) + (SELECT count(*) FROM bindings)
                      + (SELECT count(*) FROM tokens WHERE revoked_at IS NULL)";
    let before = world.db.scalar_i64(count).await;
    let mut tried = 0;
    for method in world.pipeline.methods() {
        if method == "tokens.whoami" {
            continue;
        }
        let told = world.call(&nobody.token, method, request(&world, method, &binding)).await;
        assert!(matches!(told.code(), "ACCESS_DENIED" | "NOT_FOUND"), "{method}: {}", told.body);
        assert!(
            !told.body.to_string().contains("Everything"),
            "{method} shows a statement of another's policy"
        );
        tried += 1;
    }
    assert_eq!(tried, 19, "a method was added: give it a request above");
    assert_eq!(world.db.scalar_i64(count).await, before);
}

#[tokio::test]
async fn nobody_may_do_anything_without_a_token() {
    let world = World::new().await;
    let binding = admins_binding(&world).await;
    for method in world.pipeline.methods() {
        let request = request(&world, method, &binding);
        for token in [None, Some("bct_tok_00000000000000000000000000_"), Some("")] {
            let told = invoke(&world.pipeline, token, method, request.clone()).await;
            assert_eq!((told.status, told.code()), (401, "UNAUTHENTICATED"), "{method}");
        }
    }
}

#[tokio::test]
async fn the_administrator_may_do_all_of_it() {
    let world = World::new().await;
    world.user(&world.root, "nobody").await;
    let binding = admins_binding(&world).await;
    for method in world.pipeline.methods() {
        // Itself, its own last binding, the built-in policy, the token it calls with and the root are the exceptions, tested
        // elsewhere.
        if matches!(
            method,
            "bindings.delete" | "policies.delete" | "tokens.revoke" | "users.disable" | "tenants.delete"
        ) {
            continue;
        }
        world.does(method, request(&world, method, &binding)).await;
    }
}
