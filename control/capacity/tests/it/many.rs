//! Calls that are done together, pools that have an owner, and what waits long.

use std::sync::Arc;

use capacity::Capacity;
use futures::StreamExt;
use kernel::Pipeline;
use kernel::ports::node::{NodeObserver, Reported};
use kernel::run::Running;
use kernel::testing::allow_all;
use kit::{OsRng, Supervisor, SystemClock};
use model::{NodeId, PoolId};
use serde_json::{Value, json};
use store::{Store, StoreConfig};
use testkit::eventually;
use wire::proto::agent::NodeReport;
use wire::proto::agent::node_report::Report;

use crate::cloud::{Cloud, OP, bound, call, facts, failed, node_of, pipeline, released, run_queue};

const BOUND: std::time::Duration = std::time::Duration::from_secs(30);

/// A process of the control plane, with an owner for every pool of at least so many nodes.
struct Process {
    capacity: Capacity,
    api: Pipeline,
    supervisor: Supervisor,
}

impl Process {
    fn new(cloud: &Cloud, owners_from: usize) -> Self {
        Self::over(cloud, cloud.db.store.clone(), owners_from)
    }

    fn over(cloud: &Cloud, store: Store, owners_from: usize) -> Self {
        let clock = Arc::new(SystemClock::new());
        let capacity = Capacity::with_owners_from(owners_from, store, clock, Arc::new(OsRng));
        let api = pipeline(&capacity, &cloud.db, cloud.root_user, cloud.root_tenant, allow_all());
        Self { capacity, api, supervisor: Supervisor::new() }
    }

    /// Does calls together.
    fn started(cloud: &Cloud, owners_from: usize) -> Self {
        Self::new(cloud, owners_from).start(cloud)
    }

    /// With one connection to the database, which is in use in turn: calls are in batches in the order they were made in.
    async fn in_order(cloud: &Cloud, owners_from: usize) -> Self {
        let config = StoreConfig { pool_size: 1, ..cloud.db.store.config().clone() };
        let store = Store::open(config).await.expect("the database takes a connection");
        Self::over(cloud, store, owners_from).start(cloud)
    }

    fn start(self, cloud: &Cloud) -> Self {
        let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(OsRng));
        let running = Running::new("test", cloud.db.store.clone(), self.supervisor.clone(), clock, rng);
        self.capacity.start(&running);
        self
    }

    /// Runs the pass that takes pools and keeps them.
    async fn own(&self) {
        let module = capacity::module(&self.capacity);
        let own = module.passes.iter().find(|pass| pass.name() == "reservation-own").unwrap();
        own.run().await.expect("the pass runs");
    }

    async fn reserve(&self, claim: Value) -> Value {
        self.told(claim).await.ok()
    }

    async fn told(&self, claim: Value) -> kernel::testing::Told {
        let mut request = claim;
        request["pool"] = json!("gpu");
        call(&self.api, "reservations.create", request).await
    }
}

async fn lapse(cloud: &Cloud) {
    cloud
        .db
        .batch(
            "UPDATE leases SET expires_at = compute_now() - interval '1 second' WHERE name LIKE 'placer:%'",
        )
        .await;
}

