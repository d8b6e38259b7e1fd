//! What one node's pass does, done for many in one transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fleet::facts::FactsQueue;
use fleet::observe::ObserveQueue;
use fleet::spec::{Assembled, SpecQueue};
use kernel::module::{Again, HandleTogether};
use kernel::run::Running;
use kernel::run::drive::DrivenQueue;
use kernel::{Fault, QueueHandler};
use kit::{OsRng, Supervisor, SystemClock};
use model::NodeId;
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use store::Op;
use wire::proto::agent::NodeReport;

use crate::machine::{Machine, bound, condition, released};
use crate::world::{Listener, TokenIs, World, with_listeners, world};

fn key(node_id: NodeId) -> String {
    node_id.uuid().hyphenated().to_string()
}

async fn together(
    world: &World,
    handler: &dyn HandleTogether,
    nodes: &[NodeId],
) -> Result<Vec<Again>, Fault> {
    let mut keys: Vec<String> = nodes.iter().copied().map(key).collect();
    keys.sort_unstable();
    let keys = keys.as_slice();
    world.store.tx(Op::new("test_together"), |tx| Box::pin(handler.handle_all(tx, keys))).await
}

async fn observe(world: &World, nodes: &[NodeId]) -> Result<Vec<Again>, Fault> {
    together(world, &ObserveQueue(world.fleet.clone()), nodes).await
}

/// Tells the facts that the observing has woken.
async fn tell_facts(world: &World) -> Result<(), Fault> {
    let woken: Vec<NodeId> = world
        .woken(fleet::FACTS_QUEUE)
        .await
        .iter()
        .map(|key| NodeId::from_uuid(key.parse().unwrap()))
        .collect();
    together(world, &FactsQueue(world.fleet.clone()), &woken).await?;
    world.drop_work().await;
    Ok(())
}

async fn three(world: &World) -> [Machine; 3] {
    [world.ready("gpu-1").await, world.ready("gpu-2").await, world.ready("gpu-3").await]
}

