//! Claiming, cancelling and settling commands.

use super::*;

pub async fn commands_are_claimed_in_order_within_their_credits(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await);
    }
    assert_eq!(bench.claim(session, &[("control", 0)]).await, []);
    assert_eq!(bench.claim(session, &[("control", 2)]).await, ids[..2]);
    assert_eq!(bench.claim(session, &[("control", 2)]).await, ids[2..4]);
    assert_eq!(bench.claim(session, &[("control", 9)]).await, ids[4..]);
    assert_eq!(bench.state(ids[0]).await, CommandState::Dispatched);
}

pub async fn a_long_queue_keeps_no_other_node_waiting(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (busy, other) = (bench.node().await, bench.node().await);
    let (busy_session, _) = bench.open(&busy).await;
    let (other_session, _) = bench.open(&other).await;
    for _ in 0..1_100 {
        bench.enqueue(busy.node_id, CommandKind::InventoryRefresh).await;
    }
    let wanted = bench.enqueue(other.node_id, CommandKind::InventoryRefresh).await;
    let lanes = [busy_session, other_session]
        .map(|session| LaneCredits { session, credits: BTreeMap::from([("control".to_owned(), 1)]) });
    let claimed = bench.store.claim_commands(bench.lease, lanes.to_vec()).await.unwrap();
    assert_eq!(claimed.len(), 2);
    assert!(claimed.iter().any(|command| command.command_id == wanted));
}

pub async fn lanes_do_not_wait_for_each_other(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    let logs = bench.enqueue(hello.node_id, CommandKind::LogsCollect).await;
    assert_eq!(bench.claim(session, &[("bulk", 1)]).await, [logs]);
}

pub async fn a_command_is_claimed_once(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let command_id = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    let (one, two) =
        tokio::join!(bench.claim(session, &[("control", 9)]), bench.claim(session, &[("control", 9)]));
    assert_eq!([one, two].concat(), [command_id]);
}

pub async fn a_busy_command_goes_out_again(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let command_id = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    bench.claim(session, &[("control", 1)]).await;
    assert_eq!(bench.report(session, command_id, Wire::Busy).await, []);
    assert_eq!(bench.state(command_id).await, CommandState::Pending);
    let credits = BTreeMap::from([("control".to_owned(), 1)]);
    let again =
        bench.store.claim_commands(bench.lease, vec![LaneCredits { session, credits }]).await.unwrap();
    assert_eq!((again[0].command_id, again[0].attempt), (command_id, 2));
    // Once it was taken, a late word of being busy changes nothing.
    bench.report(session, command_id, Wire::Acked).await;
    bench.report(session, command_id, Wire::Busy).await;
    assert_eq!(bench.state(command_id).await, CommandState::Acked);
}

pub async fn a_cancelled_command_is_not_sent(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let cancelled = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    let other = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    world.request_cancel(cancelled, "not needed").await;
    assert_eq!(bench.claim(session, &[("control", 9)]).await, [other]);
    assert_eq!(bench.state(cancelled).await, CommandState::Cancelled);
}

pub async fn a_command_under_way_is_named_for_cancelling(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let command_id = bench.enqueue(hello.node_id, CommandKind::LogsCollect).await;
    bench.claim(session, &[("bulk", 1)]).await;
    assert_eq!(bench.store.cancels(bench.lease, vec![session]).await.unwrap(), []);
    world.request_cancel(command_id, "enough").await;
    let named = (hello.node_id, command_id, "enough".to_owned());
    assert_eq!(bench.store.cancels(bench.lease, vec![session]).await.unwrap(), [named]);
    let (_, opened) = bench.open(&hello).await;
    assert_eq!(opened.replay[0].cancel_requested.as_deref(), Some("enough"));
    assert_eq!(bench.store.cancels(bench.lease, vec![session]).await.unwrap(), []);
}

pub async fn a_body_that_is_not_the_rows_is_not_sent(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (hello, other) = (bench.node().await, bench.node().await);
    let (session, _) = bench.open(&hello).await;
    let mut foreign = command(other.node_id, CommandKind::InventoryRefresh);
    foreign.node_id = hello.node_id;
    let mut garbage = command(hello.node_id, CommandKind::InventoryRefresh);
    garbage.body = vec![0xff; 12];
    let ids = [foreign.command_id, garbage.command_id];
    world.enqueue(foreign).await;
    world.enqueue(garbage).await;
    assert_eq!(bench.claim(session, &[("control", 9)]).await, []);
    for command_id in ids {
        let fate = world.command_fate(command_id).await;
        assert_eq!((fate.state, fate.reason.as_str()), (CommandState::Cancelled, "invalid-body"));
    }
}

pub async fn results_may_skip_steps_and_land_once(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let command_id = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    bench.claim(session, &[("control", 1)]).await;
    assert_eq!(bench.report(session, command_id, Wire::Succeeded).await, [command_id]);
    // Said again, with another outcome: acknowledged, and nothing changes.
    assert_eq!(bench.report(session, command_id, Wire::Failed).await, [command_id]);
    let fate = world.command_fate(command_id).await;
    assert_eq!((fate.state, fate.result), (CommandState::Succeeded, Some(vec![9, 9])));
    assert_eq!(bench.report(session, command_id, Wire::Running).await, []);
    assert_eq!(bench.state(command_id).await, CommandState::Succeeded);
}

pub async fn a_node_cannot_move_another_nodes_command(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    let (first, _) = bench.open(&one).await;
    let (second, _) = bench.open(&two).await;
    let command_id = bench.enqueue(one.node_id, CommandKind::InventoryRefresh).await;
    bench.claim(first, &[("control", 1)]).await;
    assert_eq!(bench.report(second, command_id, Wire::Succeeded).await, [command_id]);
    assert_eq!(bench.state(command_id).await, CommandState::Dispatched);
    let forged = SessionKey { node_id: one.node_id, epoch: second.epoch };
    assert_eq!(bench.report(forged, command_id, Wire::Succeeded).await, []);
    assert_eq!(bench.state(command_id).await, CommandState::Dispatched);
}

pub async fn an_unknown_result_is_acknowledged(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let unknown = CommandId::from_uuid(unique());
    assert_eq!(bench.report(session, unknown, Wire::Failed).await, [unknown]);
    assert_eq!(bench.report(session, unknown, Wire::Running).await, []);
}

pub async fn updates_of_many_nodes_land_together(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    let (first, _) = bench.open(&one).await;
    let (second, _) = bench.open(&two).await;
    let a = bench.enqueue(one.node_id, CommandKind::InventoryRefresh).await;
    let b = bench.enqueue(two.node_id, CommandKind::InventoryRefresh).await;
    bench.claim(first, &[("control", 1)]).await;
    bench.claim(second, &[("control", 1)]).await;
    let updates = vec![
        update(second, b, Wire::Acked),
        update(first, a, Wire::Acked),
        update(second, b, Wire::Running),
        update(first, a, Wire::Succeeded),
        update(first, a, Wire::Running),
    ];
    let acknowledged = bench.store.apply_updates(bench.lease, updates).await.unwrap();
    assert_eq!(acknowledged, [(one.node_id, a)]);
    assert_eq!(bench.state(a).await, CommandState::Succeeded);
    assert_eq!(bench.state(b).await, CommandState::Running);
}