#[tokio::test]
async fn creates_that_come_together_are_few_transactions_and_each_is_answered() {
    let (cloud, _) = Cloud::with_nodes(8).await;
    let process = &Process::in_order(&cloud, usize::MAX).await;
    process.reserve(json!({ "gpus": 1 })).await;
    let made: Vec<Value> = futures::stream::iter(0..63)
        .map(|_| process.reserve(json!({ "gpus": 1, "vcpu": 1, "memoryGiB": 1 })))
        .buffer_unordered(63)
        .collect()
        .await;
    assert!(made.iter().all(|one| one["state"] == "placed"), "{made:#?}");
    // How many come together is the machine's affair; by themselves they would be as many as there are creates.
    let transactions = cloud.db.scalar_i64("SELECT count(DISTINCT xmin::text) FROM reservations").await;
    assert!(transactions < 60, "{transactions} transactions");
    cloud.assert_sound().await;
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM bookings").await, 64);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM audit WHERE outcome = 'ok'").await, 64);
    assert_eq!(cloud.events("reservation.placed").await, 64);

    let waiting = process.reserve(json!({ "gpus": 1 })).await;
    assert_eq!(waiting["state"], "scheduling", "the pool is full");
    let never = process.told(json!({ "gpus": 9 })).await;
    assert_eq!(never.code(), "CAPACITY_UNAVAILABLE");
    let releases =
        made.iter().map(|one| call(&process.api, "reservations.release", json!({ "id": one["id"] })));
    for told in futures::future::join_all(releases).await {
        assert_eq!(told.ok()["state"], "releasing");
    }
    let again = call(&process.api, "reservations.release", json!({ "id": made[0]["id"] })).await.ok();
    assert_eq!(again["state"], "releasing");
    assert_eq!(
        call(&process.api, "reservations.release", json!({ "id": waiting["id"] })).await.ok()["state"],
        "released"
    );
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_goes_under_creates_that_come_together_refuses_its_own_alone() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let other = cloud.call("pools.create", json!({ "name": "other", "class": "gpu" })).await.ok();
    let other: PoolId = other["id"].as_str().unwrap().parse().unwrap();
    let set = format!("UPDATE nodes SET pool_id = '{}' WHERE node_id = '{}'", other.uuid(), nodes[1].uuid());
    cloud.db.batch(&set).await;
    cloud.facts(&facts(nodes[1], "node-1", Some((other, cloud.root_tenant)))).await;
    let process = &Process::in_order(&cloud, usize::MAX).await;
    let create = |pool| call(&process.api, "reservations.create", json!({ "pool": pool, "gpus": 1 }));
    let creates = futures::future::join_all(["gpu", "other", "gpu", "other"].map(create));
    let delete = [
        "SELECT 1 FROM pools WHERE name = 'gpu' FOR UPDATE",
        "UPDATE pools SET deleted_at = compute_now() WHERE name = 'gpu'",
    ];
    let told = cloud.db.meet(&delete, creates).await;
    let codes: Vec<&str> = told.iter().map(|one| one.code()).collect();
    assert_eq!(codes, ["NOT_FOUND", "ok", "NOT_FOUND", "ok"]);
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_takes_of_a_batch_what_fits_it_and_refuses_the_rest_with_its_numbers() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    cloud.call("quotas.set", json!({ "resource": "gpu", "amount": 10 })).await.ok();
    let process = &Process::started(&cloud, usize::MAX);
    let told = futures::future::join_all((0..8).map(|_| process.told(json!({ "gpus": 3 })))).await;
    let placed = told.iter().filter(|one| one.code() == "ok").count();
    assert_eq!(placed, 3);
    for refused in told.iter().filter(|one| one.code() != "ok") {
        let error = &refused.body["error"];
        assert_eq!((refused.code(), &error["details"]["limit"]), ("QUOTA_EXCEEDED", &json!(10)), "{error}");
    }
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 3);
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_one_key_make_one_thing_also_when_they_come_together() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let process = &Process::started(&cloud, usize::MAX);
    let calls = (0..8).map(|_| process.reserve(json!({ "gpus": 1, "idempotencyKey": "once" })));
    let made = futures::future::join_all(calls).await;
    assert!(made.iter().all(|one| one["id"] == made[0]["id"]), "{made:#?}");
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations").await, 1);
    let other = process.told(json!({ "gpus": 2, "idempotencyKey": "once" })).await;
    assert_eq!(other.code(), "CONFLICT");
    cloud.assert_sound().await;
}

/// Whatever one of a batch meets, the others are placed.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_place_that_was_taken_is_decided_again() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let (first, second) = (&Process::started(&cloud, usize::MAX), &Process::started(&cloud, usize::MAX));
    first.reserve(json!({ "gpus": 1 })).await;
    second.reserve(json!({ "gpus": 1 })).await;
    // Nobody tells the processes: the picture is of an open node, and the booking finds a closed one.
    cloud
        .db
        .batch(&format!("UPDATE nodes SET cordoned_at = compute_now() WHERE node_id = '{}'", nodes[0].uuid()))
        .await;
    let both = futures::future::join_all((0..14).map(|at| {
        if at % 2 == 0 { first.reserve(json!({ "gpus": 1 })) } else { second.reserve(json!({ "gpus": 1 })) }
    }))
    .await;
    let placed: Vec<NodeId> = both.iter().filter(|one| one["state"] == "placed").map(node_of).collect();
    assert!(placed.iter().all(|node| *node == nodes[1]), "{both:#?}");
    cloud.schedulable_changed(nodes[0]).await;
    cloud.db.batch("UPDATE nodes SET cordoned_at = NULL").await;
    cloud.schedulable_changed(nodes[0]).await;
    cloud.place_waiting().await;
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations WHERE state = 'placed'").await, 16);
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_process_admits_its_pools_owner_places() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    let (owner, other) = (&Process::started(&cloud, 4), &Process::started(&cloud, 4));
    owner.own().await;
    other.own().await;
    let epoch = "SELECT epoch FROM leases WHERE name LIKE 'placer:%'";
    assert_eq!(cloud.db.scalar_i64(epoch).await, 1);
    assert_eq!(owner.reserve(json!({ "gpus": 1 })).await["state"], "placed");
    let made = futures::future::join_all((0..20).map(|_| other.reserve(json!({ "gpus": 1 })))).await;
    assert!(made.iter().all(|one| one["state"] == "placed"), "{made:#?}");
    let waiting = other.reserve(json!({ "gpus": 8, "vcpu": 64 })).await;
    let full = owner.reserve(json!({ "gpus": 8 })).await;
    assert_eq!((&waiting["state"], &full["state"]), (&json!("placed"), &json!("scheduling")));
    assert_eq!(cloud.events("reservation.placed").await, 22);
    cloud.assert_sound().await;
}