const OPEN: &str = "SELECT count(*) FROM node_events WHERE handled_at IS NULL";

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_many_nodes_reach_the_observers_each_once_and_each_nodes_in_order() {
    let world = world().await;
    let machines = three(&world).await;
    let nodes: Vec<NodeId> = machines.iter().map(Machine::node_id).collect();
    for seq in 1..=70 {
        for (at, machine) in machines.iter().enumerate() {
            if at == 0 || seq <= 3 {
                machine.report(&world, seq, bound(&format!("{at}-{seq}"))).await;
            }
        }
    }
    let again = observe(&world, &nodes).await.unwrap();
    assert_eq!(again.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [key(nodes[0])], "it has more");
    assert!(observe(&world, &nodes).await.unwrap().is_empty());
    let heard = world.heard("listener").await;
    for (at, count) in [(0, 70), (1, 3), (2, 3)] {
        let of_one: Vec<&String> =
            heard.iter().filter(|what| what.starts_with(&format!("bound {at}-"))).collect();
        let sent: Vec<String> = (1..=count).map(|seq| format!("bound {at}-{seq}")).collect();
        assert_eq!(of_one, sent.iter().collect::<Vec<_>>());
    }
    assert_eq!(world.count(OPEN).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_little_to_say_is_heard_beside_any_number_with_much() {
    let world = world().await;
    let mut nodes = Vec::new();
    for at in 0..23 {
        let machine = world.ready(&format!("gpu-{at}")).await;
        for seq in 1..=50 {
            machine.event(&world, seq, &machine.body(condition("GpuHot", false)), None).await;
        }
        nodes.push(machine.node_id());
    }
    // After all of them, and the last by its id too.
    let quiet = world.ready("gpu-quiet").await;
    quiet.event(&world, 1, &quiet.body(condition("GpuHot", false)), None).await;
    nodes.push(quiet.node_id());
    let again = observe(&world, &nodes).await.unwrap();
    let of_quiet = "SELECT count(*) FROM node_events WHERE node_id = $1 AND handled_at IS NULL";
    assert_eq!(world.row(of_quiet, &[&quiet.node_id().uuid()]).await.get::<_, i64>(0), 0);
    let each = "SELECT count(*) FROM (SELECT FROM node_events WHERE handled_at IS NOT NULL GROUP BY node_id HAVING count(*) = 42) AS n";
    assert_eq!(world.count(each).await, 23, "1,024 of a look, shared by 24");
    let mut more: Vec<String> = again.into_iter().map(|(key, _)| key).collect();
    more.sort_unstable();
    let mut loud: Vec<String> = nodes[..23].iter().copied().map(key).collect();
    loud.sort_unstable();
    assert_eq!(more, loud, "they have more, and the quiet one has not");
    assert!(observe(&world, &nodes).await.unwrap().is_empty());
    assert_eq!(world.count(OPEN).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_so_many_nodes_are_handled_at_once_and_the_rest_come_next() {
    let world = world().await;
    let mut nodes = Vec::new();
    for at in 0..66 {
        nodes.push(world.ready(&format!("gpu-{at}")).await.node_id());
    }
    world.run("UPDATE commands SET state = 'failed', settled_at = compute_now()", &[]).await;
    let open = "SELECT count(*) FROM commands WHERE settled_at IS NOT NULL AND handled_at IS NULL";
    assert_eq!(world.count(open).await, 66, "each has one of its acceptance");
    assert_eq!(observe(&world, &nodes).await.unwrap().len(), 2);
    assert_eq!(world.count(open).await, 2);
    assert!(observe(&world, &nodes).await.unwrap().is_empty());
    assert_eq!(world.count(open).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_should_believe_is_told_and_reaches_nobody() {
    let world = world().await;
    let [machine, other, revoked] = three(&world).await;
    let body = machine.body(bound("a"));
    machine.event(&world, 1, &body, None).await;
    let (_, key) = machine.signed(Purpose::AttestedReport, &body);
    let forged = SigningKey::generate(&OsEntropy).sign(Purpose::AttestedReport, &body).to_bytes().to_vec();
    machine.event(&world, 2, &body, Some((forged, key))).await;
    machine.event(&world, 3, &body, Some(machine.signed(Purpose::AttestedResult, &body))).await;
    machine.event(&world, 4, &body, Some(other.signed(Purpose::AttestedReport, &body))).await;
    machine.event(&world, 5, b"\xff\xff", Some(machine.signed(Purpose::AttestedReport, b"\xff\xff"))).await;
    let elsewhere =
        NodeReport { node_id: other.node_id().to_string(), report: Some(bound("a")) }.encode_to_vec();
    machine.event(&world, 6, &elsewhere, Some(machine.signed(Purpose::AttestedReport, &elsewhere))).await;
    revoked.report(&world, 7, bound("b")).await;
    world
        .run(
            "UPDATE node_certs SET revoked_at = compute_now() WHERE node_id = $1",
            &[&revoked.node_id().uuid()],
        )
        .await;
    other.event(&world, 8, &other.body(condition("GpuHot", false)), None).await;
    other.report(&world, 9, released("c")).await;

    observe(&world, &[machine.node_id(), other.node_id(), revoked.node_id()]).await.unwrap();
    let mut refused: Vec<i64> = world
        .events("security.invalid-report")
        .await
        .iter()
        .map(|data| data["seq"].as_i64().unwrap())
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, [1, 2, 3, 4, 5, 7]);
    assert_eq!(world.events("security.node-mismatch").await[0]["seq"].as_i64(), Some(6));
    assert_eq!(world.events("node.condition").await.len(), 1);
    let heard: Vec<String> =
        world.heard("listener").await.into_iter().filter(|what| !what.starts_with("facts")).collect();
    assert_eq!(heard.iter().filter(|what| what.starts_with("bound")).count(), 0);
    assert_eq!(heard.iter().filter(|what| *what == "released c" || *what == "condition").count(), 2);
    assert_eq!(world.count(OPEN).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_are_told_when_they_are_news_or_old() {
    let world = world().await;
    let [machine, ..] = three(&world).await;
    let node_id = machine.node_id();
    let told = async || world.heard("listener").await.iter().filter(|what| what.starts_with("facts")).count();
    let before = told().await;
    let observe = async || {
        observe(&world, &[node_id]).await.unwrap();
        tell_facts(&world).await.unwrap();
    };
    observe().await;
    observe().await;
    assert_eq!(told().await, before + 1, "once");
    world
        .run(
            "INSERT INTO node_inventory (node_id, section, hash, content) VALUES ($1, 'cpu', 'h1', '{}')",
            &[&node_id.uuid()],
        )
        .await;
    observe().await;
    assert_eq!(told().await, before + 2, "another inventory");
    world.run("UPDATE pools SET version = version + 1", &[]).await;
    observe().await;
    assert_eq!(told().await, before + 3, "another policy of its pool");
    world.pass(599);
    observe().await;
    assert_eq!(told().await, before + 3, "they are what they were");
    world.pass(2);
    observe().await;
    assert_eq!(told().await, before + 4, "long ago");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_observer_fails_at_is_undone_alone_and_facts_hold_up_no_reports() {
    let failing = Listener::new("failing", true);
    let world = with_listeners(Listener::new("listener", false), vec![failing]).await;
    let [machine, other, _] = three(&world).await;
    let nodes = [machine.node_id(), other.node_id()];
    machine.report(&world, 1, bound("a")).await;
    other.report(&world, 1, bound("b")).await;
    world.listener.facts_fail.store(true, Ordering::SeqCst);
    observe(&world, &nodes).await.unwrap();
    assert_eq!(world.count(OPEN).await, 0);
    let heard = |what: Vec<String>| what.iter().filter(|what| what.starts_with("bound")).count();
    assert_eq!(heard(world.heard("listener").await), 2);
    assert_eq!(heard(world.heard("failing").await), 0);
    assert_eq!(world.events("node.report-failed").await.len(), 2);
    assert!(tell_facts(&world).await.is_err());
    world.listener.facts_fail.store(false, Ordering::SeqCst);
    tell_facts(&world).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_that_are_not_settled_are_looked_at_again_when_nobody_says_a_word() {
    let world = world().await;
    let [machine, ..] = three(&world).await;
    let node_id = machine.node_id();
    let facts = FactsQueue(world.fleet.clone());
    world.listener.unsettled.store(true, Ordering::SeqCst);
    let again = together(&world, &facts, &[node_id]).await.unwrap();
    assert_eq!(again.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [key(node_id)]);
    let again = together(&world, &facts, &[node_id]).await.unwrap();
    assert_eq!(again.len(), 1, "told and not old yet, and still to be looked at again");
    world.clock.advance(again[0].1);
    world.listener.unsettled.store(false, Ordering::SeqCst);
    let before = world.heard("listener").await.len();
    assert!(together(&world, &facts, &[node_id]).await.unwrap().is_empty());
    assert_eq!(world.heard("listener").await.len(), before + 1, "told once more, and settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn specs_of_many_nodes_are_stored_at_once_and_only_those_that_say_something_else() {
    let world = world().await;
    let [one, two, three] = three(&world).await;
    let joined = world.joined("gpu-4", TokenIs::default()).await;
    let nodes = [one.node_id(), two.node_id(), three.node_id(), joined.node_id()];
    // One of them is there already.
    assert_eq!(world.fleet.assemble(two.node_id()).await.unwrap(), Assembled::Stored { generation: 1 });
    let assemble = async || {
        let (fleet, nodes) = (&world.fleet, nodes.as_slice());
        let found: Result<_, Fault> =
            world.store.tx(Op::new("test_together"), |tx| Box::pin(fleet.assemble_all(tx, nodes))).await;
        found.unwrap()
    };
    let (stored, unchanged) =
        (|generation| Assembled::Stored { generation }, |generation| Assembled::Unchanged { generation });
    assert_eq!(assemble().await, [stored(1), unchanged(1), stored(1), Assembled::NotServed]);
    assert_eq!(assemble().await, [unchanged(1), unchanged(1), unchanged(1), Assembled::NotServed]);
    world.holds.0.lock().unwrap().push("alloc_1".to_owned());
    together(&world, &SpecQueue(world.fleet.clone()), &nodes).await.unwrap();
    assert_eq!(assemble().await, [unchanged(2), unchanged(2), unchanged(2), Assembled::NotServed]);
    for machine in [&one, &two, &three] {
        let text = "SELECT generation, spec_body, spec_signature FROM nodes WHERE node_id = $1";
        let row = world.row(text, &[&machine.node_id().uuid()]).await;
        let (body, signature): (Vec<u8>, Vec<u8>) = (row.get("spec_body"), row.get("spec_signature"));
        world.verifier().verify_bytes(Purpose::DesiredState, &body, &signature, world.now()).unwrap();
        let body: wire::proto::agent::DesiredStateBody = wire::decode("spec", &body, 1 << 20).unwrap();
        assert_eq!((body.node_id, body.generation), (machine.node_id().to_string(), 2), "each its own");
    }
}

/// Runs a queue until it rests.
async fn drain(queue: &DrivenQueue) {
    loop {
        let (claimed, pause) = queue.claim(8).await.unwrap();
        for item in &claimed {
            queue.run(item).await.unwrap();
        }
        if claimed.is_empty() && !pause.is_zero() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_many_nodes_need_takes_a_transaction_for_all_of_them() {
    let world = world().await;
    let mut machines = Vec::new();
    for at in 0..30 {
        machines.push(world.ready(&format!("gpu-{at}")).await);
    }
    let running = Running::driven(
        "one",
        world.store.clone(),
        Supervisor::new(),
        Arc::new(SystemClock::new()),
        Arc::new(OsRng),
    );
    let queues: [Arc<dyn QueueHandler>; 3] = [
        Arc::new(SpecQueue(world.fleet.clone())),
        Arc::new(ObserveQueue(world.fleet.clone())),
        Arc::new(FactsQueue(world.fleet.clone())),
    ];
    let queues = queues.map(|handler| DrivenQueue::new(&running, handler));
    // The first keys of a process go one by one, and facts are news once.
    let keys: Vec<String> = machines.iter().map(|machine| key(machine.node_id())).collect();
    let wake = async |queue: &'static str| {
        let keys = keys.as_slice();
        let woken: Result<(), Fault> = world
            .store
            .tx(Op::new("test_wake"), |tx| {
                Box::pin(async move { Ok(kernel::module::wake_all(tx, queue, keys).await?) })
            })
            .await;
        woken.unwrap();
    };
    for queue in &queues {
        wake(queue.name()).await;
        drain(queue).await;
    }
    drain(&queues[2]).await;

    for (at, machine) in machines.iter().enumerate() {
        machine.event(&world, 1, &machine.body(condition("GpuHot", false)), None).await;
        world.holds.0.lock().unwrap().push(format!("alloc_{at}"));
    }
    wake(queues[0].name()).await;
    wake(queues[1].name()).await;
    for queue in &queues {
        drain(queue).await;
    }
    for table in
        ["SELECT count(DISTINCT xmin::text) FROM nodes", "SELECT count(DISTINCT xmin::text) FROM node_events"]
    {
        assert_eq!(world.count(table).await, 1, "{table}");
    }
    let reports = i64::try_from(machines.len()).unwrap();
    assert_eq!(world.count(OPEN).await, 0);
    assert_eq!(world.count("SELECT count(*) FROM nodes WHERE generation = 2").await, reports);
}
