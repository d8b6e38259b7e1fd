use std::sync::atomic::Ordering;

use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use wire::proto::agent::NodeReport;

use crate::machine::{bound, condition, released};
use crate::world::{Listener, with_listeners, world};

#[tokio::test(flavor = "multi_thread")]
async fn signed_reports_reach_the_observers_in_order() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    machine.report(&world, 1, bound("a")).await;
    machine.report(&world, 2, released("a")).await;
    world.pass(1);
    machine.report(&world, 3, bound("b")).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let reports = |what: &String| what.starts_with("bound") || what.starts_with("released");
    let heard: Vec<String> = world.heard("listener").await.into_iter().filter(reports).collect();
    assert_eq!(heard, ["bound a", "released a", "bound b"]);
    assert_eq!(world.count("SELECT count(*) FROM node_events WHERE handled_at IS NULL").await, 0);

    assert_eq!(world.heard("listener").await.last().map(String::as_str), Some("facts pool=true"));

    world.fleet.observe(machine.node_id()).await.unwrap();
    let bounds = world.heard("listener").await.iter().filter(|what| what.starts_with("bound")).count();
    assert_eq!(bounds, 2, "what was handled is not handled again");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_batch_is_handled_to_its_end() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    for seq in 1..=130 {
        machine.report(&world, seq, bound(&seq.to_string())).await;
    }
    assert_eq!(world.fleet.observe(machine.node_id()).await.unwrap(), None);
    let heard: Vec<String> =
        world.heard("listener").await.into_iter().filter(|what| what.starts_with("bound")).collect();
    let sent: Vec<String> = (1..=130).map(|seq| format!("bound {seq}")).collect();
    assert_eq!(heard, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_did_not_sign_reaches_nobody() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let other = world.ready("gpu-2").await;
    let body = machine.body(bound("a"));
    machine.event(&world, 1, &body, None).await;
    let (_, key) = machine.signed(Purpose::AttestedReport, &body);
    let forged = SigningKey::generate(&OsEntropy).sign(Purpose::AttestedReport, &body).to_bytes().to_vec();
    machine.event(&world, 2, &body, Some((forged, key))).await;
    machine.event(&world, 3, &body, Some(machine.signed(Purpose::AttestedResult, &body))).await;
    machine.event(&world, 4, &body, Some(other.signed(Purpose::AttestedReport, &body))).await;
    machine.event(&world, 5, b"\xff\xff", Some(machine.signed(Purpose::AttestedReport, b"\xff\xff"))).await;
    world.fleet.observe(machine.node_id()).await.unwrap();

    let refused = world.events("security.invalid-report").await;
    let seqs: Vec<i64> = refused.iter().map(|data| data["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    assert!(world.heard("listener").await.iter().all(|what| !what.starts_with("bound")));
    assert_eq!(world.count("SELECT count(*) FROM node_events WHERE handled_at IS NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_keys_word_counts_no_more() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.run("UPDATE node_certs SET revoked_at = compute_now()", &[]).await;
    machine.report(&world, 1, bound("a")).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.events("security.invalid-report").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_about_another_node_is_told_and_handled_by_nobody() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    let other = world.ready("gpu-2").await;
    let body = NodeReport { node_id: other.node_id().to_string(), report: Some(bound("a")) }.encode_to_vec();
    machine.event(&world, 7, &body, Some(machine.signed(Purpose::AttestedReport, &body))).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let told = world.events("security.node-mismatch").await;
    assert_eq!(
        (told[0]["seq"].as_i64(), told[0]["claimedNodeId"].as_str()),
        (Some(7), Some(other.node_id().to_string().as_str()))
    );
    assert!(world.heard("listener").await.iter().all(|what| !what.starts_with("bound")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_fails_undoes_only_itself() {
    let failing = Listener::new("failing", true);
    let world = with_listeners(Listener::new("listener", false), vec![failing]).await;
    let machine = world.ready("gpu-1").await;
    machine.report(&world, 1, bound("a")).await;
    machine.report(&world, 2, bound("b")).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let reports = |heard: Vec<String>| -> Vec<String> {
        heard.into_iter().filter(|what| what.starts_with("bound")).collect()
    };
    assert_eq!(reports(world.heard("listener").await), ["bound a", "bound b"]);
    assert!(reports(world.heard("failing").await).is_empty());
    let failed = world.events("node.report-failed").await;
    assert_eq!(failed.len(), 2);
    assert_eq!(
        (failed[0]["handler"].as_str(), failed[0]["kind"].as_str()),
        (Some("failing"), Some("allocation-bound"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_come_and_go_are_told() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    machine.event(&world, 1, &machine.body(condition("GpuHot", false)), None).await;
    machine.event(&world, 2, &machine.body(condition("GpuHot", true)), None).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let told = world.events("node.condition").await;
    let one = serde_json::json!([{ "kind": "GpuHot", "device": "GPU-1" }]);
    assert_eq!(told, [serde_json::json!({ "raised": one }), serde_json::json!({ "cleared": one })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_the_database_does_not_take_holds_up_nothing() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    machine.event(&world, 1, &machine.body(condition("Gpu\0Hot\n", false)), None).await;
    let elsewhere = NodeReport { node_id: "node\0".to_owned(), report: Some(bound("a")) }.encode_to_vec();
    machine.event(&world, 2, &elsewhere, None).await;
    machine.report(&world, 3, bound("b")).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    assert_eq!(world.events("node.condition").await[0]["raised"][0]["kind"], "Gpu Hot ");
    assert_eq!(world.events("security.node-mismatch").await[0]["claimedNodeId"], "node ");
    assert!(world.heard("listener").await.contains(&"bound b".to_owned()));
    assert_eq!(world.count("SELECT count(*) FROM node_events WHERE handled_at IS NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_in_an_observer_costs_no_report() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.listener.deadlocks.store(2, Ordering::SeqCst);
    machine.report(&world, 1, bound("a")).await;
    world.fleet.observe(machine.node_id()).await.unwrap();
    let heard = world.heard("listener").await;
    assert_eq!(heard.iter().filter(|what| *what == "bound a").count(), 1);
    assert!(world.events("node.report-failed").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_that_fails_on_the_facts_does_not_hold_up_the_reports() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    world.listener.facts_fail.store(true, Ordering::SeqCst);
    machine.report(&world, 1, bound("a")).await;
    assert!(world.fleet.observe(machine.node_id()).await.is_err(), "the facts are tried again");
    assert!(world.heard("listener").await.contains(&"bound a".to_owned()));
    assert_eq!(world.count("SELECT count(*) FROM node_events WHERE handled_at IS NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_on_one_node_handle_each_report_once() {
    let world = world().await;
    let machine = world.ready("gpu-1").await;
    for seq in 1..=20 {
        machine.report(&world, seq, bound(&seq.to_string())).await;
    }
    let node_id = machine.node_id();
    let (one, two) = tokio::join!(world.fleet.observe(node_id), world.fleet.observe(node_id));
    assert!(one.is_ok() && two.is_ok());
    let heard = world.heard("listener").await;
    assert_eq!(heard.iter().filter(|what| what.starts_with("bound")).count(), 20);
}