/// The owner decides, is gone for a while, and comes back late.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_lost_its_pool_books_nothing_there() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    let (first, second) = (&Process::started(&cloud, 4), &Process::started(&cloud, 4));
    first.own().await;
    assert_eq!(first.reserve(json!({ "gpus": 1 })).await["state"], "placed");
    lapse(&cloud).await;
    second.own().await;
    assert_eq!(cloud.db.scalar_i64("SELECT epoch FROM leases WHERE name LIKE 'placer:%'").await, 2);
    // By its own clock the first has the pool yet: it decides, and its batch does not pass the fence.
    let late = futures::future::join_all((0..10).map(|_| first.reserve(json!({ "gpus": 1 })))).await;
    assert!(late.iter().all(|one| one["state"] == "placed"), "{late:#?}");
    let scheduled = cloud.events("reservation.scheduling").await;
    assert_eq!(scheduled, 10, "they were handed to the new owner");
    cloud.assert_sound().await;
}

/// More waits than one transaction places, and the first of them is what tells the owner.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_finds_its_pool_lost_books_none_of_what_is_left_in_line() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    let (owner, api) = (Process::new(&cloud, 4), &Process::started(&cloud, 4));
    owner.own().await;
    let claim = || json!({ "vcpu": 1, "memoryGiB": 1 });
    futures::future::join_all((0..150).map(|_| api.reserve(claim()))).await;
    assert_eq!(cloud.events("reservation.scheduling").await, 150);
    let stolen = "UPDATE leases SET holder = 'another', epoch = epoch + 1, expires_at = compute_now() + interval '1 hour'
                  WHERE name LIKE 'placer:%'";
    cloud.db.batch(stolen).await;
    run_queue(&owner.capacity, cloud.pool).await;
    assert_eq!(cloud.events("reservation.placed").await, 0);
    lapse(&cloud).await;
    owner.own().await;
    assert_eq!(cloud.events("reservation.placed").await, 150);
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_to_an_owner_that_is_gone_is_placed_by_the_next() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    let (gone, api, next) = (Process::new(&cloud, 4), Process::started(&cloud, 4), Process::new(&cloud, 4));
    gone.own().await;
    // It answers to no signal.
    drop(gone);
    let waiting = api.reserve(json!({ "gpus": 1 })).await;
    assert_eq!(
        (&waiting["state"], &waiting["waitingReason"]),
        (&json!("scheduling"), &json!("it is about to be placed"))
    );
    run_queue(&next.capacity, cloud.pool).await;
    assert_eq!(cloud.get(&waiting).await["state"], "scheduling", "the pool has an owner");
    lapse(&cloud).await;
    next.own().await;
    assert_eq!(cloud.get(&waiting).await["state"], "placed");
    cloud.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_race_book_nothing_twice() {
    let (cloud, nodes) = Cloud::with_nodes(4).await;
    let processes = [Process::started(&cloud, 4), Process::started(&cloud, 4), Process::started(&cloud, 4)];
    let (cloud, processes) = (&cloud, &processes);
    let change_hands = async {
        for turn in 0..12 {
            lapse(cloud).await;
            processes[turn % 3].own().await;
        }
    };
    let reserve = futures::stream::iter(0..60)
        .map(|at| processes[at % 3].told(json!({ "gpus": 1 + at % 2 })))
        .buffer_unordered(24)
        .collect::<Vec<_>>();
    let ((), told) = futures::join!(change_hands, reserve);
    assert!(told.iter().all(|one| one.code() == "ok"), "{told:#?}");
    cloud.assert_sound().await;
    lapse(cloud).await;
    eventually(BOUND, || async {
        processes[0].own().await;
        run_queue(&processes[0].capacity, cloud.pool).await;
        let booked = cloud.db.scalar_i64("SELECT count(*) FROM bookings").await;
        if booked == 8 * nodes.len() as i64 { Ok(()) } else { Err(format!("{booked} are booked")) }
    })
    .await;
    cloud.assert_sound().await;
}

