//! What callers ask and are told.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use model::InstanceId;
use model::lifecycle::InstanceState;
use serde_json::{Value, json};
use wire::proto::agent::TunnelOp;

use crate::world::{World, client_key, id};

#[tokio::test]
async fn a_ticket_says_who_reaches_what_where() {
    let world = World::new().await;
    let key = client_key();
    let request =
        json!({ "instance": world.instance.to_string(), "op": "tcp", "port": 8080, "clientKey": key });
    let opened = world.call("tunnels.open", request).await.ok();
    assert_eq!(opened["gateway"]["address"], "gw.example.test:8443");
    assert_eq!(opened["nodeKeys"], json!(["09".repeat(32)]));
    assert_eq!(opened["tunnel"]["node"]["name"], "node-1");
    let ticket = BASE64URL.decode(opened["ticket"].as_str().unwrap()).unwrap();
    let (signed, ticket) = wire::tunnel::ticket(&ticket).unwrap();
    assert_eq!(signed.signature.unwrap().value.len(), 64);
    assert_eq!(ticket.tunnel_id, opened["tunnel"]["id"].as_str().unwrap());
    assert_eq!((ticket.node_id, ticket.instance_id), (world.node.to_string(), world.instance.to_string()));
    assert_eq!((ticket.op, ticket.port, ticket.deployment_epoch), (TunnelOp::Tcp.into(), 8080, 3));
    let key = pki::VerifyingKey::from_spki_der(&BASE64URL.decode(key).unwrap()).unwrap();
    assert_eq!(ticket.client_key_sha256.as_ref(), key.pin().as_bytes());
    assert_eq!(ticket.user, "tester");
    assert!(ticket.open_until_ms <= ticket.not_before_ms + 120_000, "a minute, and the clocks may differ");
}

#[tokio::test]
async fn a_request_that_names_no_door_is_refused_by_its_field() {
    let world = World::new().await;
    let instance = world.instance.to_string();
    let key = client_key();
    // A key on another curve, and one with something after it.
    let ed25519 =
        BASE64URL.encode([&hex::decode("302a300506032b6570032100").unwrap()[..], &[1; 32]].concat());
    let longer = BASE64URL.encode([BASE64URL.decode(&key).unwrap(), vec![0]].concat());
    let wrong: [(Value, &str); 9] = [
        (json!({ "instance": instance, "node": "node-1", "op": "console", "clientKey": key }), "/node"),
        (json!({ "op": "console", "clientKey": key }), "/instance"),
        (json!({ "node": "node-1", "op": "tcp", "port": 22, "clientKey": key }), "/op"),
        (json!({ "instance": instance, "op": "tcp", "clientKey": key }), "/port"),
        (json!({ "instance": instance, "op": "tcp", "port": 0, "clientKey": key }), "/port"),
        (json!({ "instance": instance, "op": "console", "port": 1, "clientKey": key }), "/port"),
        (json!({ "instance": instance, "op": "ssh", "clientKey": "AAAA" }), "/clientKey"),
        (json!({ "instance": instance, "op": "ssh", "clientKey": ed25519 }), "/clientKey"),
        (json!({ "instance": instance, "op": "ssh", "clientKey": longer }), "/clientKey"),
    ];
    for (request, field) in wrong {
        let told = world.call("tunnels.open", request.clone()).await;
        assert_eq!(told.code(), "INVALID_INPUT", "{request}: {}", told.body);
        assert!(told.body.to_string().contains(field), "{request}: {}", told.body);
    }
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM tunnels").await, 0);
}

#[tokio::test]
async fn nobody_is_given_a_ticket_for_what_is_not_there_or_not_theirs() {
    let world = World::new().await;
    let at = |instance: InstanceId| json!({ "instance": instance.to_string(), "op": "ssh", "clientKey": client_key() });
    assert_eq!(world.call("tunnels.open", at(id())).await.code(), "NOT_FOUND");
    let node = |node: &str| json!({ "node": node, "op": "console", "clientKey": client_key() });
    assert_eq!(world.call("tunnels.open", node("node-2")).await.code(), "NOT_FOUND");
    world.change(|doors| doors.connected = false);
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "UNAVAILABLE");
    world.change(|doors| (doors.connected, doors.capabilities) = (true, vec!["tunnel.node-console"]));
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "UNSUPPORTED");
    world.change(|doors| doors.instance = Some(InstanceState::Stopped));
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "INVALID_STATE");
    world.change(|doors| doors.deny("compute:instances:exec"));
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "ACCESS_DENIED");
    world.change(|doors| doors.deny("compute:instances:get"));
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "NOT_FOUND");
    let ssh = json!({ "node": "node-1", "op": "ssh", "clientKey": client_key() });
    assert_eq!(world.call("tunnels.open", ssh).await.code(), "UNSUPPORTED", "its daemon does not say so");
    // The right to let oneself into instances is none to nodes, and the other way round.
    world.call("tunnels.open", node("node-1")).await.ok();
    world.change(|doors| doors.denied = ["compute:nodes:exec"].into());
    assert_eq!(world.call("tunnels.open", node("node-1")).await.code(), "ACCESS_DENIED");
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM tunnels").await, 1);
}

