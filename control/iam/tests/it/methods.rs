use serde_json::{Value, json};

use crate::world::{World, text};

#[tokio::test]
async fn another_tenants_things_are_not_there() {
    let world = World::new().await;
    let (ours, theirs) = (world.tenant(&world.root, "ours").await, world.tenant(&world.root, "theirs").await);
    let us = world.user(&ours, "us").await;
    let them = world.user(&theirs, "them").await;
    world.allow(&ours, &us, "everything", &["compute:*"]).await;
    let theirs_policy = world
        .policy(
            &theirs,
            "secret",
            json!([
        {"sid": "A", "effect": "allow", "actions": ["compute:users:get"], "resources": ["*"]}]),
        )
        .await;
    let theirs_binding = world.bind(&theirs, "secret", &them.id).await;
    for (method, request) in [
        ("tenants.get", json!({"id": theirs})),
        ("tenants.list", json!({"parent": theirs})),
        ("tenants.create", json!({"parent": theirs, "name": "mine"})),
        ("users.get", json!({"id": them.id})),
        ("users.list", json!({"tenant": theirs})),
        ("users.create", json!({"tenant": theirs, "kind": "service", "name": "mine"})),
        ("tokens.create", json!({"user": them.id, "name": "mine"})),
        ("tokens.list", json!({"tenant": theirs})),
        ("tokens.revoke", json!({"id": them.token_id})),
        ("policies.get", json!({"policy": theirs_policy})),
        ("policies.list", json!({"tenant": theirs})),
        ("policies.delete", json!({"policy": theirs_policy})),
        ("bindings.list", json!({"tenant": theirs})),
        ("bindings.put", json!({"tenant": theirs, "policy": "secret", "user": us.id})),
        ("bindings.put", json!({"tenant": ours, "policy": theirs_policy, "user": us.id})),
        ("bindings.put", json!({"tenant": ours, "policy": "everything", "user": them.id})),
        ("bindings.delete", json!({"id": theirs_binding})),
    ] {
        let told = world.call(&us.token, method, request).await;
        assert_eq!((told.status, told.code()), (404, "NOT_FOUND"), "{method}: {}", told.body);
    }
    // And in their own tenant they may.
    world
        .call(
            &us.token,
            "users.create",
            json!({"kind": "person", "name": "ann", "email": "ann@example.test"}),
        )
        .await
        .ok();
}

#[tokio::test]
async fn a_token_ends_by_revocation_by_expiry_and_with_its_user() {
    let world = World::new().await;
    let whoami = async |token: &str| world.call(token, "tokens.whoami", json!({})).await.code().to_owned();

    let revoked = world.user(&world.root, "one").await;
    assert_eq!(whoami(&revoked.token).await, "ok");
    let told = world.does("tokens.revoke", json!({"id": revoked.token_id, "dryRun": true})).await;
    assert_eq!((told.get("revokedAt"), whoami(&revoked.token).await.as_str()), (None, "ok"));
    let told = world.does("tokens.revoke", json!({"id": revoked.token_id})).await;
    assert_eq!(
        (told["expiresInSeconds"].as_u64(), whoami(&revoked.token).await.as_str()),
        (Some(0), "UNAUTHENTICATED")
    );
    let again = world.does("tokens.revoke", json!({"id": revoked.token_id})).await;
    assert_eq!(again["revokedAt"], told["revokedAt"], "revoking again changes nothing");

    let expired = world.user(&world.root, "two").await;
    world
        .db
        .batch("UPDATE tokens SET expires_at = compute_now() - interval '1 microsecond' WHERE name = 'test'")
        .await;
    assert_eq!(whoami(&expired.token).await, "UNAUTHENTICATED");

    let disabled = world.user(&world.root, "three").await;
    assert_eq!(whoami(&disabled.token).await, "ok");
    let disable = json!({"id": disabled.id});
    let dry = world.does("users.disable", json!({"id": disabled.id, "dryRun": true})).await;
    assert_eq!((dry.get("disabledAt"), whoami(&disabled.token).await.as_str()), (None, "ok"));
    let first = world.does("users.disable", disable.clone()).await;
    assert_eq!(whoami(&disabled.token).await, "UNAUTHENTICATED");
    let again = world.does("users.disable", disable.clone()).await;
    assert!(first["disabledAt"].is_string() && first["disabledAt"] == again["disabledAt"], "{first} {again}");
    assert_eq!(world.does("users.enable", disable.clone()).await.get("disabledAt"), None);
    assert_eq!(whoami(&disabled.token).await, "ok");
    world.does("users.disable", disable).await;
    let told = "SELECT count(*) FROM outbox_events WHERE kind = 'iam.user.changed'";
    assert_eq!(world.db.scalar_i64(told).await, 3, "what changed nothing is not told");
    let oneself = world.call(&world.admin, "users.disable", json!({"id": world.admin_id})).await;
    assert_eq!(oneself.code(), "INVALID_STATE");
    let ended = world.does("tokens.list", json!({})).await["items"].as_array().unwrap().len();
    let all =
        world.does("tokens.list", json!({"includeEnded": true})).await["items"].as_array().unwrap().len();
    assert!(all > ended, "{all} and {ended}");
}

