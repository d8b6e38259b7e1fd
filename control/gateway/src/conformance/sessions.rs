//! Leases, takeovers, refusals and what becomes of what was in flight.

use super::*;

pub async fn a_lease_is_renewed_until_it_runs_out(world: &dyn World) {
    let bench = Bench::new(world).await;
    let first = bench.store.renew(bench.lease, TTL).await.unwrap();
    assert!(bench.store.renew(bench.lease, TTL).await.unwrap() >= first);
    world.expire(bench.lease.gateway_id).await;
    assert!(is_lease_lost(bench.store.renew(bench.lease, TTL).await));
}

pub async fn a_gateway_that_registers_again_has_another_epoch(world: &dyn World) {
    let bench = Bench::new(world).await;
    let again = bench.store.register(bench.lease.gateway_id, "elsewhere", TTL).await.unwrap();
    assert!(again.lease.epoch > bench.lease.epoch);
    assert!(is_lease_lost(bench.store.renew(bench.lease, TTL).await));
    bench.store.renew(again.lease, TTL).await.unwrap();
}

pub async fn a_deregistered_gateway_writes_nothing(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    bench.open(&hello).await;
    bench.store.deregister(bench.lease).await.unwrap();
    assert!(is_lease_lost(bench.store.open_session(bench.lease, hello.clone()).await));
    assert!(is_lease_lost(bench.store.renew(bench.lease, TTL).await));
}

pub async fn nothing_is_written_under_a_lost_lease(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let sent = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    assert_eq!(bench.claim(session, &[("control", 1)]).await, [sent]);
    let waiting = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    world.expire(bench.lease.gateway_id).await;

    let (store, lease) = (&bench.store, bench.lease);
    let credits = BTreeMap::from([("control".to_owned(), 4)]);
    assert!(is_lease_lost(store.claim_commands(lease, vec![LaneCredits { session, credits }]).await));
    assert!(is_lease_lost(store.apply_updates(lease, vec![update(session, sent, Wire::Succeeded)]).await));
    assert!(is_lease_lost(store.put_events(lease, session, hello.journal_id, vec![event(1)]).await));
    assert!(is_lease_lost(store.put_statuses(lease, vec![status(session, 0, "k")]).await));
    assert!(is_lease_lost(store.put_inventory(lease, session, vec![section("cpu", "aa")]).await));
    assert!(is_lease_lost(store.heartbeats(lease, vec![session]).await));
    assert!(is_lease_lost(store.open_session(lease, hello.clone()).await));
    let request =
        InboxRequest { kind: InboxKind::Join, request: vec![1], source_ip: String::new(), peer_serial: None };
    assert!(is_lease_lost(store.ask(lease, request, Duration::from_secs(5)).await));

    assert_eq!(bench.state(sent).await, CommandState::Dispatched);
    assert_eq!(bench.state(waiting).await, CommandState::Pending);
    assert!(world.event_seqs(hello.node_id, hello.journal_id).await.is_empty());
    assert!(world.status(hello.node_id).await.is_none_or(|(key, _)| key.is_empty()));
    assert!(world.inventory(hello.node_id).await.is_empty());
}

pub async fn a_session_is_taken_over_by_whoever_opened_last(world: &dyn World) {
    let (one, two) = (Bench::new(world).await, Bench::new(world).await);
    let hello = one.node().await;
    let (first, _) = one.open(&hello).await;
    let (second, _) = two.open(&hello).await;
    assert!(second.epoch > first.epoch);
    assert_eq!(one.store.heartbeats(one.lease, vec![first]).await.unwrap(), [first]);
    assert_eq!(two.store.heartbeats(two.lease, vec![second]).await.unwrap(), []);
    // The one before closes only its own.
    one.store.close_session(one.lease, first).await.unwrap();
    one.store.close_session(one.lease, second).await.unwrap();
    assert_eq!(two.store.heartbeats(two.lease, vec![second]).await.unwrap(), []);
}

pub async fn a_session_that_was_taken_over_writes_nothing(world: &dyn World) {
    let (one, two) = (Bench::new(world).await, Bench::new(world).await);
    let hello = one.node().await;
    let (first, _) = one.open(&hello).await;
    let sent = one.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    assert_eq!(one.claim(first, &[("control", 1)]).await, [sent]);
    let (second, _) = two.open(&hello).await;
    let waiting = one.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;

    assert_eq!(one.claim(first, &[("control", 9)]).await, []);
    assert_eq!(one.report(first, sent, Wire::Succeeded).await, []);
    let (store, lease) = (&one.store, one.lease);
    assert_eq!(store.put_events(lease, first, hello.journal_id, vec![event(1)]).await.unwrap(), None);
    store.put_statuses(lease, vec![status(first, 0, "stale")]).await.unwrap();
    store.put_inventory(lease, first, vec![section("cpu", "aa")]).await.unwrap();
    assert_eq!(store.spec(lease, first).await.unwrap(), None);

    assert_eq!(one.state(sent).await, CommandState::Dispatched);
    assert!(world.event_seqs(hello.node_id, hello.journal_id).await.is_empty());
    assert!(world.status(hello.node_id).await.is_none_or(|(key, _)| key != "stale"));
    assert!(world.inventory(hello.node_id).await.is_empty());
    assert_eq!(two.claim(second, &[("control", 9)]).await, [waiting]);
}

