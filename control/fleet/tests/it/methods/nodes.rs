use serde_json::{Value, json};

use super::{Api, audited};
use crate::machine::Machine;
use crate::world::{TokenIs, World, id, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_not_be_seen_is_not_there() {
    let world = world().await;
    world.ready("gpu-1").await;
    let unknown: model::NodeId = id();
    let blind = Api::may(&world, &[]);
    for method in
        ["nodes.get", "nodes.inventory", "nodes.cordon", "nodes.drain", "nodes.revoke", "nodes.remove"]
    {
        let there = blind.call(method, json!({ "node": "gpu-1" })).await;
        let missing = blind.call(method, json!({ "node": "gpu-9" })).await;
        let no_id = blind.call(method, json!({ "node": unknown.to_string() })).await;
        assert_eq!([there.code(), missing.code(), no_id.code()], ["NOT_FOUND"; 3], "{method}");
        let shape = |told: &Value| {
            let error = &told["error"];
            (error["details"]["kind"].clone(), error["details"].as_object().unwrap().len())
        };
        assert_eq!(shape(&there.body), shape(&missing.body), "{method}");
    }
    let seeing = Api::may(&world, &["compute:nodes:get"]);
    assert_eq!(seeing.call("nodes.cordon", json!({ "node": "gpu-1" })).await.code(), "ACCESS_DENIED");
    assert!(blind.ok("nodes.list", json!({})).await["items"].as_array().unwrap().is_empty());
    assert_eq!(blind.call("nodes.list", json!({ "pool": "gpus" })).await.code(), "NOT_FOUND");
    assert_eq!(blind.call("commands.list", json!({ "node": "gpu-1" })).await.code(), "NOT_FOUND");
}

async fn names(api: &Api, request: Value) -> (Vec<String>, Option<Value>) {
    let page = api.ok("nodes.list", request).await;
    let items = page["items"].as_array().unwrap();
    let names = items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect();
    (names, page.get("cursor").cloned())
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_neither_repeat_nor_miss_a_node_when_others_join_meanwhile() {
    let world = world().await;
    let api = Api::new(&world);
    for n in 0..4 {
        world.joined(&format!("old-{n}"), TokenIs::default()).await;
        world.pass(1);
    }
    let (first, cursor) = names(&api, json!({ "limit": 2 })).await;
    world.joined("new", TokenIs::default()).await;
    let (second, cursor) = names(&api, json!({ "limit": 2, "cursor": cursor.unwrap() })).await;
    assert_eq!([first, second].concat(), ["old-3", "old-2", "old-1", "old-0"]);
    let (rest, end) = names(&api, json!({ "limit": 2, "cursor": cursor.unwrap() })).await;
    assert!(rest.is_empty() && end.is_none());
    assert_eq!(api.call("nodes.list", json!({ "cursor": "site_x" })).await.code(), "INVALID_INPUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_find_nodes_by_what_is_asked() {
    let world = world().await;
    let api = Api::new(&world);
    let ready = world.ready("gpu-1").await;
    world.joined("gpu-2", TokenIs::default()).await;
    api.ok("nodes.update", json!({ "node": "gpu-1", "labels": { "rack": "r1" } })).await;
    let all = [
        (json!({ "state": "joined" }), vec!["gpu-2"]),
        (json!({ "pool": "gpus" }), vec!["gpu-1"]),
        (json!({ "site": "hall-1" }), vec!["gpu-2", "gpu-1"]),
        (json!({ "schedulable": true }), vec!["gpu-1"]),
        (json!({ "schedulable": false }), vec!["gpu-2"]),
        (json!({ "selector": { "rack": "r1" } }), vec!["gpu-1"]),
        (json!({ "condition": "GpuHot" }), vec![]),
    ];
    for (request, expected) in all {
        assert_eq!(names(&api, request.clone()).await.0, expected, "{request}");
    }
    world.run("UPDATE nodes SET state = 'revoked' WHERE node_id = $1", &[&ready.node_id().uuid()]).await;
    assert_eq!(names(&api, json!({})).await.0, ["gpu-2"]);
    assert_eq!(names(&api, json!({ "includeEnded": true })).await.0, ["gpu-2", "gpu-1"]);
    assert_eq!(names(&api, json!({ "state": "revoked" })).await.0, ["gpu-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_names_change_within_their_bounds() {
    let world = world().await;
    let api = Api::new(&world);
    world.ready("gpu-1").await;
    world.ready("gpu-2").await;
    let many: serde_json::Map<String, Value> = (0..64).map(|n| (format!("l{n}"), json!("x"))).collect();
    api.ok("nodes.update", json!({ "node": "gpu-1", "labels": many })).await;
    let more = api.call("nodes.update", json!({ "node": "gpu-1", "labels": { "one-more": "x" } })).await;
    assert_eq!(more.code(), "INVALID_INPUT");
    let node =
        api.ok("nodes.update", json!({ "node": "gpu-1", "labels": { "l0": null, "one-more": "x" } })).await;
    assert_eq!((node["labels"].as_object().unwrap().len(), &node["labels"]["one-more"]), (64, &json!("x")));
    assert_eq!(api.ok("nodes.update", json!({ "node": "gpu-1", "name": "one" })).await["name"], "one");
    assert_eq!(api.call("nodes.update", json!({ "node": "one", "name": "gpu-2" })).await.code(), "CONFLICT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cordon_is_told_once_and_audited() {
    let world = world().await;
    let api = Api::new(&world);
    world.ready("gpu-1").await;
    let request = json!({ "node": "gpu-1", "reason": "fan" });
    let node = api.ok("nodes.cordon", request.clone()).await;
    assert_eq!((&node["schedulable"], &node["cordon"]["reason"]), (&json!(false), &json!("fan")));
    api.ok("nodes.cordon", request).await;
    assert_eq!(world.events("node.cordoned").await.len(), 1);
    // Over what the system set, a person's word has no automatic end.
    world.run("UPDATE nodes SET cordon_exit = 'when healthy', cordoned_by = 'system'", &[]).await;
    let node = api.ok("nodes.cordon", json!({ "node": "gpu-1" })).await;
    assert_eq!((&node["cordon"]["by"], node["cordon"].get("endsWhen")), (&json!("tester"), None));

    for _ in 0..2 {
        assert_eq!(api.ok("nodes.uncordon", json!({ "node": "gpu-1" })).await["schedulable"], true);
    }
    assert_eq!(world.events("node.uncordoned").await.len(), 1);
    let audited = audited(&world).await;
    assert!(audited.contains(&("compute:nodes:cordon".to_owned(), "ok".to_owned())), "{audited:?}");
    assert!(audited.contains(&("compute:nodes:uncordon".to_owned(), "ok".to_owned())), "{audited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncordon_ends_a_quarantine() {
    let world = world().await;
    let api = Api::new(&world);
    world.ready("gpu-1").await;
    world.run("UPDATE nodes SET quarantined_at = compute_now(), quarantine_reason = 'odd'", &[]).await;
    let node = api.ok("nodes.get", json!({ "node": "gpu-1" })).await;
    assert_eq!((&node["quarantineReason"], &node["schedulable"]), (&json!("odd"), &json!(false)));
    let node = api.ok("nodes.uncordon", json!({ "node": "gpu-1" })).await;
    assert_eq!((node.get("quarantineReason"), &node["schedulable"]), (None, &json!(true)));
    let told = world.events("node.quarantined").await;
    assert_eq!(told, [json!({ "quarantined": false, "reason": "released by tester" })]);
    assert!(world.events("node.uncordoned").await.is_empty(), "it was not cordoned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_shown_before_it_is_made() {
    let world = world().await;
    let api = Api::new(&world);
    world.ready("gpu-1").await;
    world.listener.on_node.lock().unwrap().push("reservation/rsv_1".to_owned());
    let shown = api.ok("nodes.drain", json!({ "node": "gpu-1", "dryRun": true })).await;
    assert_eq!((&shown["dryRun"], &shown["holds"]), (&json!(true), &json!(["reservation/rsv_1"])));
    assert!(audited(&world).await.is_empty() && world.events("node.draining").await.is_empty());
    for _ in 0..2 {
        let made = api.ok("nodes.drain", json!({ "node": "gpu-1" })).await;
        assert!(made["node"]["drainingSince"].is_string() && made["node"]["cordon"].is_object());
    }
    assert_eq!(world.events("node.draining").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_only_when_it_is_named_and_holds_nothing() {
    let world = world().await;
    let api = Api::new(&world);
    world.ready("gpu-1").await;
    for method in ["nodes.remove", "nodes.abandon"] {
        let alive = json!({ "node": "gpu-1", "confirm": "gpu-1" });
        assert_eq!(api.call(method, alive).await.code(), "INVALID_STATE");
    }
    let told = api.call("nodes.revoke", json!({ "node": "gpu-1" })).await;
    assert_eq!(
        (told.code(), &told.body["error"]["details"]["confirm"]),
        ("CONFIRMATION_REQUIRED", &json!("gpu-1"))
    );
    let shown = api.ok("nodes.revoke", json!({ "node": "gpu-1", "dryRun": true })).await;
    assert_eq!(shown["node"]["state"], "ready");
    let request = json!({ "node": "gpu-1", "confirm": "gpu-1", "reason": "stolen" });
    for _ in 0..2 {
        let made = api.ok("nodes.revoke", request.clone()).await;
        assert_eq!(
            (&made["node"]["state"], &made["node"]["revokeReason"]),
            (&json!("revoked"), &json!("stolen"))
        );
    }
    assert_eq!(world.count("SELECT count(*) FROM node_certs WHERE revoked_at IS NULL").await, 0);
    let told = json!({ "state": "revoked", "reason": "stolen", "by": "tester" });
    assert_eq!(world.events("node.revoked").await, [told]);
    assert_eq!(api.call("nodes.cordon", json!({ "node": "gpu-1" })).await.code(), "INVALID_STATE");

    world.listener.on_node.lock().unwrap().push("reservation/rsv_1".to_owned());
    let request = json!({ "node": "gpu-1", "confirm": "gpu-1" });
    let told = api.call("nodes.remove", request.clone()).await;
    assert_eq!(
        (told.code(), &told.body["error"]["details"]["holds"]),
        ("CONFLICT", &json!(["reservation/rsv_1"]))
    );
    let told = api.call("nodes.abandon", json!({ "node": "gpu-1" })).await;
    assert_eq!(
        (told.code(), &told.body["error"]["details"]["confirm"]),
        ("CONFIRMATION_REQUIRED", &json!("gpu-1"))
    );
    let removing = Api::may(&world, &["compute:nodes:get", "compute:nodes:remove"]);
    assert_eq!(removing.call("nodes.abandon", request.clone()).await.code(), "ACCESS_DENIED");
    let given_up = api.ok("nodes.abandon", request.clone()).await;
    assert_eq!(given_up["holds"], json!(["reservation/rsv_1"]));
    assert!(audited(&world).await.iter().any(|(action, _)| action == "compute:nodes:abandon"));
    world.listener.on_node.lock().unwrap().clear();
    let made = api.ok("nodes.remove", request).await;
    assert_eq!(made["node"]["state"], "removed");
    let told = world.heard("listener").await;
    assert_eq!(told.last().map(String::as_str), Some("facts pool=false"), "what it offered is taken back");
    // Its name is free for the machine that comes after it.
    world.joined("gpu-1", TokenIs::default()).await;
    assert_eq!(api.ok("nodes.get", json!({ "node": "gpu-1" })).await["state"], "joined");
}

async fn other_pool(world: &World) {
    let pool: model::PoolId = id();
    world
        .run(
            "INSERT INTO pools (pool_id, tenant_id, name, class) VALUES ($1, $2, 'others', 'vps-host')",
            &[&pool.uuid(), &world.root.uuid()],
        )
        .await;
}

async fn diagnoses(world: &World) -> i64 {
    world.count("SELECT count(*) FROM commands WHERE kind = 'diag.nvml'").await
}

async fn diagnosis_fails(world: &World, machine: &Machine) {
    world
        .run(
            "UPDATE commands SET state = 'failed', message = 'no driver', settled_at = compute_now()
             WHERE settled_at IS NULL",
            &[],
        )
        .await;
    world.fleet.observe(machine.node_id()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn adopting_again_repeats_a_diagnosis_that_failed() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    let request = json!({ "node": "gpu-1", "pool": "gpus" });
    assert_eq!(api.ok("nodes.adopt", request.clone()).await["state"], "accepting");
    api.ok("nodes.adopt", request.clone()).await;
    assert_eq!(diagnoses(&world).await, 1, "the first one is under way");
    diagnosis_fails(&world, &machine).await;
    assert_eq!(world.events("node.acceptance-failed").await[0]["reason"], "its diagnosis failed: no driver");
    assert_eq!(api.ok("nodes.adopt", request.clone()).await["state"], "accepting");
    assert_eq!(diagnoses(&world).await, 2);
    assert_eq!(world.events("node.adopted").await.len(), 1);

    other_pool(&world).await;
    let told = api.call("nodes.adopt", json!({ "node": "gpu-1", "pool": "others" })).await;
    assert_eq!(told.code(), "INVALID_STATE");
    world.run("UPDATE nodes SET state = 'ready'", &[]).await;
    api.ok("nodes.adopt", request).await;
    assert_eq!(diagnoses(&world).await, 2, "a ready node is left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_adoption_ends_with_the_diagnosis_however_it_ends() {
    let world = world().await;
    let api = Api::new(&world);
    let machine = world.joined("gpu-1", TokenIs::default()).await;
    api.ok("nodes.adopt", json!({ "node": "gpu-1", "pool": "gpus" })).await;
    diagnosis_fails(&world, &machine).await;
    let before = world.now();
    world.run("UPDATE nodes SET state = 'ready'", &[]).await;
    let request = json!({ "node": "gpu-1", "pool": "gpus", "wait": { "timeoutMs": 30000 } });
    assert_eq!(api.ok("nodes.adopt", request.clone()).await["state"], "ready");
    assert_eq!(world.now(), before, "nothing was waited for");
    world.run("UPDATE nodes SET state = 'accepting'", &[]).await;
    // Asked for anew, and nobody answers: the wait lasts its time.
    assert_eq!(api.ok("nodes.adopt", request).await["state"], "accepting");
    assert_eq!(world.now().since(before).as_secs(), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_adopts_into_a_pool_that_they_may_not_see() {
    let world = world().await;
    world.joined("gpu-1", TokenIs::default()).await;
    let api = Api::new(&world);
    assert_eq!(
        api.call("nodes.adopt", json!({ "node": "gpu-1", "pool": "nothing" })).await.code(),
        "NOT_FOUND"
    );
    let unprivileged = Api::may(&world, &["compute:nodes:get"]);
    let told = unprivileged.call("nodes.adopt", json!({ "node": "gpu-1", "pool": "gpus" })).await;
    assert_eq!(told.code(), "ACCESS_DENIED");
    assert_eq!(diagnoses(&world).await, 0);
}