#[tokio::test]
async fn a_repeated_create_makes_one_thing() {
    let world = World::new().await;
    let request = json!({"name": "org", "idempotencyKey": "k1"});
    let first = world.does("tenants.create", request.clone()).await;
    let second = world.does("tenants.create", request).await;
    assert_eq!(first["id"], second["id"]);
    let other =
        world.call(&world.admin, "tenants.create", json!({"name": "org2", "idempotencyKey": "k1"})).await;
    assert_eq!(other.code(), "CONFLICT");
    assert_eq!(other.body["error"]["details"]["resource"], first["id"]);

    let token = json!({"name": "ci", "idempotencyKey": "k2"});
    let first = world.does("tokens.create", token.clone()).await;
    let second = world.does("tokens.create", token).await;
    assert_eq!(first["token"]["id"], second["token"]["id"]);
    assert!(first["secret"].is_string() && second.get("secret").is_none(), "a secret is told once");

    // Many at once, of which one makes it.
    let burst = json!({"name": "burst", "idempotencyKey": "k3"});
    let calls = (0..6).map(|_| world.call(&world.admin, "tenants.create", burst.clone()));
    let ids: Vec<Value> =
        futures::future::join_all(calls).await.into_iter().map(|told| told.ok()["id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM tenants WHERE name = 'burst'").await, 1);
}

#[tokio::test]
async fn names_are_unique_where_they_are_looked_up() {
    let world = World::new().await;
    world.tenant(&world.root, "org").await;
    let told = world.call(&world.admin, "tenants.create", json!({"name": "org"})).await;
    assert_eq!((told.code(), told.body["error"]["details"]["name"].as_str()), ("CONFLICT", Some("org")));
    world.user(&world.root, "ann").await;
    let told = world.call(&world.admin, "users.create", json!({"kind": "person", "name": "ann"})).await;
    assert_eq!(told.code(), "CONFLICT");
}

#[tokio::test]
async fn a_policy_that_is_wrong_is_refused_with_its_place() {
    let world = World::new().await;
    let document = json!({"statements": [
        {"sid": "A", "effect": "allow", "actions": ["compute:*"], "resources": ["*"],
         "conditions": {"NumericLessThn": {"resource.gpus": 8}}}]});
    let told = world.call(&world.admin, "policies.put", json!({"name": "p", "document": document})).await;
    assert_eq!(told.code(), "INVALID_INPUT");
    let error = &told.body["error"];
    assert!(text(&error["details"]["pointer"]).starts_with("/document/statements/0/conditions"), "{error}");
    assert!(text(&error["message"]).contains("NumericLessThan"), "{error}");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM policies WHERE name = 'p'").await, 0);
}

#[tokio::test]
async fn a_policy_is_replaced_by_the_version_that_was_read() {
    let world = World::new().await;
    let put = |effect: &str, if_version: Option<u64>| {
        let statement = json!({"sid": "A", "effect": effect, "actions": ["compute:*"], "resources": ["*"]});
        let mut request = json!({"name": "p", "document": {"statements": [statement]}});
        if let Some(version) = if_version {
            request["ifVersion"] = version.into();
        }
        request
    };
    let code =
        async |request: Value| world.call(&world.admin, "policies.put", request).await.code().to_owned();
    assert_eq!(code(put("allow", Some(1))).await, "CONFLICT", "there is none yet");
    assert_eq!(world.does("policies.put", put("allow", Some(0))).await["version"], 1);
    assert_eq!(
        world.does("policies.put", put("allow", Some(1))).await["version"],
        1,
        "the same document is no change"
    );
    let mut dry = put("deny", Some(1));
    dry["dryRun"] = true.into();
    assert_eq!(world.does("policies.put", dry).await["version"], 2);
    assert_eq!(world.does("policies.get", json!({"policy": "p"})).await["version"], 1);
    assert_eq!(world.does("policies.put", put("deny", Some(1))).await["version"], 2);
    assert_eq!(code(put("allow", Some(1))).await, "CONFLICT");
}