#[tokio::test]
async fn tunnels_are_listed_by_what_they_lead_to() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let [issued, open, closed] = [world.open().await, world.taken(lease).await, world.taken(lease).await];
    world.closed(lease, closed, "closed").await;
    let request = json!({ "node": "node-1", "op": "console", "clientKey": client_key() });
    let console = world.call("tunnels.open", request).await.ok()["tunnel"]["id"].as_str().unwrap().to_owned();
    let [issued, open, closed] = [issued, open, closed].map(|id| id.to_string());
    let (instance, node, tenant) =
        (world.instance.to_string(), world.node.to_string(), world.tenant.to_string());
    let none: InstanceId = id();
    let cases: [(Value, Vec<&str>); 8] = [
        (json!({}), vec![&console, &open, &issued]),
        (json!({ "tenant": tenant }), vec![&console, &open, &issued]),
        (json!({ "includeClosed": true }), vec![&console, &closed, &open, &issued]),
        (json!({ "instance": instance }), vec![&open, &issued]),
        (json!({ "node": node }), vec![&console, &open, &issued]),
        (
            json!({ "node": "node-1", "instance": instance, "includeClosed": true }),
            vec![&closed, &open, &issued],
        ),
        (json!({ "node": "node-2" }), vec![]),
        (json!({ "instance": none.to_string() }), vec![]),
    ];
    for (request, wanted) in cases {
        let listed = world.call("tunnels.list", request.clone()).await.ok();
        let ids: Vec<&str> =
            listed["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(ids, wanted, "{request}");
    }
    let first = world.call("tunnels.list", json!({ "limit": 1 })).await.ok();
    let second = world.call("tunnels.list", json!({ "limit": 2, "cursor": first["cursor"] })).await.ok();
    assert_eq!(second["items"][1]["id"], issued.as_str(), "{first} {second}");
}

#[tokio::test]
async fn a_tenant_leaves_room_for_others_whose_instances_are_on_the_node() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    for _ in 0..9 {
        world.open().await;
    }
    let other = "INSERT INTO tenants (tenant_id, parent_id, name) SELECT gen_random_uuid(), tenant_id, 'other' FROM tenants WHERE name = 'root';
         INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime, vcpu,
             memory_mib, disk_gib)
           SELECT gen_random_uuid(), t.tenant_id, i.pool_id, i.flavor_id, i.image_id, i.created_by, i.state, i.desired, i.runtime,
             i.vcpu, i.memory_mib, i.disk_gib
           FROM instances i, tenants t WHERE t.name = 'other';
         INSERT INTO instance_allocations (allocation_id, instance_id, node_id)
           SELECT gen_random_uuid(), i.instance_id, n.node_id FROM instances i JOIN tenants t USING (tenant_id), nodes n
           WHERE t.name = 'other'";
    world.db.batch(other).await;
    let refused = world.call("tunnels.open", world.wanted()).await;
    assert_eq!(refused.code(), "RATE_LIMITED", "{}", refused.body);
    let console = json!({ "node": "node-1", "op": "console", "clientKey": client_key() });
    world.call("tunnels.open", console).await.ok();
    // Tickets that were not used in time, and tunnels that are closed, take no room; open ones do.
    world.db.batch("UPDATE tunnels SET open_until = compute_now() - interval '1 second'").await;
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(world.taken(lease).await);
    }
    assert_eq!(world.call("tunnels.open", world.wanted()).await.code(), "RATE_LIMITED");
    world.closed(lease, open[0], "closed").await;
    world.open().await;
    // Those that come at once are counted one after the other.
    let again = futures::future::join_all((0..4).map(|_| world.call("tunnels.open", world.wanted()))).await;
    assert!(again.iter().all(|told| told.code() == "RATE_LIMITED"), "{again:?}");
}

#[tokio::test]
async fn a_ticket_to_the_ssh_server_of_a_node_names_no_instance_and_takes_the_right_to_the_node() {
    let world = World::new().await;
    world.change(|doors| doors.capabilities = vec!["tunnel.node-ssh"]);
    let request = json!({ "node": "node-1", "op": "ssh", "clientKey": client_key() });
    let opened = world.call("tunnels.open", request.clone()).await.ok();
    let ticket = BASE64URL.decode(opened["ticket"].as_str().unwrap()).unwrap();
    let (_, ticket) = wire::tunnel::ticket(&ticket).unwrap();
    assert_eq!((ticket.instance_id.as_str(), ticket.op, ticket.port), ("", TunnelOp::Ssh.into(), 22));
    world.change(|doors| doors.deny("compute:nodes:exec"));
    assert_eq!(world.call("tunnels.open", request).await.code(), "ACCESS_DENIED");
}
