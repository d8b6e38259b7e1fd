//! Images from their announcement to their end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use instances::{IMAGE_QUEUE, ImageFolder};
use kernel::Principal;
use kernel::module::Module;
use kernel::ports::iam::Resource;
use kernel::ports::images::ImageStore;
use kernel::testing::{self, DecideBy, Told, allow_all};
use model::{ImageId, TenantId};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::cloud::{Cloud, asked, call};

/// A cloud with a store for images.
struct Gallery {
    cloud: Cloud,
    module: Module,
    store: Arc<ImageFolder>,
    _dir: TempDir,
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wanted(name: &str, content: &[u8]) -> Value {
    json!({ "name": name, "sha256": sha256(content), "sizeBytes": content.len(), "format": "raw" })
}

impl Gallery {
    async fn new() -> Self {
        Self::keeping_free(0).await
    }

    async fn keeping_free(bytes: u64) -> Self {
        let cloud = Cloud::empty().await;
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageFolder::keeping_free(dir.path(), bytes));
        let module = instances::module(&cloud.instances, Some(store.clone()));
        Self { cloud, module, store, _dir: dir }
    }

    async fn import(&self, tenant: TenantId, name: &str, content: &[u8]) -> Value {
        let mut request = wanted(name, content);
        request["tenant"] = tenant.to_string().into();
        self.cloud.call("images.import", request).await.ok()
    }

    /// The code of what it answers, or `ok` with how many bytes there are.
    async fn put(&self, image: &Value, offset: u64, content: &[u8]) -> (String, u64) {
        self.put_until(image, offset, content, None).await
    }

    /// A line that breaks behind the content.
    async fn put_until(
        &self,
        image: &Value,
        offset: u64,
        content: &[u8],
        breaks: Option<std::io::ErrorKind>,
    ) -> (String, u64) {
        let pieces = content.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece)));
        let pieces: Vec<_> = pieces.chain(breaks.map(|kind| Err(kind.into()))).collect();
        let principal = testing::principal(self.cloud.user, self.cloud.tenant);
        let call = testing::call("images.import", principal, allow_all());
        let id = image["id"].as_str().unwrap();
        let bytes = futures::stream::iter(pieces).boxed();
        match self.module.contents[0].put(&call, id, offset, bytes).await {
            Ok(answer) => ("ok".to_owned(), answer["receivedBytes"].as_u64().unwrap()),
            Err(kernel::Fault::Refused(error)) => (error.code.name().to_owned(), 0),
            Err(fault) => panic!("{fault:?}"),
        }
    }

    async fn look(&self, image: &Value) -> Option<Duration> {
        let queue = self.module.queues.iter().find(|queue| queue.queue() == IMAGE_QUEUE).unwrap();
        let id: ImageId = image["id"].as_str().unwrap().parse().unwrap();
        queue.handle(&id.uuid().hyphenated().to_string()).await.expect("it is looked at")
    }

    async fn state(&self, image: &Value) -> String {
        let image = self.cloud.call("images.get", json!({ "id": image["id"] })).await.ok();
        image["state"].as_str().unwrap().to_owned()
    }

    async fn delete(&self, image: &Value) -> Told {
        self.cloud.call("images.delete", json!({ "image": image["id"] })).await
    }

    async fn holds(&self, content: &[u8]) -> bool {
        let read = self.store.read(Sha256::digest(content).into(), 0).await.unwrap();
        match read {
            None => false,
            Some(read) => {
                let pieces: Vec<_> = read.bytes.collect().await;
                let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap()).collect();
                assert_eq!(bytes, content);
                true
            }
        }
    }
}

