//! The database itself refuses a second booking, whoever asks.

use serde_json::json;
use store::{Op, Sql, StoreError, sql};

use crate::cloud::{Cloud, allocation_of, atoms_of, id, node_of};

const OP: Op = Op::new("test_raw");

/// Makes a live allocation by hand and runs `then` in the same transaction.
async fn intrude(
    cloud: &Cloud,
    node: model::NodeId,
    reservation: &str,
    then: &str,
) -> Result<(), StoreError> {
    let allocation = id::<model::AllocationId>().uuid();
    let reservation: model::ReservationId = reservation.parse().unwrap();
    let insert = format!(
        "INSERT INTO allocations (allocation_id, reservation_id, node_id, state) VALUES ('{allocation}', '{}', '{}', 'placed')",
        reservation.uuid(),
        node.uuid()
    );
    let then =
        then.replace("$allocation", &allocation.to_string()).replace("$node", &node.uuid().to_string());
    let leak = |text: String| -> Sql { sql("raw", Box::leak(text.into_boxed_str())) };
    let (insert, then) = (leak(insert), leak(then));
    cloud
        .db
        .store
        .tx(OP, |tx| {
            Box::pin(async move {
                tx.execute(&insert, &[]).await?;
                tx.execute(&then, &[]).await?;
                Ok::<_, StoreError>(())
            })
        })
        .await
}

/// A reservation without an allocation, for a row of one to hang on.
async fn waiting(cloud: &Cloud) -> String {
    let waiting = cloud.reserve(json!({ "gpus": 8 })).await;
    assert_eq!(waiting["state"], "scheduling");
    waiting["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_atom_is_booked_once() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    let other = waiting(&cloud).await;
    let atom = &atoms_of(&placed)[0];
    let book = format!(
        "INSERT INTO bookings (node_id, atom, allocation_id) VALUES ('$node', '{atom}', '$allocation')"
    );
    let err = intrude(&cloud, nodes[0], &other, &book).await.unwrap_err();
    assert!(err.is_unique("bookings_pkey"), "{err}");
    let ghost =
        "INSERT INTO bookings (node_id, atom, allocation_id) VALUES ('$node', 'GPU-ghost', '$allocation')";
    let err = intrude(&cloud, nodes[0], &other, ghost).await.unwrap_err();
    assert!(err.is_foreign_key("bookings_node_id_atom_fkey"), "{err}");
    cloud.assert_sound().await;
}

#[tokio::test]
async fn an_allocation_that_books_on_another_node_breaks_a_rule() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let placed = cloud.reserve(json!({ "gpus": 8 })).await;
    cloud.reserve(json!({ "gpus": 1 })).await;
    let other = waiting(&cloud).await;
    let (here, there) = if node_of(&placed) == nodes[0] { (0, 1) } else { (1, 0) };
    let atom = cloud
        .db
        .scalar_text(&format!(
            "SELECT atom FROM atoms a WHERE node_id = '{}' AND NOT EXISTS (SELECT FROM bookings b WHERE b.atom = a.atom) LIMIT 1",
            nodes[there].uuid()
        ))
        .await;
    let book = format!(
        "INSERT INTO bookings (node_id, atom, allocation_id) VALUES ('{}', '{atom}', '$allocation')",
        nodes[there].uuid()
    );
    // No statement of ours writes this, and no key refuses it: the rules name it.
    intrude(&cloud, nodes[here], &other, &book).await.unwrap();
    let found = capacity::invariants(&cloud.db.store).await.unwrap();
    assert!(found.iter().any(|found| format!("{found:?}").contains(&atom)), "{found:#?}");
}

#[tokio::test]
async fn a_node_is_not_booked_beyond_what_it_offers() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    cloud.reserve(json!({ "gpus": 1, "vcpu": 60 })).await;
    let other = waiting(&cloud).await;
    let host = |cpu: u32, whole: bool| {
        format!(
            "INSERT INTO host_bookings (allocation_id, node_id, cpu_millis, memory_bytes, hugepages_1gi, whole_node)
             VALUES ('$allocation', '$node', {cpu}, 0, 0, {whole})"
        )
    };
    let err = intrude(&cloud, nodes[0], &other, &host(5000, false)).await.unwrap_err();
    assert!(err.is_check("host_bookings_within_node"), "{err}");
    let err = intrude(&cloud, nodes[0], &other, &host(0, true)).await.unwrap_err();
    assert!(err.is_check("host_bookings_within_node"), "{err}");
    intrude(&cloud, nodes[0], &other, &host(4000, false)).await.expect("that much is left");
}