/// The same claims in the same order on the same nodes: an owner in batches answers as a process that does each alone.
#[tokio::test]
async fn an_owner_answers_as_a_process_that_does_each_call_by_itself() {
    let claims = |seed: u64| {
        let dice = kit::SeededRng::new(seed);
        let below = move |bound: u64| (&dice as &dyn kit::Rng).below(bound);
        let one = move |_| match below(6) {
            0 => json!({ "vcpu": 1 + below(16), "memoryGiB": 1 + below(64) }),
            1 => json!({ "gpus": 1 + below(8), "vcpu": 1 + below(32), "memoryMiB": 512 + below(100_000) }),
            2 => json!({ "wholeNode": true }),
            _ => json!({ "gpus": 1 + below(8) }),
        };
        (0..40).map(one).collect::<Vec<Value>>()
    };
    let (alone, together) = (Cloud::empty().await, Cloud::empty().await);
    for at in 0..6_u128 {
        let node = NodeId::from_uuid(uuid::Uuid::from_u128(1 + at));
        alone.node_with_id(node, &format!("node-{at}")).await;
        together.node_with_id(node, &format!("node-{at}")).await;
    }
    let (inline, owner) = (Process::new(&alone, usize::MAX), Process::in_order(&together, 1).await);
    owner.own().await;
    let seed = (&OsRng as &dyn kit::Rng).u64();
    eprintln!("seed {seed}");
    let mut wanted = Vec::new();
    for claim in claims(seed) {
        wanted.push(answer(&inline.told(claim).await.body));
    }
    let told = futures::future::join_all(claims(seed).into_iter().map(|claim| owner.told(claim))).await;
    let found: Vec<Value> = told.iter().map(|one| answer(&one.body)).collect();
    assert_eq!(found, wanted);
    assert!(wanted.iter().any(|one| one["state"] == "scheduling"), "the pool never filled");
    for cloud in [&alone, &together] {
        cloud.assert_sound().await;
    }
}

/// What is the same for the same claim, whoever answers. Why it waits has numbers of the moment, and one answer for all of
/// its shape in a batch.
fn answer(body: &Value) -> Value {
    let atoms: Vec<&Value> =
        body["devices"].as_array().into_iter().flatten().map(|device| &device["uuid"]).collect();
    json!({
        "state": body["state"], "node": body["node"]["name"], "atoms": atoms, "limits": body["limits"],
        "code": body["error"]["code"],
    })
}

#[tokio::test]
async fn what_has_waited_long_has_a_node_kept_for_it_and_small_claims_do_not_pass_it_for_ever() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(cloud.reserve(json!({ "gpus": 4 })).await);
    }
    let large = cloud.reserve(json!({ "gpus": 8 })).await;
    assert_eq!(large["state"], "scheduling");
    let kept = "SELECT count(*) FROM node_capacity WHERE kept_for IS NOT NULL";
    cloud.place_waiting().await;
    assert_eq!(cloud.db.scalar_i64(kept).await, 0, "it has not waited long yet");
    cloud.db.batch("UPDATE reservations SET created_at = created_at - interval '2 minutes' WHERE state = 'scheduling'").await;
    cloud.place_waiting().await;
    assert_eq!(cloud.db.scalar_i64(kept).await, 1);
    let keeper = cloud
        .db
        .scalar_text(
            "SELECT n.name FROM node_capacity c JOIN nodes n USING (node_id) WHERE c.kept_for IS NOT NULL",
        )
        .await;
    let on = |one: &Value| one["node"]["name"] == json!(keeper);
    // Room comes on both nodes: a small claim takes it on the other one alone.
    let (here, there): (Vec<&Value>, Vec<&Value>) = held.iter().partition(|one| on(one));
    for one in [here[0], there[0]] {
        cloud.call("reservations.release", json!({ "id": one["id"] })).await.ok();
        cloud.confirm_released(one).await;
    }
    let (small, smaller) =
        (cloud.reserve(json!({ "gpus": 4 })).await, cloud.reserve(json!({ "gpus": 1 })).await);
    assert!(small["state"] == "placed" && !on(&small), "{small}");
    assert_eq!(smaller["state"], "scheduling", "what is free is kept");
    cloud.call("reservations.release", json!({ "id": here[1]["id"] })).await.ok();
    cloud.confirm_released(here[1]).await;
    cloud.place_waiting().await;
    assert!(on(&cloud.get(&large).await));
    cloud.sweep().await;
    cloud.place_waiting().await;
    assert_eq!(cloud.db.scalar_i64(kept).await, 0, "it is placed, and its node is open to all");
    assert_eq!(nodes.len(), 2);
    cloud.assert_sound().await;
}