fn message(told: &Told) -> &str {
    told.body["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn an_image_goes_when_no_instance_is_made_of_it_and_its_name_is_free_again() {
    let (cloud, host) = Cloud::with_host().await;
    let ada = cloud.caller(allow_all());
    let mut named = asked();
    named["name"] = json!("web");
    let made = call(&ada, "instances.create", named).await.ok();
    let by_name = json!({ "image": "debian-12" });
    let refused = cloud.call("images.delete", by_name.clone()).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    assert!(message(&refused).contains("1 instances: web of tenant acme;"), "{}", message(&refused));
    let details = &refused.body["error"]["details"];
    assert_eq!((&details["instances"], &details["count"]), (&json!([made["id"]]), &json!(1)));
    assert_eq!(call(&ada, "images.delete", by_name.clone()).await.code(), "NOT_FOUND", "it is not hers");

    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.call("images.delete", by_name.clone()).await.code(), "INVALID_STATE", "its host has it");
    cloud.settle(host, &made).await;
    let deleted = cloud.call("images.delete", by_name.clone()).await.ok();
    assert_eq!(deleted["state"], "deleted");
    assert!(deleted["deletedAt"].is_string(), "{deleted}");
    assert_eq!(cloud.call("images.delete", by_name).await.code(), "NOT_FOUND");
    let again = cloud.call("images.delete", json!({ "image": deleted["id"] })).await.ok();
    assert_eq!(again["deletedAt"], deleted["deletedAt"]);
    assert_eq!(cloud.events("image.deleted").await, 1);

    assert_eq!(cloud.call("instances.create", asked()).await.code(), "NOT_FOUND");
    assert_eq!(cloud.get(&made).await["image"]["name"], "debian-12", "history reads as before");
    assert_eq!(cloud.call("images.list", json!({})).await.ok()["items"], json!([]));
    let all = cloud.call("images.list", json!({ "includeDeleted": true })).await.ok();
    assert_eq!(all["items"][0]["id"], deleted["id"]);
    let anew = json!({
        "name": "debian-12", "url": "https://cloud.example.com/x", "sha256": "cd".repeat(32), "format": "raw",
    });
    cloud.call("images.create", anew.clone()).await.ok();
    assert_eq!(cloud.call("images.create", anew).await.code(), "CONFLICT");
    cloud.call("instances.create", asked()).await.ok();
}

#[tokio::test]
async fn instances_that_the_caller_may_not_see_are_counted_and_not_named() {
    let (cloud, _) = Cloud::with_host().await;
    let ada = cloud.caller(allow_all());
    let own = json!({
        "name": "own", "url": "https://acme.example.com/own", "sha256": "cd".repeat(32), "format": "raw",
    });
    call(&ada, "images.create", own).await.ok();
    let mut request = asked();
    request["image"] = json!("own");
    let made = call(&ada, "instances.create", request).await.ok();
    let blind = |_: &Principal, action: &str, _: &Resource| action != "compute:instances:get";
    let blind = cloud.caller(Arc::new(DecideBy(blind)));
    let refused = call(&blind, "images.delete", json!({ "image": "own" })).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    assert!(message(&refused).contains("1 that you may not see"), "{}", message(&refused));
    assert!(!refused.body.to_string().contains(made["id"].as_str().unwrap()), "{}", refused.body);
    let none = |_: &Principal, action: &str, _: &Resource| action != "compute:images:delete";
    let none = cloud.caller(Arc::new(DecideBy(none)));
    assert_eq!(call(&none, "images.delete", json!({ "image": "own" })).await.code(), "ACCESS_DENIED");
}

