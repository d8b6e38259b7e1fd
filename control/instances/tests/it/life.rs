//! An instance from its create to its end.

use serde_json::json;
use wire::proto::agent::{DesiredInstance as Desired, InstanceObservedState as Seen};

use crate::cloud::{Cloud, asked, instance_of};

#[tokio::test]
async fn an_instance_runs_stops_starts_and_goes_by_its_hosts_word() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    assert_eq!((&made["state"], &made["desiredState"]), (&json!("provisioning"), &json!("running")));
    assert_eq!((&made["node"]["name"], &made["addresses"]), (&json!("host-0"), &json!(["10.0.0.2"])));
    let entries = cloud.entries(host).await;
    assert_eq!((entries.len(), entries[0].desired(), entries[0].revision), (1, Desired::Running, 1));
    assert_eq!(entries[0].nics[0].addresses, ["10.0.0.2/29"]);
    assert_eq!(entries[0].runtime, "libvirt-kvm");
    assert_eq!(cloud.holds(host).await, [format!("instance {} (provisioning)", instance_of(&made))]);

    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    let stopping = cloud.change("stop", &made).await.ok();
    assert_eq!((&stopping["state"], &stopping["desiredState"]), (&json!("stopping"), &json!("stopped")));
    assert_eq!(cloud.settle(host, &made).await["state"], "stopped");
    assert_eq!(cloud.change("start", &made).await.ok()["state"], "starting");
    assert_eq!(cloud.settle(host, &made).await["state"], "running");

    let deleting = cloud.change("delete", &made).await.ok();
    assert_eq!((&deleting["state"], &deleting["desiredState"]), (&json!("deleting"), &json!("deleted")));
    assert_eq!(cloud.entries(host).await[0].desired(), Desired::Deleted);
    assert_eq!(cloud.count("host_bookings").await, 1, "booked until its host says otherwise");
    let gone = cloud.settle(host, &made).await;
    assert_eq!((&gone["state"], &gone["addresses"]), (&json!("deleted"), &json!([])));
    assert!(cloud.entries(host).await.is_empty());
    assert!(cloud.holds(host).await.is_empty());
    cloud.assert_empty().await;
    assert_eq!(cloud.change("delete", &made).await.ok()["state"], "deleted", "it is gone already");

    let kinds = "SELECT string_agg(kind, ' ' ORDER BY batch_id, place) FROM outbox_events WHERE kind LIKE 'instance.%'";
    assert_eq!(
        cloud.db.scalar_text(kinds).await,
        "instance.created instance.scheduled instance.running instance.stopping instance.stopped instance.starting \
         instance.running instance.deleting instance.deleted"
    );
}

#[tokio::test]
async fn a_word_on_what_was_wanted_before_moves_nothing() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let id = instance_of(&made);
    cloud.settle(host, &made).await;
    cloud.change("stop", &made).await.ok();
    cloud.change("start", &made).await.ok();
    // The host was told of neither yet, and says again what it said of the first revision.
    cloud.say(host, id, 1, Seen::Running).await;
    assert_eq!(cloud.get(&made).await["state"], "starting");
    cloud.say(host, id, 2, Seen::Stopped).await;
    assert_eq!(cloud.get(&made).await["state"], "starting");
    let entry = cloud.entries(host).await.remove(0);
    assert_eq!((entry.revision, entry.boot), (3, 3));
    cloud.say(host, id, 3, Seen::Running).await;
    assert_eq!(cloud.get(&made).await["state"], "running");
}

#[tokio::test]
async fn a_reboot_is_a_start_anew_of_what_runs() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    let refused = cloud.change("reboot", &made).await;
    assert_eq!(refused.code(), "INVALID_STATE");
    cloud.settle(host, &made).await;
    assert_eq!(cloud.change("reboot", &made).await.ok()["state"], "starting");
    let entry = cloud.entries(host).await.remove(0);
    assert_eq!((entry.desired(), entry.revision, entry.boot), (Desired::Running, 2, 2));
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
}

#[tokio::test]
async fn what_is_so_already_is_answered_and_changes_nothing() {
    let (cloud, host) = Cloud::with_host().await;
    let made = cloud.create().await;
    cloud.settle(host, &made).await;
    cloud.change("start", &made).await.ok();
    assert_eq!(cloud.entries(host).await[0].revision, 1);
    cloud.change("delete", &made).await.ok();
    cloud.change("delete", &made).await.ok();
    assert_eq!(cloud.entries(host).await[0].revision, 2);
    for verb in ["start", "stop", "reboot"] {
        assert_eq!(cloud.change(verb, &made).await.code(), "INVALID_STATE", "{verb}");
    }
}