pub async fn an_unknown_node_is_refused(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    hello.node_id = NodeId::from_uuid(unique());
    assert_eq!(bench.try_open(&hello).await.unwrap_err(), SessionRefused::UnknownNode);
}

pub async fn a_revoked_node_and_a_revoked_certificate_are_refused(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    world.revoke_node(one.node_id).await;
    world.revoke_certificate(two.cert_serial.clone()).await;
    assert_eq!(bench.try_open(&one).await.unwrap_err(), SessionRefused::Revoked);
    assert_eq!(bench.try_open(&two).await.unwrap_err(), SessionRefused::Revoked);
    let mut other = bench.node().await;
    // Another node's certificate, truly issued.
    other.cert_serial = bench.node().await.cert_serial;
    assert_eq!(bench.try_open(&other).await.unwrap_err(), SessionRefused::Revoked);
}

pub async fn a_revoked_node_ends_its_open_session(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two, three) = (bench.node().await, bench.node().await, bench.node().await);
    let (first, _) = bench.open(&one).await;
    let (second, _) = bench.open(&two).await;
    bench.open(&three).await;
    assert_eq!(bench.store.ended(bench.lease).await.unwrap(), []);
    world.revoke_node(one.node_id).await;
    world.revoke_certificate(two.cert_serial.clone()).await;
    let mut ended = bench.store.ended(bench.lease).await.unwrap();
    ended.sort_by_key(|(key, _)| key.epoch);
    assert_eq!(ended, [(first, SessionEnd::Revoked), (second, SessionEnd::Revoked)]);
}

pub async fn a_node_ahead_of_the_database_is_refused(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    world.put_spec(spec(hello.node_id, 3)).await;
    hello.applied_generation = 4;
    hello.applied_spec = Some((vec![1], vec![2]));
    assert_eq!(bench.try_open(&hello).await.unwrap_err(), SessionRefused::Ahead);
    world.quarantine(hello.node_id).await;
    assert_eq!(bench.try_open(&hello).await.unwrap_err(), SessionRefused::Quarantined);
    let mut later = bench.node().await;
    later.deployment_epoch = 2;
    assert_eq!(bench.try_open(&later).await.unwrap_err(), SessionRefused::Ahead);
    world.set_observe_only().await;
    assert_eq!(bench.try_open(&later).await.unwrap_err(), SessionRefused::ObserveOnly);
    hello.applied_generation = 3;
    let (_, opened) = bench.open(&hello).await;
    assert_eq!(opened.generation, 0);
}

pub async fn a_quarantined_node_is_heard_and_sent_nothing(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    world.put_spec(spec(hello.node_id, 1)).await;
    let (session, _) = bench.open(&hello).await;
    let sent = bench.enqueue(hello.node_id, CommandKind::GpuReset).await;
    assert_eq!(bench.claim(session, &[("control", 1)]).await, [sent]);
    bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    world.quarantine(hello.node_id).await;
    let mut again = hello.clone();
    again.journal_id = JournalId::from_uuid(unique());
    let (session, opened) = bench.open(&again).await;
    assert_eq!((opened.generation, opened.replay.len()), (0, 0));
    assert_eq!(bench.claim(session, &[("control", 9)]).await, []);
    assert_eq!(bench.store.spec(bench.lease, session).await.unwrap(), None);
    assert_eq!(
        bench.store.put_events(bench.lease, session, again.journal_id, vec![event(1)]).await.unwrap(),
        Some(1)
    );
    // Nothing was settled over its head either.
    assert_eq!(bench.state(sent).await, CommandState::Dispatched);
}