#[tokio::test]
async fn of_a_create_and_a_delete_at_once_one_finds_the_other() {
    let cloud = Cloud::with_policy(json!({})).await;
    cloud.host("host-0").await;
    let (mut created, mut deleted) = (0, 0);
    for round in 0..24 {
        let name = format!("image-{round}");
        let image = json!({
            "name": name, "url": "https://a.example.com/x", "sha256": "cd".repeat(32), "format": "raw",
        });
        cloud.call("images.create", image).await.ok();
        let mut request = asked();
        request["image"] = json!(name);
        let create = async || {
            if round % 3 == 0 {
                tokio::task::yield_now().await;
            }
            cloud.call("instances.create", request.clone()).await
        };
        let delete = cloud.call("images.delete", json!({ "image": name }));
        let (one, two, gone) = futures::join!(create(), create(), delete);
        let live = cloud
            .count(&format!(
                "instances i JOIN images g USING (image_id) WHERE g.name = '{name}' AND i.ended_at IS NULL"
            ))
            .await;
        match gone.code() {
            "ok" => {
                assert_eq!(live, 0, "round {round}");
                assert_eq!((one.code(), two.code()), ("NOT_FOUND", "NOT_FOUND"), "round {round}");
                deleted += 1;
            }
            code => {
                assert!(["INVALID_STATE", "UNAVAILABLE"].contains(&code), "{code}");
                assert!(live > 0, "round {round}");
                created += 1;
            }
        }
    }
    assert_eq!(created + deleted, 24);
    let broken =
        "instances i JOIN images g USING (image_id) WHERE i.ended_at IS NULL AND g.deleted_at IS NOT NULL";
    assert_eq!(cloud.count(broken).await, 0);
}

#[tokio::test]
async fn a_transaction_that_makes_an_instance_holds_its_image_until_it_ends() {
    let (cloud, _) = Cloud::with_host().await;
    let made = cloud.create().await;
    let image = made["image"]["id"].clone();
    // Another instance of the image in a transaction that has not ended: the deletion waits, and is refused then.
    let (begun, waits) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let (begun, waits) = (&begun, &waits);
    let copies = store::sql(
        "test_copy",
        "INSERT INTO instances (instance_id, tenant_id, pool_id, flavor_id, image_id, created_by, state, desired, runtime, vcpu,
           memory_mib, disk_gib)
         SELECT gen_random_uuid(), tenant_id, pool_id, flavor_id, image_id, created_by, 'scheduling', 'running', runtime, vcpu,
           memory_mib, disk_gib FROM instances LIMIT 1",
    );
    let copy = cloud.db.store.tx(crate::cloud::OP, |tx| {
        let copies = &copies;
        Box::pin(async move {
            tx.execute(copies, &[]).await?;
            begun.notify_one();
            waits.notified().await;
            Ok::<_, store::StoreError>(())
        })
    });
    let delete = async {
        begun.notified().await;
        cloud
            .db
            .batch("UPDATE instances SET state = 'deleted', desired = 'deleted', ended_at = compute_now()")
            .await;
        let deleting = cloud.call("images.delete", json!({ "image": image }));
        let ends = async {
            let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%images%'";
            testkit::eventually(Duration::from_secs(20), || async {
                if cloud.count(waiting).await > 0 { Ok(()) } else { Err("it does not wait yet") }
            })
            .await;
            waits.notify_one();
        };
        futures::join!(deleting, ends).0
    };
    let (copied, deleted) = futures::join!(copy, delete);
    copied.expect("it is made");
    assert_eq!(deleted.code(), "INVALID_STATE", "{}", deleted.body);
}

#[tokio::test]
async fn bytes_stay_while_any_image_has_them_and_go_with_the_last() {
    let gallery = Gallery::new().await;
    let content = vec![7u8; 5000];
    let (one, two) = (gallery.cloud.tenant, gallery.cloud.root_tenant);
    let first = gallery.import(one, "first", &content).await;
    assert_eq!(gallery.put(&first, 0, &content).await, ("ok".to_owned(), 5000));
    assert_eq!(gallery.state(&first).await, "ready");

    // Another tenant that knows the digest has nothing yet.
    let second = gallery.import(two, "second", &content).await;
    assert_eq!(gallery.put(&second, 0, &[]).await, ("ok".to_owned(), 0));
    assert_eq!(gallery.state(&second).await, "awaited");
    assert_eq!(gallery.put(&second, 0, &[8; 5000]).await.0, "INVALID_INPUT");
    assert_eq!(gallery.put(&second, 0, &content).await, ("ok".to_owned(), 5000));
    assert_eq!(gallery.state(&second).await, "ready");
    // And its own need not come again.
    let third = gallery.import(two, "third", &content).await;
    assert_eq!(gallery.put(&third, 0, &[]).await, ("ok".to_owned(), 5000));
    assert_eq!(gallery.state(&third).await, "ready");

    for (image, stays) in [(&first, true), (&third, true), (&second, false)] {
        gallery.delete(image).await.ok();
        for _ in 0..2 {
            assert!(gallery.look(image).await.is_some(), "once more, for whoever sent it meanwhile");
            assert_eq!(gallery.holds(&content).await, stays);
        }
        assert_eq!(gallery.put(image, 0, &content).await.0, "INVALID_STATE");
    }
    gallery.cloud.db.batch("UPDATE images SET deleted_at = compute_now() - interval '8 hours'").await;
    assert_eq!(gallery.look(&first).await, None);
}

