//! Addresses of a pool's network.

use serde_json::json;

use crate::cloud::{Cloud, asked};

#[tokio::test]
async fn every_instance_has_an_address_of_its_own_until_there_are_none() {
    let (cloud, host) = Cloud::with_host().await;
    let mut made = Vec::new();
    for last in 2..=6 {
        let one = cloud.create().await;
        assert_eq!(one["addresses"], json!([format!("10.0.0.{last}")]), "the gateway's is nobody's");
        made.push(one);
    }
    let refused = cloud.call("instances.create", asked()).await;
    assert_eq!(refused.code(), "CAPACITY_UNAVAILABLE");
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("no free address"), "{message}");
    assert_eq!((cloud.count("instances").await, cloud.count("instance_holds").await), (5, 15));

    cloud.change("delete", &made[1]).await.ok();
    assert_eq!(
        cloud.call("instances.create", asked()).await.code(),
        "CAPACITY_UNAVAILABLE",
        "it is leased still"
    );
    cloud.settle(host, &made[1]).await;
    assert_eq!(cloud.create().await["addresses"], json!(["10.0.0.3"]));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn an_address_that_was_given_back_is_the_last_in_line() {
    let (cloud, host) = Cloud::with_host().await;
    let gone = async |one| {
        cloud.change("delete", &one).await.ok();
        cloud.settle(host, &one).await;
    };
    let kept = cloud.create().await;
    assert_eq!(kept["addresses"], json!(["10.0.0.2"]));
    for last in [3, 4, 5, 6, 3, 4] {
        let one = cloud.create().await;
        assert_eq!(one["addresses"], json!([format!("10.0.0.{last}")]));
        gone(one).await;
    }
    // Another network, in which the last one is none of its addresses.
    gone(kept).await;
    let network = json!({ "subnet": "10.7.0.0/29", "gateway": "10.7.0.1" });
    cloud.call("pools.update", json!({ "pool": "vps", "policy": { "network": network } })).await.ok();
    assert_eq!(cloud.create().await["addresses"], json!(["10.7.0.2"]));
    cloud.assert_sound().await;
}

