//! A thousand things at once.

use std::sync::Arc;

use capacity::Capacity;
use futures::StreamExt;
use kernel::Pipeline;
use kernel::testing::allow_all;
use kit::{OsRng, Rng, SeededRng, SystemClock};
use serde_json::{Value, json};
use store::{RowExt, sql};
use wire::proto::agent::AllocationReleased;
use wire::proto::agent::node_report::Report;

use crate::cloud::{Cloud, bound, call, failed, node_of, pipeline, released, run_queue};

const OPERATIONS: usize = 1_000;
/// More than the eight connections they share.
const AT_ONCE: usize = 24;

const IDS: store::Sql =
    sql("test_ids", "SELECT reservation_id FROM reservations WHERE ended_at IS NULL ORDER BY 1");

/// One of the reservations that have not ended.
async fn any(cloud: &Cloud, api: &Pipeline, dice: &dyn Rng) -> Option<Value> {
    let rows = cloud.db.store.read(&IDS, &[]).await.unwrap();
    let at = dice.below(rows.len() as u64) as usize;
    let id = model::ReservationId::from_uuid(rows.get(at)?.get("reservation_id"));
    let told = call(api, "reservations.get", json!({ "id": id.to_string() })).await;
    (told.status == 200).then_some(told.body)
}

async fn reserve(api: &Pipeline, dice: &dyn Rng) {
    let mut request = json!({ "pool": "gpu", "gpus": 1 + dice.below(8), "hours": 1 + dice.below(5) });
    if dice.below(2) == 0 {
        request["vcpu"] = json!(1 + dice.below(24));
        request["memoryGiB"] = json!(1 + dice.below(128));
    }
    if dice.below(20) == 0 {
        request["wholeNode"] = json!(true);
    }
    let told = call(api, "reservations.create", request).await;
    assert!(matches!(told.code(), "ok" | "QUOTA_EXCEEDED"), "{}", told.body);
}

/// What the node would say of the reservation now.
async fn node_speaks(cloud: &Cloud, seen: &Value, dice: &dyn Rng) {
    let report = match seen["state"].as_str().unwrap() {
        "placed" if dice.below(5) == 0 => failed(seen, "resources-exhausted"),
        "placed" => bound(seen),
        "releasing" => released(seen),
        _ => return,
    };
    cloud.report(node_of(seen), report).await.expect("the report is handled");
}

const LEFT_BEHIND: store::Sql = sql(
    "test_left_behind",
    "SELECT allocation_id, node_id FROM allocations WHERE state = 'failed' AND ended_at IS NULL ORDER BY 1",
);

/// Nodes say of some of what failed or left them that they hold nothing of it.
async fn nodes_let_go(cloud: &Cloud, most: usize) -> usize {
    let rows = cloud.db.store.read(&LEFT_BEHIND, &[]).await.unwrap();
    for row in rows.iter().take(most) {
        let allocation_id = row.id::<model::AllocationId>("allocation_id").to_string();
        let report = Report::AllocationReleased(AllocationReleased { allocation_id, generation: 1 });
        cloud.report(row.id("node_id"), report).await.expect("the report is handled");
    }
    rows.len()
}

/// A node is lost, what is on it leaves, and it comes back.
async fn lose_a_node(cloud: &Cloud, dice: &dyn Rng) {
    let rows = cloud.db.store.read(&sql("test_nodes", "SELECT node_id FROM nodes ORDER BY 1"), &[]).await;
    let rows = rows.unwrap();
    let node = rows[dice.below(rows.len() as u64) as usize].id("node_id");
    cloud.node_becomes(node, "lost").await;
    cloud.sweep().await;
    cloud.node_becomes(node, "ready").await;
}