#[tokio::test]
async fn somebody_can_always_repair_everything() {
    let world = World::new().await;
    let bindings = world.does("bindings.list", json!({})).await;
    let last = &bindings["items"][0]["id"];
    let everything =
        json!({"statements": [{"sid": "A", "effect": "deny", "actions": ["*"], "resources": ["*"]}]});
    for (method, request) in [
        ("bindings.delete", json!({"id": last})),
        ("bindings.delete", json!({"id": last, "dryRun": true})),
        ("policies.delete", json!({"policy": "administrator"})),
        ("policies.put", json!({"name": "administrator", "document": everything})),
    ] {
        assert_eq!(world.call(&world.admin, method, request).await.code(), "CONFLICT", "{method}");
    }
    let second = world.user(&world.root, "second").await;
    world.bind(&world.root, "administrator", &second.id).await;
    world.does("bindings.delete", json!({"id": last})).await;
    assert_eq!(world.call(&world.admin, "tenants.list", json!({})).await.code(), "ACCESS_DENIED");
    world.call(&second.token, "tenants.list", json!({})).await.ok();
}

#[tokio::test]
async fn a_policy_that_is_held_is_not_deleted() {
    let world = World::new().await;
    let user = world.user(&world.root, "someone").await;
    let binding = world.allow(&world.root, &user, "some", &["compute:users:list"]).await;
    let told = world.call(&world.admin, "policies.delete", json!({"policy": "some"})).await;
    assert_eq!((told.code(), told.body["error"]["details"]["bindings"].as_i64()), ("CONFLICT", Some(1)));
    assert_eq!(world.bind(&world.root, "some", &user.id).await, binding, "giving it again changes nothing");
    world.does("bindings.delete", json!({"id": binding})).await;
    world.does("policies.delete", json!({"policy": "some"})).await;
    assert_eq!(world.call(&world.admin, "policies.get", json!({"policy": "some"})).await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_token_for_another_needs_the_right_wherever_the_other_has_one() {
    let world = World::new().await;
    let org = world.tenant(&world.root, "org").await;
    let lead = world.user(&org, "lead").await;
    let member = world.user(&org, "member").await;
    world.allow(&org, &lead, "lead", &["compute:tokens:*", "compute:users:*"]).await;
    let make = json!({"user": member.id, "name": "borrowed"});
    world.call(&lead.token, "tokens.create", make.clone()).await.ok();
    // Now the member is somebody in the root too.
    world.bind(&world.root, "administrator", &member.id).await;
    assert_eq!(world.call(&lead.token, "tokens.create", make).await.code(), "ACCESS_DENIED");
}

#[tokio::test]
async fn lists_go_on_where_they_stopped() {
    let world = World::new().await;
    for n in 0..5 {
        world.user(&world.root, &format!("u{n}")).await;
    }
    let mut names = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut request = json!({"limit": 2});
        if !cursor.is_null() {
            request["cursor"] = cursor.clone();
        }
        let page = world.does("users.list", request).await;
        names.extend(page["items"].as_array().unwrap().iter().map(|user| text(&user["name"])));
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(names, ["u4", "u3", "u2", "u1", "u0", "admin"]);
    let wrong = world.call(&world.admin, "users.list", json!({"cursor": world.root})).await;
    assert_eq!(wrong.body["error"]["details"]["pointer"], "/cursor");
}

#[tokio::test]
async fn expiry_is_bounded() {
    let world = World::new().await;
    for (request, code) in [
        (json!({"name": "t", "expiresInHours": 1}), "ok"),
        (json!({"name": "t", "expiresInHours": 366 * 24 + 1}), "INVALID_INPUT"),
        (json!({"name": "t", "expiresAt": "2020-01-01T00:00:00Z"}), "INVALID_INPUT"),
        (json!({"name": "t", "expiresAt": "2999-01-01T00:00:00Z"}), "INVALID_INPUT"),
        (json!({"name": "t", "expiresInHours": 1, "expiresAt": "2999-01-01T00:00:00Z"}), "INVALID_INPUT"),
    ] {
        assert_eq!(
            world.call(&world.admin, "tokens.create", request.clone()).await.code(),
            code,
            "{request}"
        );
    }
}