#[tokio::test]
async fn what_a_shared_image_has_need_not_come_again() {
    let gallery = Gallery::new().await;
    let content = vec![7u8; 500];
    let mut request = wanted("common", &content);
    request["shared"] = json!(true);
    let common = gallery.cloud.call("images.import", request).await.ok();
    gallery.put(&common, 0, &content).await;
    let own = gallery.import(gallery.cloud.tenant, "own", &content).await;
    assert_eq!(gallery.put(&own, 0, &[]).await, ("ok".to_owned(), 500));
    let longer = json!({
        "name": "longer", "sha256": sha256(&content), "sizeBytes": 501, "format": "raw",
        "tenant": gallery.cloud.tenant.to_string(),
    });
    let longer = gallery.cloud.call("images.import", longer).await.ok();
    assert_eq!(gallery.put(&longer, 0, &[]).await, ("ok".to_owned(), 0), "it is announced as another");
}

#[tokio::test]
async fn an_image_whose_bytes_stop_coming_is_given_up() {
    let gallery = Gallery::new().await;
    let content = vec![9u8; 5000];
    let image = gallery.import(gallery.cloud.tenant, "half", &content).await;
    assert!(gallery.look(&image).await.is_some());
    let later = || {
        gallery.cloud.db.batch("UPDATE images SET seen_at = seen_at - interval '25 hours' WHERE url IS NULL")
    };
    later().await;
    assert_eq!(gallery.put(&image, 0, &content[..3000]).await, ("ok".to_owned(), 3000));
    assert!(gallery.look(&image).await.is_some(), "more has come");
    assert_eq!(gallery.state(&image).await, "awaited");
    later().await;
    for _ in 0..2 {
        gallery.look(&image).await;
        assert_eq!(gallery.state(&image).await, "deleted");
    }
    assert_eq!(gallery.cloud.events("image.deleted").await, 1);
    assert_eq!(gallery.put(&image, 3000, &content[3000..]).await.0, "INVALID_STATE");
    let anew = gallery.import(gallery.cloud.tenant, "half", &content).await;
    assert_eq!(gallery.put(&anew, 0, &content).await, ("ok".to_owned(), 5000));
    assert_eq!(gallery.look(&anew).await, None, "it is there to stay");
    later().await;
    assert_eq!(gallery.look(&anew).await, None);
    assert_eq!(gallery.state(&anew).await, "ready");
}

#[tokio::test]
async fn a_line_that_stalls_or_breaks_is_gone_on_with() {
    let gallery = Gallery::new().await;
    let content = vec![5u8; 5000];
    let image = gallery.import(gallery.cloud.tenant, "slow", &content).await;
    let stalls = gallery.put_until(&image, 0, &content[..2000], Some(std::io::ErrorKind::TimedOut)).await;
    assert_eq!(stalls.0, "UNAVAILABLE", "the same call may succeed later");
    let breaks = std::io::ErrorKind::ConnectionReset;
    let broken = gallery.put_until(&image, 2000, &content[2000..3000], Some(breaks)).await;
    assert_eq!(broken.0, "INVALID_INPUT");
    assert_eq!(gallery.put(&image, 2000, &content[2000..]).await.0, "CONFLICT", "it is further than that");
    assert_eq!(gallery.put(&image, 3000, &content[3000..]).await, ("ok".to_owned(), 5000));
    assert_eq!(gallery.state(&image).await, "ready");
}

