//! What goes with a tenant.

use kernel::ports::tenants::Belongings;
use kernel::testing::allow_all;
use serde_json::json;

use crate::cloud::{Cloud, OP, asked, call};

impl Cloud {
    async fn left(&self) -> Vec<String> {
        let (instances, tenant) = (&self.instances, self.tenant);
        self.db.store.tx(OP, |tx| Box::pin(instances.left(tx, tenant))).await.unwrap()
    }
}

#[tokio::test]
async fn a_tenants_instances_go_by_their_hosts_word_and_then_its_images_and_nothing_of_others() {
    let (cloud, host) = Cloud::with_host().await;
    let caller = &cloud.caller(allow_all());
    let image = json!({
        "name": "own", "url": "https://cloud.example.com/own.qcow2", "sha256": "cd".repeat(32), "format": "qcow2",
    });
    call(caller, "images.create", image.clone()).await.ok();
    let others = cloud.create().await;
    let mut of_own = asked();
    of_own["image"] = "own".into();
    let running = call(caller, "instances.create", of_own.clone()).await.ok();
    cloud.settle(host, &running).await;
    let huge = json!({ "pool": "vps", "name": "huge", "vcpu": 64, "memoryMiB": 512, "diskGiB": 10 });
    cloud.call("flavors.create", huge).await.ok();
    of_own["flavor"] = "huge".into();
    let waiting = call(caller, "instances.create", of_own).await.ok();
    assert_eq!(waiting["state"], "scheduling");
    assert_eq!(cloud.left().await, ["2 instances", "1 image"]);

    // Asking twice is asking once.
    for _ in 0..2 {
        cloud.instances.clear(cloud.tenant).await.unwrap();
        assert_eq!(
            cloud.left().await,
            ["1 instance", "1 image"],
            "one is on its host until that says otherwise"
        );
        let told = "outbox_events WHERE kind = 'instance.deleting' AND data->>'reason' = 'tenant deleted'";
        assert_eq!(cloud.count(told).await, 2);
    }
    cloud.settle(host, &running).await;
    assert_eq!(cloud.left().await, ["1 image"]);
    cloud.instances.clear(cloud.tenant).await.unwrap();
    assert!(cloud.left().await.is_empty());
    assert_eq!(cloud.events("image.deleted").await, 1);
    assert_eq!(cloud.get(&others).await["desiredState"], "running");
    assert_eq!(cloud.count("images WHERE deleted_at IS NULL").await, 1);
    cloud.assert_sound().await;

    let mark = "UPDATE tenants SET deleting_at = compute_now() WHERE name = 'acme'";
    cloud.db.batch(mark).await;
    for (method, request) in [("instances.create", asked()), ("images.create", image)] {
        let told = call(caller, method, request).await;
        assert_eq!(told.code(), "INVALID_STATE", "{method}: {}", told.body);
    }
    assert!(cloud.left().await.is_empty());
}