#[tokio::test]
async fn one_may_be_made_without_being_started() {
    let (cloud, host) = Cloud::with_host().await;
    let mut request = asked();
    request["stopped"] = json!(true);
    let made = cloud.call("instances.create", request).await.ok();
    assert_eq!(cloud.entries(host).await[0].desired(), Desired::Stopped);
    assert_eq!(cloud.settle(host, &made).await["state"], "stopped");
    cloud.change("start", &made).await.ok();
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
}

#[tokio::test]
async fn a_create_waits_until_it_is_settled_and_a_list_shows_what_is_there() {
    let (cloud, host) = Cloud::with_host().await;
    let first = cloud.create().await;
    let mut request = asked();
    request["wait"] = json!({ "timeoutMs": 20_000 });
    request["name"] = json!("web");
    let settled = async {
        loop {
            if cloud.entries(host).await.len() == 2 {
                return cloud.settle(host, &first).await;
            }
            tokio::task::yield_now().await;
        }
    };
    let (waited, _) = tokio::join!(cloud.call("instances.create", request), settled);
    let waited = waited.ok();
    assert_eq!((&waited["state"], &waited["name"]), (&json!("running"), &json!("web")));
    cloud.change("delete", &first).await.ok();
    cloud.settle(host, &first).await;
    let ids = |listed: serde_json::Value| {
        let items = listed["items"].as_array().unwrap().clone();
        items.into_iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    let listed = cloud.call("instances.list", json!({ "pool": "vps" })).await.ok();
    assert_eq!(ids(listed), [waited["id"].clone()]);
    let listed = cloud.call("instances.list", json!({ "includeDeleted": true })).await.ok();
    assert_eq!(ids(listed), [waited["id"].clone(), first["id"].clone()]);
    let listed = cloud.call("instances.list", json!({ "state": "deleted", "node": "host-0" })).await.ok();
    assert_eq!(ids(listed).len(), 0, "what was deleted is on no host");
}

#[tokio::test]
async fn one_that_is_stopped_becomes_larger_where_it_is_and_its_books_and_quota_with_it() {
    let (cloud, host) = Cloud::with_host().await;
    let flavor = |name: &str, vcpu: u32, memory: u32, disk: u32| json!({ "pool": "vps", "name": name, "vcpu": vcpu, "memoryGiB": memory, "diskGiB": disk });
    for (name, vcpu, memory, disk) in [("larger", 4, 8, 40), ("shorter", 2, 4, 1), ("huge", 288, 8, 40)] {
        cloud.call("flavors.create", flavor(name, vcpu, memory, disk)).await.ok();
    }
    let made = cloud.create().await;
    cloud.settle(host, &made).await;
    let resize = async |name: &str| {
        let request = json!({ "id": made["id"], "flavor": name });
        cloud.call("instances.resize", request).await
    };
    assert_eq!(resize("larger").await.code(), "INVALID_STATE", "it runs");
    cloud.change("stop", &made).await.ok();
    cloud.settle(host, &made).await;
    for (name, code) in [("none", "NOT_FOUND"), ("shorter", "UNSUPPORTED"), ("huge", "CAPACITY_UNAVAILABLE")]
    {
        assert_eq!(resize(name).await.code(), code, "{name}");
    }
    let booked = "SELECT cpu_millis FROM host_bookings";
    let counted = "SELECT sum(amount)::bigint FROM instance_holds WHERE resource = 'vcpu'";
    let before = (cloud.db.scalar_i64(booked).await, cloud.db.scalar_i64(counted).await);
    let told = resize("huge").await;
    assert_eq!(told.body["error"]["details"]["resource"], "vcpu", "{}", told.body);
    assert_eq!(
        (cloud.db.scalar_i64(booked).await, cloud.db.scalar_i64(counted).await),
        before,
        "all or nothing"
    );

    let larger = resize("larger").await.ok();
    assert_eq!(
        (&larger["state"], &larger["vcpu"], &larger["diskGiB"]),
        (&json!("stopped"), &json!(4), &json!(40))
    );
    assert_eq!((cloud.db.scalar_i64(booked).await, cloud.db.scalar_i64(counted).await), (4_000, 4));
    let entry = cloud.entries(host).await.remove(0);
    assert_eq!((entry.revision, entry.vcpus, entry.disk_bytes), (3, 4, 40 << 30));
    assert_eq!(cloud.settle(host, &made).await["state"], "stopped");
    cloud.change("start", &made).await.ok();
    assert_eq!(cloud.settle(host, &made).await["state"], "running");
    cloud.change("delete", &made).await.ok();
    cloud.settle(host, &made).await;
    cloud.assert_empty().await;
}