#[tokio::test]
async fn plain_reports_of_many_nodes_are_taken_together_and_odd_ones_are_left() {
    let (cloud, nodes) = Cloud::with_nodes(4).await;
    let mut made = Vec::new();
    for _ in 0..16 {
        made.push(cloud.reserve(json!({ "gpus": 2, "vcpu": 1 })).await);
    }
    let (odd, plain) = made.split_at(3);
    let stranger = *nodes.iter().find(|node| **node != node_of(&odd[0])).unwrap();
    let mut said = vec![
        (stranger, bound(&odd[0])),
        (node_of(&odd[1]), failed(&odd[1], "overlap")),
        (node_of(&odd[1]), bound(&odd[1])),
        (node_of(&odd[2]), bound(&odd[2])),
        (node_of(&odd[2]), bound(&odd[2])),
    ];
    said.extend(plain.iter().map(|one| (node_of(one), bound(one))));
    assert_eq!(
        hand_over(&cloud, &said).await,
        [0, 1, 2, 4],
        "a word after a refusal is left, and a second one about what the first one moved"
    );
    for one in plain.iter().chain(&odd[2..]) {
        assert_eq!(cloud.get(one).await["state"], "active");
    }
    for one in &odd[..2] {
        assert_eq!(cloud.get(one).await["state"], "placed");
    }
    assert_eq!(cloud.events("reservation.active").await, 14);
    assert_eq!(hand_over(&cloud, &said).await, [0, 1, 2], "what was said before moves nothing");
    assert_eq!(cloud.events("reservation.active").await, 14);

    for one in plain {
        cloud.call("reservations.release", json!({ "id": one["id"] })).await.ok();
    }
    let waiting = cloud.reserve(json!({ "gpus": 8 })).await;
    assert_eq!(waiting["state"], "scheduling");
    // A node that had not heard of the release yet said that it bound, and then that it let go.
    let mut said: Vec<(NodeId, Report)> = plain[..5].iter().map(|one| (node_of(one), bound(one))).collect();
    said.extend(plain.iter().map(|one| (node_of(one), released(one))));
    assert_eq!(hand_over(&cloud, &said).await, [0_usize; 0]);
    assert_eq!(cloud.events("reservation.active").await, 14);
    for one in plain {
        assert_eq!(cloud.get(one).await["state"], "released");
    }
    let woken = "SELECT count(*) FROM work_wake_keys WHERE queue = 'reservation-place'";
    assert!(cloud.db.scalar_i64(woken).await > 0, "something waits for what was given back");
    cloud.place_waiting().await;
    assert_eq!(cloud.get(&waiting).await["state"], "placed");
    cloud.assert_sound().await;
}

/// Gives the places of those that are left.
async fn hand_over(cloud: &Cloud, said: &[(NodeId, Report)]) -> Vec<usize> {
    let reports: Vec<(NodeId, NodeReport)> = said
        .iter()
        .map(|(node, report)| (*node, NodeReport { node_id: node.to_string(), report: Some(report.clone()) }))
        .collect();
    let observed_at = kernel::testing::now();
    let reported: Vec<Reported<'_>> =
        reports.iter().map(|(node_id, report)| Reported { node_id: *node_id, report, observed_at }).collect();
    let (capacity, reported) = (&cloud.capacity, &reported);
    let done = cloud.db.store.tx(OP, |tx| Box::pin(async move { capacity.reports(tx, reported).await }));
    done.await.expect("the reports are handled")
}