pub async fn an_observing_deployment_sends_nothing(world: &dyn World) {
    let bench = Bench::new(world).await;
    let hello = bench.node().await;
    world.put_spec(spec(hello.node_id, 1)).await;
    let (session, opened) = bench.open(&hello).await;
    assert_eq!(opened.generation, 1);
    let command_id = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    assert_eq!(bench.claim(session, &[("control", 1)]).await, [command_id]);
    world.request_cancel(command_id, "enough").await;
    bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    world.set_observe_only().await;
    assert_eq!(bench.claim(session, &[("control", 9)]).await, []);
    assert_eq!(bench.store.specs_behind(bench.lease, vec![(session, 0)]).await.unwrap(), []);
    assert_eq!(bench.store.cancels(bench.lease, vec![session]).await.unwrap(), []);
    assert_eq!(bench.store.heartbeats(bench.lease, vec![session]).await.unwrap(), []);
}

pub async fn the_same_journal_gets_everything_again_in_order(world: &dyn World) {
    let (one, two) = (Bench::new(world).await, Bench::new(world).await);
    let hello = one.node().await;
    let (session, _) = one.open(&hello).await;
    let mut sent = Vec::new();
    for kind in [CommandKind::GpuReset, CommandKind::LogsCollect, CommandKind::InventoryRefresh] {
        sent.push(one.enqueue(hello.node_id, kind).await);
    }
    assert_eq!(one.claim(session, &[("control", 9), ("bulk", 9)]).await, sent);
    one.report(session, sent[0], Wire::Running).await;
    let mut again = hello.clone();
    again.boot_id = "boot-2".to_owned();
    let (_, opened) = two.open(&again).await;
    let replay: Vec<(CommandId, u32)> =
        opened.replay.iter().map(|command| (command.command_id, command.attempt)).collect();
    assert_eq!(replay, [(sent[0], 2), (sent[1], 2), (sent[2], 2)]);
    assert_eq!(two.state(sent[0]).await, CommandState::Running);
}

pub async fn a_new_journal_fails_what_cannot_be_repeated(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let reset = bench.enqueue(hello.node_id, CommandKind::GpuReset).await;
    let refresh = bench.enqueue(hello.node_id, CommandKind::InventoryRefresh).await;
    let reboot = bench.enqueue(hello.node_id, CommandKind::NodeReboot).await;
    bench.claim(session, &[("control", 9)]).await;
    bench.report(session, reboot, Wire::Running).await;
    hello.journal_id = JournalId::from_uuid(unique());
    let (_, opened) = bench.open(&hello).await;
    assert_eq!(opened.replay.iter().map(|c| c.command_id).collect::<Vec<_>>(), [refresh]);
    for lost in [reset, reboot] {
        let fate = world.command_fate(lost).await;
        assert_eq!((fate.state, fate.reason.as_str()), (CommandState::Failed, "journal-lost"));
    }
    assert_eq!(opened.acked_event_seq, 0);
}

pub async fn a_new_boot_completes_a_reboot_that_was_running(world: &dyn World) {
    let bench = Bench::new(world).await;
    let mut hello = bench.node().await;
    let (session, _) = bench.open(&hello).await;
    let running = bench.enqueue(hello.node_id, CommandKind::NodeReboot).await;
    let accepted = bench.enqueue(hello.node_id, CommandKind::NodeReboot).await;
    bench.claim(session, &[("control", 9)]).await;
    bench.report(session, running, Wire::Running).await;
    bench.report(session, accepted, Wire::Acked).await;
    hello.journal_id = JournalId::from_uuid(unique());
    hello.boot_id = "boot-2".to_owned();
    let (_, opened) = bench.open(&hello).await;
    assert!(opened.replay.is_empty());
    assert_eq!(bench.state(running).await, CommandState::Succeeded);
    // It had not begun, and the machine came back all the same.
    assert_eq!(bench.state(accepted).await, CommandState::Failed);
}

pub async fn a_certificate_counts_until_it_is_revoked(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    assert!(bench.store.certificate_counts(&one.cert_serial).await.unwrap());
    assert!(!bench.store.certificate_counts("00").await.unwrap());
    world.revoke_certificate(one.cert_serial.clone()).await;
    assert!(!bench.store.certificate_counts(&one.cert_serial).await.unwrap());
    world.revoke_node(two.node_id).await;
    assert!(!bench.store.certificate_counts(&two.cert_serial).await.unwrap());
}

pub async fn heartbeats_name_the_sessions_that_are_lost(world: &dyn World) {
    let bench = Bench::new(world).await;
    let (one, two) = (bench.node().await, bench.node().await);
    let (first, _) = bench.open(&one).await;
    let (second, _) = bench.open(&two).await;
    let gone = SessionKey { epoch: second.epoch + 1_000, ..second };
    assert_eq!(bench.store.heartbeats(bench.lease, vec![first, gone, second]).await.unwrap(), [gone]);
    bench.store.close_session(bench.lease, first).await.unwrap();
    assert_eq!(bench.store.heartbeats(bench.lease, vec![first, second]).await.unwrap(), [first]);
}
