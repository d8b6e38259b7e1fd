use serde_json::{Value, json};

use crate::world::World;

fn resources(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|entry| entry["resource"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_method_here_is_closed_to_those_without_policies() {
    let world = World::new().await;
    let nobody = world.nobody().await;
    for (method, request) in [
        ("events.list", json!({})),
        ("audit.list", json!({})),
        ("work.listParked", json!({})),
        ("work.requeue", json!({"queue": "specs"})),
        ("system.info", json!({})),
        ("system.confirmRestore", json!({"epoch": 1})),
    ] {
        assert_eq!(world.call(&nobody, method, request.clone()).await.code(), "ACCESS_DENIED", "{method}");
        let told = kernel::testing::invoke(&world.pipeline, None, method, request).await;
        assert_eq!(told.code(), "UNAUTHENTICATED", "{method}");
    }
}

#[tokio::test]
async fn the_audit_log_is_found_by_who_what_and_how_it_ended() {
    let world = World::new().await;
    let nobody = world.nobody().await;
    for n in 0..3 {
        world.does("tenants.create", json!({"name": format!("t{n}")})).await;
    }
    world.call(&nobody, "tenants.create", json!({"name": "x"})).await;

    let find = async |filter: Value| {
        let list = world.does("audit.list", filter).await;
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(find(json!({"action": "compute:tenants:create"})).await, 4);
    assert_eq!(find(json!({"action": "compute:tenants:*", "decision": "denied"})).await, 1);
    assert_eq!(find(json!({"action": "compute:tenants:*", "principal": "nobody"})).await, 1);
    assert_eq!(
        find(json!({"action": "compute:tenants:*", "decision": "allowed", "principal": "admin"})).await,
        3
    );
    assert_eq!(find(json!({"action": "compute:tenants"})).await, 0, "a beginning needs its star");
    assert_eq!(find(json!({"until": "2020-01-01T00:00:00Z"})).await, 0);

    let denied = &world.does("audit.list", json!({"decision": "denied"})).await["items"][0];
    assert_eq!(
        (denied["outcome"].as_str(), denied["principal"].as_str()),
        (Some("ACCESS_DENIED"), Some("nobody"))
    );
    let by_id = json!({"principal": denied["principalId"], "requestId": denied["requestId"]});
    assert_eq!(find(by_id).await, 1);
}

#[tokio::test]
async fn the_audit_log_goes_on_where_a_page_stopped() {
    let world = World::new().await;
    let mut made = Vec::new();
    for n in 0..5 {
        let tenant = world.does("tenants.create", json!({"name": format!("t{n}")})).await;
        made.insert(0, format!("tenant/{}", tenant["id"].as_str().unwrap()));
    }
    // A tenant's entries are under that tenant's parent, where it was made.
    let mut request = json!({"action": "compute:tenants:create", "limit": 2});
    let mut seen = Vec::new();
    loop {
        let page = world.does("audit.list", request.clone()).await;
        seen.extend(resources(&page).into_iter().map(str::to_owned));
        match page.get("cursor") {
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => break,
        }
    }
    assert_eq!(seen, made);
    let wrong = world.call(&world.admin, "audit.list", json!({"cursor": "1/x"})).await;
    assert_eq!(wrong.body["error"]["details"]["pointer"], "/cursor");
}