#[tokio::test]
async fn a_reservation_has_one_live_allocation() {
    let (cloud, nodes) = Cloud::with_nodes(2).await;
    let placed = cloud.reserve(json!({ "gpus": 1 })).await;
    let err = intrude(&cloud, nodes[0], placed["id"].as_str().unwrap(), "SELECT 1").await.unwrap_err();
    assert!(err.is_unique("allocations_one_live"), "{err}");
    assert!(!allocation_of(&placed).is_empty());
}

#[tokio::test]
async fn a_gpu_is_in_one_machine() {
    let (cloud, nodes) = Cloud::with_nodes(1).await;
    let twin = cloud.node("twin").await;
    // The second machine lists the first one's GPUs.
    let facts = crate::cloud::facts(twin, "node-0", Some((cloud.pool, cloud.root_tenant)));
    cloud.facts(&facts).await;
    let live = format!("SELECT count(*) FROM atoms WHERE health <> 'absent' AND node_id = '{}'", twin.uuid());
    assert_eq!(cloud.db.scalar_i64(&live).await, 0);
    let here =
        format!("SELECT count(*) FROM atoms WHERE health = 'healthy' AND node_id = '{}'", nodes[0].uuid());
    assert_eq!(cloud.db.scalar_i64(&here).await, 8);
}

/// What the database keeps from happening is found by the invariants should it happen. Each break is on top of the others.
#[tokio::test]
async fn broken_books_are_found() {
    let (cloud, _) = Cloud::with_nodes(2).await;
    let placed = cloud.reserve(json!({ "gpus": 2, "vcpu": 8 })).await;
    let other = cloud.reserve(json!({ "gpus": 2, "vcpu": 8 })).await;
    cloud.assert_sound().await;
    let rules = |found: Vec<capacity::Violation>| {
        found.into_iter().map(|one| one.rule).collect::<std::collections::BTreeSet<&str>>()
    };
    let uuid = |value: &serde_json::Value| {
        value["id"].as_str().unwrap().parse::<model::ReservationId>().unwrap().uuid()
    };
    for (break_it, rule) in [
        (
            format!(
                "UPDATE allocations SET atoms = (SELECT atoms FROM allocations WHERE reservation_id = '{}')",
                uuid(&placed)
            ),
            "no atom is in two allocations that have not ended",
        ),
        ("DELETE FROM bookings".to_owned(), "bookings are the atoms of allocations that have not ended"),
        ("UPDATE node_capacity SET cpu_millis = 1".to_owned(), "what is booked fits what the node offers"),
        (
            format!("UPDATE reservations SET state = 'active' WHERE reservation_id = '{}'", uuid(&other)),
            "a reservation is as far as its live allocation",
        ),
        (
            "DELETE FROM quota_holds WHERE resource = 'reservations'".to_owned(),
            "quota is held from admission to the end",
        ),
        (
            "UPDATE quota_holds SET amount = 1 WHERE resource = 'gpu'".to_owned(),
            "what is held of a quota is what was asked",
        ),
        (
            format!("UPDATE quota_holds SET tenant_id = '{}'", cloud.tenant.uuid()),
            "holds are of their reservation's tenant",
        ),
        (
            format!(
                "INSERT INTO quotas (quota_id, tenant_id, resource, amount) VALUES ('{0}', '{0}', 'vcpu', 15)",
                cloud.root_tenant.uuid()
            ),
            "what a tenant and those below it hold fits its quota",
        ),
        (
            "DROP INDEX host_bookings_whole_node;
             ALTER TABLE host_bookings DISABLE TRIGGER USER;
             UPDATE host_bookings SET whole_node = true"
                .to_owned(),
            "a node held whole is held by one",
        ),
        ("DELETE FROM host_bookings".to_owned(), "an allocation has its host booking until it has ended"),
        (
            "UPDATE allocations SET ended_at = compute_now()".to_owned(),
            "only what ended or failed is not its reservation's",
        ),
    ] {
        cloud.db.batch(&break_it).await;
        let found = rules(capacity::invariants(&cloud.db.store).await.unwrap());
        assert!(found.contains(rule), "{rule}: found {found:?}");
    }
}