async fn operate(cloud: &Cloud, api: &Pipeline, capacity: &Capacity, dice: &dyn Rng) {
    match dice.below(12) {
        0..4 => reserve(api, dice).await,
        4 => {
            let Some(seen) = any(cloud, api, dice).await else { return };
            let told = call(api, "reservations.extend", json!({ "id": seen["id"], "hours": 1 })).await;
            assert!(matches!(told.code(), "ok" | "INVALID_STATE" | "UNAVAILABLE"), "{}", told.body);
        }
        5..7 => {
            let Some(seen) = any(cloud, api, dice).await else { return };
            let told = call(api, "reservations.release", json!({ "id": seen["id"] })).await;
            assert_eq!(told.code(), "ok", "{}", told.body);
        }
        7..9 => {
            let Some(seen) = any(cloud, api, dice).await else { return };
            node_speaks(cloud, &seen, dice).await;
        }
        9 => run_queue(capacity, cloud.pool).await,
        10 if dice.below(4) == 0 => lose_a_node(cloud, dice).await,
        _ => {
            nodes_let_go(cloud, 4).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_operations_at_once_book_nothing_twice() {
    let (cloud, _) = Cloud::with_nodes(4).await;
    cloud.call("quotas.set", json!({ "resource": "gpu", "amount": 40 })).await.ok();
    cloud.call("quotas.set", json!({ "resource": "vcpu", "amount": 200 })).await.ok();
    // Two processes: each has its own picture, and both fill the same nodes.
    let second = Capacity::new(cloud.db.store.clone(), Arc::new(SystemClock::new()), Arc::new(OsRng));
    let second_api = pipeline(&second, &cloud.db, cloud.root_user, cloud.root_tenant, allow_all());
    let seed = (&OsRng as &dyn Rng).u64();
    eprintln!("seed {seed}");
    let (cloud, second, second_api) = (&cloud, &second, &second_api);
    futures::stream::iter(0..OPERATIONS)
        .for_each_concurrent(AT_ONCE, |at| async move {
            let dice = SeededRng::new(seed.wrapping_add(at as u64));
            let (api, capacity) =
                if at % 2 == 0 { (&cloud.root, &cloud.capacity) } else { (second_api, second) };
            operate(cloud, api, capacity, &dice).await;
        })
        .await;
    assert!(cloud.events("reservation.replacing").await > 5, "nothing left its node");
    cloud.assert_sound().await;
    assert_same_picture(cloud, &[&cloud.root, second_api]).await;
    assert_eq!(cloud.db.scalar_i64("SELECT count(*) FROM reservations WHERE state = 'draft'").await, 0);
    let over =
        "SELECT count(*) FROM quotas q WHERE amount < (SELECT coalesce(sum(h.amount), 0) FROM quota_holds h
                WHERE h.resource = q.resource AND h.tenant_id = q.tenant_id)";
    assert_eq!(cloud.db.scalar_i64(over).await, 0);
    let made = cloud.db.scalar_i64("SELECT count(*) FROM reservations").await;
    let placed = cloud.db.scalar_i64("SELECT count(*) FROM allocations").await;
    assert!(made > 50 && placed > 50, "{made} made, {placed} placed: the storm was a breeze");
    drain(cloud).await;
}

/// What the processes have in memory after all that is what one that just started reads.
async fn assert_same_picture(cloud: &Cloud, warm: &[&Pipeline]) {
    let started = Capacity::new(cloud.db.store.clone(), Arc::new(SystemClock::new()), Arc::new(OsRng));
    let fresh = pipeline(&started, &cloud.db, cloud.root_user, cloud.root_tenant, allow_all());
    for claim in [
        json!({ "gpus": 1 }),
        json!({ "gpus": 8 }),
        json!({ "gpus": 3, "vcpu": 64 }),
        json!({ "gpus": 1, "memoryGiB": 511 }),
        json!({ "wholeNode": true }),
    ] {
        let mut request = claim;
        request["pool"] = json!("gpu");
        let wanted = call(&fresh, "reservations.explain", request.clone()).await.ok();
        for api in warm {
            assert_eq!(call(api, "reservations.explain", request.clone()).await.ok(), wanted);
        }
    }
}

/// Releases everything; then nothing is booked and nothing is held of a quota.
async fn drain(cloud: &Cloud) {
    let dice = SeededRng::new(1);
    testkit::eventually(std::time::Duration::from_secs(60), || async {
        let rows = cloud.db.store.read(&IDS, &[]).await.unwrap();
        for row in &rows {
            let id = model::ReservationId::from_uuid(row.get("reservation_id"));
            let told = call(&cloud.root, "reservations.release", json!({ "id": id.to_string() })).await;
            node_speaks(cloud, &told.ok(), &dice).await;
        }
        let left = nodes_let_go(cloud, usize::MAX).await;
        if rows.is_empty() && left == 0 { Ok(()) } else { Err(format!("{} left", rows.len())) }
    })
    .await;
    for table in ["bookings", "host_bookings", "quota_holds"] {
        assert_eq!(cloud.db.scalar_i64(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    cloud.assert_sound().await;
}