#[tokio::test]
async fn a_store_without_room_says_so_and_takes_nothing() {
    let gallery = Gallery::keeping_free(u64::MAX).await;
    let image = gallery.import(gallery.cloud.tenant, "large", b"large").await;
    assert_eq!(gallery.put(&image, 0, b"large").await.0, "CAPACITY_UNAVAILABLE");
    assert_eq!(gallery.state(&image).await, "awaited");
}

#[tokio::test]
async fn bytes_that_went_before_their_image_arrived_are_sent_again() {
    let gallery = Gallery::new().await;
    let content = vec![3u8; 500];
    let first = gallery.import(gallery.cloud.tenant, "first", &content).await;
    gallery.put(&first, 0, &content).await;
    let second = gallery.import(gallery.cloud.tenant, "second", &content).await;
    // As when they are removed between the look at the store and the word that they are there.
    gallery.store.remove(Sha256::digest(&content).into()).await.unwrap();
    assert_eq!(gallery.put(&second, 0, &content[..100]).await, ("ok".to_owned(), 100));
    assert_eq!(gallery.put(&second, 100, &content[100..]).await, ("ok".to_owned(), 500));
    assert_eq!(gallery.state(&second).await, "ready");
    assert!(gallery.holds(&content).await);
}

#[tokio::test]
async fn a_tenants_images_are_bounded_by_its_quota_and_by_those_that_do_not_come() {
    let gallery = Gallery::new().await;
    let tenant = gallery.cloud.tenant.to_string();
    let quota = json!({ "tenant": tenant, "resource": "imageGiB", "amount": 3 });
    gallery.cloud.call("quotas.set", quota).await.ok();
    let one = gallery.import(gallery.cloud.tenant, "one", b"one").await;
    let large = |bytes: u64| json!({ "name": "large", "sha256": "ab".repeat(32), "sizeBytes": bytes, "format": "raw", "tenant": tenant });
    let refused = gallery.cloud.call("images.import", large((2 << 30) + 1)).await;
    assert_eq!(refused.code(), "QUOTA_EXCEEDED");
    let details = &refused.body["error"]["details"];
    assert_eq!(
        (&details["resource"], &details["used"], &details["wanted"], &details["limit"]),
        (&json!("imageGiB"), &json!(1), &json!(3), &json!(3))
    );
    gallery.cloud.call("images.import", large(2 << 30)).await.ok();
    let quotas = gallery.cloud.call("quotas.list", json!({ "tenant": tenant })).await.ok();
    assert_eq!(quotas["items"][0]["used"], 3);
    gallery.cloud.assert_sound().await;
    // One at an address takes no room here.
    let at_address = json!({
        "name": "far", "url": "https://a.example.com/x", "sha256": "ab".repeat(32), "format": "raw", "tenant": tenant,
    });
    gallery.cloud.call("images.create", at_address).await.ok();
    gallery.delete(&one).await.ok();
    gallery.import(gallery.cloud.tenant, "other", b"other").await;

    let root = gallery.cloud.root_tenant;
    for number in 0..16 {
        gallery.import(root, &format!("image-{number}"), b"never").await;
    }
    let refused = gallery.cloud.call("images.import", wanted("image-16", b"never")).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    assert!(message(&refused).contains("wait for their bytes"), "{}", message(&refused));
    let images = gallery.cloud.call("images.list", json!({ "limit": 1 })).await.ok();
    gallery.delete(&images["items"][0]).await.ok();
    gallery.cloud.call("images.import", wanted("image-16", b"never")).await.ok();
}