#[tokio::test]
async fn where_each_host_has_the_network_to_itself_so_do_its_instances() {
    let network = json!({ "subnet": "10.0.0.0/30", "gateway": "10.0.0.1", "scope": "host", "bridge": "vm0" });
    let cloud = Cloud::with_policy(json!({ "network": network })).await;
    let hosts = [cloud.host("host-0").await, cloud.host("host-1").await];
    let first = cloud.create().await;
    let booked = first["node"]["name"].as_str().unwrap();
    let other = if booked == "host-0" { hosts[1] } else { hosts[0] };
    let cordon = format!("UPDATE nodes SET cordoned_at = compute_now() WHERE node_id <> '{}'", other.uuid());
    cloud.db.batch(&cordon).await;
    cloud.db.batch("UPDATE node_capacity SET updated_at = compute_now()").await;
    let second = cloud.create().await;
    assert_ne!(first["node"], second["node"]);
    assert_eq!((&first["addresses"], &second["addresses"]), (&json!(["10.0.0.2"]), &json!(["10.0.0.2"])));
    assert_eq!(cloud.entries(other).await[0].nics[0].bridge, "vm0");
    assert_eq!(cloud.call("instances.create", asked()).await.code(), "CAPACITY_UNAVAILABLE");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn the_database_lets_no_two_have_one_address() {
    let (cloud, _) = Cloud::with_host().await;
    cloud.create().await;
    cloud.create().await;
    let twice = store::sql("test", "UPDATE ip_leases SET address = '10.0.0.2'");
    let refused = cloud.db.store.execute(&twice, &[]).await.unwrap_err();
    assert!(refused.is_unique("ip_leases_in_pool"), "{refused}");
    let elsewhere = store::sql("test", "UPDATE ip_leases SET node_id = gen_random_uuid()");
    let refused = cloud.db.store.execute(&elsewhere, &[]).await.unwrap_err();
    assert!(refused.is_foreign_key("ip_leases_allocation_id_node_id_fkey"), "{refused}");
}

#[tokio::test]
async fn without_a_network_instances_ask_for_their_address_themselves() {
    let cloud = Cloud::with_policy(json!({})).await;
    let host = cloud.host("host-0").await;
    let made = cloud.create().await;
    assert_eq!(made["addresses"], json!([]));
    let nic = cloud.entries(host).await.remove(0).nics.remove(0);
    assert_eq!((nic.bridge.as_str(), nic.addresses.len()), ("br0", 0));
}

#[tokio::test]
async fn a_network_is_checked_when_it_is_given() {
    let cloud = Cloud::empty().await;
    let pool = |class: &str, network: serde_json::Value| json!({ "name": "other", "class": class, "policy": { "network": network } });
    let bad = [
        pool("gpu", json!({ "subnet": "10.0.0.0/24" })),
        pool("vps-host", json!({ "subnet": "10.0.0.1/24" })),
        pool("vps-host", json!({ "subnet": "10.0.0.0/24", "gateway": "10.0.1.1" })),
        pool("vps-host", json!({ "subnet": "10.0.0.0/24", "bridge": "bcbr0" })),
        pool("vps-host", json!({ "subnet": "10.0.0.0/24", "bridge": "br 0" })),
        pool("vps-host", json!({ "subnet": "10.0.0.0/24", "nameservers": ["dns"] })),
    ];
    for request in bad {
        assert_eq!(cloud.call("pools.create", request.clone()).await.code(), "INVALID_INPUT", "{request}");
    }
    let good = json!({ "subnet": "10.0.0.0/24", "gateway": "10.0.0.254", "nameservers": ["9.9.9.9"], "scope": "host" });
    let made = cloud.call("pools.create", pool("vps-host", good.clone())).await.ok();
    assert_eq!(made["policy"]["network"], good);
}

#[tokio::test]
async fn a_network_stays_as_it_is_while_addresses_of_it_are_leased() {
    let (cloud, host) = Cloud::with_host().await;
    let one = cloud.create().await;
    let update = |network: serde_json::Value| json!({ "pool": "vps", "policy": { "network": network } });
    let other = json!({ "subnet": "10.0.0.0/28", "gateway": "10.0.0.1" });
    let refused = cloud.call("pools.update", update(other.clone())).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    let none = cloud.call("pools.update", json!({ "pool": "vps", "policy": {} })).await;
    assert_eq!(none.code(), "INVALID_STATE");
    // What guests are told at their making may be another from now on.
    let nameservers = json!({ "subnet": "10.0.0.0/29", "gateway": "10.0.0.1", "nameservers": ["9.9.9.9"] });
    cloud.call("pools.update", update(nameservers)).await.ok();
    cloud.change("delete", &one).await.ok();
    assert_eq!(cloud.call("pools.update", update(other.clone())).await.code(), "INVALID_STATE");
    cloud.settle(host, &one).await;
    cloud.call("pools.update", update(other)).await.ok();
}

/// A card's MAC is the end of its instance's id.
#[tokio::test]
async fn no_two_instances_of_a_pool_have_one_mac_while_they_live() {
    let (cloud, _) = Cloud::with_host().await;
    cloud.create().await;
    let copy = "INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime,
           vcpu, memory_mib, disk_gib)
         SELECT ('00000000-0000-7000-8000-00' || right(instance_id::text, 10))::uuid, tenant_id, pool_id, flavor_id, image_id,
           created_by, 'scheduling', 'running', runtime, vcpu, memory_mib, disk_gib FROM instances LIMIT 1";
    let copy = store::sql("test_copy", copy);
    let refused = cloud.db.store.execute(&copy, &[]).await.expect_err("another has that end of an id");
    assert!(refused.is_unique("instances_one_mac"), "{refused:?}");
    cloud
        .db
        .batch("UPDATE instances SET state = 'deleted', desired = 'deleted', ended_at = compute_now()")
        .await;
    cloud.db.store.execute(&copy, &[]).await.expect("the first one is gone");
}
