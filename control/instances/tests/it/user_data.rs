//! What instances are told: who may have them told what, where it is kept, and when it goes.

use std::sync::Arc;

use kernel::Principal;
use kernel::ports::iam::Resource;
use kernel::ports::secrets::{SecretUse, SecretUses};
use kernel::testing::{self, DecideBy, allow_all};
use kit::{OsRng, SystemClock};
use model::{NodeId, SecretId};
use pki::OsEntropy;
use pki::envelope::KekRing;
use secrets::Secrets;
use serde_json::{Value, json};

use crate::cloud::{Cloud, OP, asked, call, instance_of};

const CONFIG: &str = "#cloud-config\npassword: hunter2-and-more\n";

/// With a host that can tell its instances something.
async fn cloud() -> (Cloud, NodeId, Secrets) {
    let (cloud, host) = Cloud::with_host().await;
    cloud.db.batch("UPDATE node_status SET capabilities = capabilities || '{instance.user-data}'").await;
    let ring = KekRing::generate("test".parse().unwrap(), &OsEntropy);
    let clock = Arc::new(SystemClock::new());
    let secrets =
        Secrets::new(cloud.db.store.clone(), Some(ring), clock, Arc::new(OsRng), Arc::new(OsEntropy));
    cloud.instances.set_keeper(Arc::new(secrets.clone()));
    cloud.facts(host, |_| {}).await;
    (cloud, host, secrets)
}

fn with(user_data: &str) -> Value {
    let mut request = asked();
    request["userData"] = user_data.into();
    request
}

/// A secret of the root tenant.
async fn put(cloud: &Cloud, secrets: &Secrets, name: &str) -> SecretId {
    let modules = [secrets::module(secrets)];
    let principal = testing::principal(cloud.root_user, cloud.root_tenant);
    let pipeline = testing::pipeline(&modules, principal, allow_all(), cloud.db.store.clone());
    let put = call(&pipeline, "secrets.put", json!({ "name": name, "value": CONFIG })).await.ok();
    put["id"].as_str().unwrap().parse().unwrap()
}

async fn used(cloud: &Cloud, instance: &Value) -> Option<SecretUse> {
    let (instances, id) = (&cloud.instances, instance_of(instance));
    let used = cloud.db.store.tx(OP, |tx| Box::pin(async move { instances.of_instance(tx, id).await }));
    used.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn user_data_is_kept_as_the_instances_own_and_goes_with_it() {
    let (cloud, host, _) = cloud().await;
    let made = cloud.call("instances.create", with(CONFIG)).await.ok();
    assert_eq!(made["state"], "provisioning", "{made}");
    let entries = cloud.entries(host).await;
    let secret_id = wire::secret::of_reference(&entries[0].user_data).expect("it names a secret");
    let found = used(&cloud, &made).await.unwrap();
    assert_eq!(found.secret_id, Some(secret_id));
    assert_eq!(found.place.map(|(node, _)| node), Some(host));
    assert_eq!(found.place.map(|(_, place)| place.to_string()), Some(entries[0].allocation_id.clone()));
    // It is nowhere in clear.
    let hex: String = CONFIG.bytes().map(|byte| format!("{byte:02x}")).collect();
    for table in ["secrets", "instances", "audit", "outbox_events", "idempotency"] {
        let rows = format!("{table} t WHERE t::text LIKE '%hunter2%' OR t::text LIKE '%{hex}%'");
        assert_eq!(cloud.count(&rows).await, 0, "{table}");
    }
    let stopped = cloud.settle(host, &made).await;
    cloud.change("stop", &stopped).await.ok();
    assert_eq!(cloud.entries(host).await[0].user_data, entries[0].user_data, "as long as it is there");
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.entries(host).await[0].user_data, "", "what goes is told nothing more");
    assert!(used(&cloud, &made).await.unwrap().going);
    assert_eq!(cloud.count("secrets").await, 1, "its host has not said that it is gone");
    cloud.settle(host, &made).await;
    assert_eq!(cloud.count("secrets").await, 0);
    cloud.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_is_the_same_instance_and_other_user_data_is_another_request() {
    let (cloud, ..) = cloud().await;
    let keyed = |text: &str| {
        let mut request = with(text);
        request["idempotencyKey"] = "once".into();
        request
    };
    let made = cloud.call("instances.create", keyed(CONFIG)).await.ok();
    let again = cloud.call("instances.create", keyed(CONFIG)).await.ok();
    assert_eq!(made["id"], again["id"]);
    assert_eq!(cloud.call("instances.create", keyed("#cloud-config\n")).await.code(), "CONFLICT");
    assert_eq!(cloud.count("secrets").await, 1);
    // Nor is a plain hash of it kept, which a guess could be held against.
    let plain = json!({ "flavor": "small", "image": "debian-12", "pool": "vps", "userData": CONFIG });
    let plain = kernel::json::canonical(&plain);
    let found = cloud
        .db
        .store
        .read_one(
            &store::sql(
                "test",
                "SELECT count(*) AS n FROM idempotency WHERE request_sha256 = sha256(convert_to($1, 'UTF8'))",
            ),
            &[&plain],
        )
        .await
        .unwrap();
    assert_eq!(found.get::<_, i64>("n"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_tenant_is_named_and_stays_when_the_instance_goes() {
    let (cloud, host, secrets) = cloud().await;
    let id = put(&cloud, &secrets, "web").await;
    let made = cloud.call("instances.create", with("secret://web")).await.ok();
    assert_eq!(cloud.entries(host).await[0].user_data, wire::secret::reference(id));
    let modules = [secrets::module(&secrets)];
    let principal = testing::principal(cloud.root_user, cloud.root_tenant);
    let keeper = testing::pipeline(&modules, principal, allow_all(), cloud.db.store.clone());
    let delete = json!({ "secret": "web" });
    let told = call(&keeper, "secrets.delete", delete.clone()).await;
    assert_eq!(told.code(), "CONFLICT");
    assert!(told.body.to_string().contains(made["id"].as_str().unwrap()), "{}", told.body);
    cloud.change("delete", &made).await.ok();
    cloud.settle(host, &made).await;
    assert_eq!(cloud.count("secrets").await, 1);
    call(&keeper, "secrets.delete", delete).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_make_instances_may_not_therefore_have_them_read_secrets() {
    let (cloud, _, secrets) = cloud().await;
    put(&cloud, &secrets, "web").await;
    let user = cloud.root_user;
    let modules = |authorization| {
        let modules = [capacity::module(&cloud.capacity), instances::module(&cloud.instances, None)];
        let principal = testing::principal(user, cloud.root_tenant);
        testing::pipeline(&modules, principal, authorization, cloud.db.store.clone())
    };
    let no_secrets = |_: &Principal, action: &str, _: &Resource| action != "compute:secrets:manage";
    let caller = modules(Arc::new(DecideBy(no_secrets)));
    for name in ["web", "none"] {
        let told = call(&caller, "instances.create", with(&format!("secret://{name}"))).await;
        assert_eq!(told.code(), "ACCESS_DENIED", "{}", told.body);
    }
    assert_eq!(call(&caller, "instances.create", with(CONFIG)).await.code(), "ok", "its own text is its own");
    let on_tenant = move |_: &Principal, action: &str, resource: &Resource| {
        action != "compute:secrets:manage" || resource.name.starts_with("compute-tenant/")
    };
    let caller = modules(Arc::new(DecideBy(on_tenant)));
    assert_eq!(call(&caller, "instances.create", with("secret://web")).await.code(), "ok");
    assert_eq!(call(&caller, "instances.create", with("secret://none")).await.code(), "INVALID_INPUT");
    // Of another tenant: none of this one's.
    let below = cloud.caller(allow_all());
    let told = call(&below, "instances.create", with("secret://web")).await;
    assert_ne!(told.code(), "ok", "{}", told.body);
    assert_eq!(cloud.count("instances").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_or_no_reference_is_told_with_what_to_do() {
    let (cloud, ..) = cloud().await;
    let long = cloud.call("instances.create", with(&"x".repeat(64 * 1024 + 1))).await;
    assert_eq!(long.code(), "INVALID_INPUT");
    let said = long.body["error"]["message"].as_str().unwrap();
    assert!(said.contains("65537 bytes") && said.contains("better-compute secrets put"), "{said}");
    assert!(!said.contains("xxx"));
    for odd in ["secret://", "secret://Not_A_Name", ""] {
        assert_eq!(cloud.call("instances.create", with(odd)).await.code(), "INVALID_INPUT", "{odd:?}");
    }
    assert_eq!(cloud.count("instances").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_before_is_given_no_instance_that_is_to_be_told_something() {
    let (cloud, host) = Cloud::with_host().await;
    let refused = cloud.call("instances.create", with(CONFIG)).await;
    assert_eq!(refused.code(), "UNSUPPORTED", "nobody keeps it");
    let ring = KekRing::generate("test".parse().unwrap(), &OsEntropy);
    let clock = Arc::new(SystemClock::new());
    let secrets =
        Secrets::new(cloud.db.store.clone(), Some(ring), clock, Arc::new(OsRng), Arc::new(OsEntropy));
    cloud.instances.set_keeper(Arc::new(secrets));
    let none = cloud.call("instances.create", with(CONFIG)).await;
    assert_eq!(none.code(), "CAPACITY_UNAVAILABLE");
    assert!(none.body.to_string().contains("does not advertise instance.user-data"), "{}", none.body);
    assert!(cloud.entries(host).await.is_empty());
    assert_eq!(cloud.count("secrets").await, 0);
    cloud.call("instances.create", asked()).await.ok();
}
