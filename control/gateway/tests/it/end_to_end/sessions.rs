//! What goes back and forth while all is well.

use super::*;

#[tokio::test]
async fn a_session_welcomes_beats_and_is_counted_alive() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_trust_bundle(3, vec![8; 40]);
    let mut stream = bench.greet(&machine).await;
    let welcome = stream.welcome().await;
    assert_eq!((welcome.protocol, welcome.deployment_epoch), (1, 1));
    assert_eq!(welcome.journal_id, journal(1));
    assert_eq!(welcome.heartbeat_interval_ms, 10_000);
    assert_eq!(welcome.trust_bundle.unwrap().value, vec![8; 40]);
    let before = bench.lab.clock.now().millis();
    stream.beat(1, 4);
    let (seq, time) = stream
        .until(|frame| match frame {
            Out::HeartbeatAck(ack) => Some((ack.seq, ack.server_time_ms)),
            _ => None,
        })
        .await;
    assert_eq!(seq, 1);
    assert!(i64::try_from(time).unwrap().abs_diff(before) < 5_000);
    testkit::eventually(BOUND, || async {
        let beats = bench.store.beats(machine.node_id);
        if beats >= 1 { Ok(()) } else { Err(beats) }
    })
    .await;
}

#[tokio::test]
async fn a_spec_goes_out_before_the_commands_and_again_on_change() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_spec(spec(machine.node_id, 3));
    let mut stream = bench.open(&machine).await;
    let first = desired(&mut stream).await;
    assert_eq!(first.body, spec(machine.node_id, 3).body);
    assert!(first.fresh.is_none());
    bench.store.put_spec(spec(machine.node_id, 4));
    assert_eq!(desired(&mut stream).await.body, spec(machine.node_id, 4).body);
    stream.send(In::SpecRequest(SpecRequest { have_generation: 3, reason: "full-spec".to_owned() }));
    assert_eq!(desired(&mut stream).await.body, spec(machine.node_id, 4).body);
}

#[tokio::test]
async fn a_fresh_node_gets_its_spec_with_a_binding_to_its_nonce() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    bench.store.put_spec(spec(machine.node_id, 2));
    let mut fresh = hello(&machine);
    fresh.fresh = true;
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, fresh).await;
    stream.welcome().await;
    let bound = |generation| {
        let statement = FreshStatement {
            node_id: machine.node_id.to_string(),
            nonce: vec![3; 32].into(),
            generation,
            ..FreshStatement::default()
        };
        FreshBinding { statement: statement.encode_to_vec().into(), signature: None }
    };
    let worker = async {
        // The first binding is of a spec that is not the current one any more.
        for generation in [1, 2] {
            let item = bench.store.next_request().await;
            assert_eq!(item.request.kind, InboxKind::Fresh);
            let asked = FreshStatement::decode(item.request.request.as_slice()).unwrap();
            assert_eq!(
                (asked.node_id.as_str(), asked.nonce.len()),
                (machine.node_id.to_string().as_str(), 32)
            );
            item.answer(InboxAnswer::Reply(bound(generation).encode_to_vec()));
        }
    };
    let (got, ()) = tokio::join!(desired(&mut stream), worker);
    assert_eq!(got.body, spec(machine.node_id, 2).body);
    assert_eq!(got.fresh, Some(bound(2)));
}

#[tokio::test]
async fn a_command_is_sent_run_and_its_result_acknowledged() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut stream).await, (command_id, 1));
    stream.send(reported(command_id, CommandState::Acked));
    stream.send(reported(command_id, CommandState::Running));
    bench.fate_is(command_id, State::Running).await;
    stream.send(reported(command_id, CommandState::Succeeded));
    assert_eq!(acknowledged(&mut stream).await, (0, vec![command_id.to_string()]));
    let fate = bench.store.command_fate(command_id).unwrap();
    assert_eq!((fate.state, fate.result), (State::Succeeded, Some(vec![4, 2])));
}

#[tokio::test]
async fn commands_wait_for_credits_and_a_busy_one_goes_again() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut greeting = hello(&machine);
    greeting.lane_credits = [("control".to_owned(), 1)].into();
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, greeting).await;
    stream.welcome().await;
    let first = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    let second = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut stream).await, (first, 1));
    stream.send(reported(first, CommandState::Busy));
    bench.fate_is(first, State::Pending).await;
    assert_eq!(bench.store.command_fate(second).unwrap().state, State::Pending);
    stream.beat(1, 2);
    assert_eq!(commanded(&mut stream).await, (first, 2));
    assert_eq!(commanded(&mut stream).await, (second, 1));
}

#[tokio::test]
async fn a_cancel_goes_out_once_a_session() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    commanded(&mut stream).await;
    stream.send(reported(command_id, CommandState::Running));
    bench.fate_is(command_id, State::Running).await;
    bench.store.request_cancel(command_id, "enough");
    let cancelled = |frame| match frame {
        Out::Cancel(cancel) => Some((cancel.command_id, cancel.reason)),
        _ => None,
    };
    let named = (command_id.to_string(), "enough".to_owned());
    assert_eq!(stream.until(cancelled).await, named);
    // Looked for again several times before this comes back.
    for seq in 1..=4 {
        stream.beat(seq, 4);
        let frame = stream.frame().await;
        assert!(matches!(frame, Out::HeartbeatAck(_)), "{frame:?}");
        bench.store.put_spec(spec(machine.node_id, seq));
        desired(&mut stream).await;
    }
    drop(stream);
    let mut stream = bench.open(&machine).await;
    assert_eq!(commanded(&mut stream).await, (command_id, 2));
    assert_eq!(stream.until(cancelled).await, named);
}

#[tokio::test]
async fn results_of_the_hello_are_stored_before_anything_is_sent_again() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let done = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    let open = bench.enqueue(machine.node_id, CommandKind::LogsCollect);
    commanded(&mut stream).await;
    commanded(&mut stream).await;
    drop(stream);
    bench.store.put_spec(spec(machine.node_id, 1));
    let mut again = hello(&machine);
    again.unacked_results = vec![CommandUpdate {
        command_id: done.to_string(),
        state: CommandState::Succeeded.into(),
        ..CommandUpdate::default()
    }];
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, again).await;
    stream.welcome().await;
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(match stream.frame().await {
            Out::Ack(ack) => format!("ack {}", ack.command_ids.concat()),
            Out::DesiredState(_) => "spec".to_owned(),
            Out::Command(command) => {
                format!("command {}", wire::command::decode_body(&command.body).unwrap().command_id)
            }
            other => format!("{other:?}"),
        });
    }
    assert_eq!(frames.pop(), Some(format!("command {open}")));
    frames.sort();
    assert_eq!(frames, [format!("ack {done}"), "spec".to_owned()]);
    assert_eq!(bench.store.command_fate(done).unwrap().state, State::Succeeded);
}

#[tokio::test]
async fn events_statuses_and_inventory_are_stored() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let batch = |journal_id: String, seqs: &[u64]| {
        let events = seqs
            .iter()
            .map(|seq| NodeEvent {
                seq: *seq,
                class: EventClass::Transition.into(),
                report: vec![1].into(),
                ..NodeEvent::default()
            })
            .collect();
        In::Events(EventBatch { journal_id, events })
    };
    stream.send(batch(journal(99), &[1]));
    stream.send(batch(journal(1), &[1, 2, 3]));
    assert_eq!(acknowledged(&mut stream).await, (3, vec![]));
    let journal_id = JournalId::from_uuid(Uuid::from_u128(1));
    assert_eq!(bench.store.event_seqs(machine.node_id, journal_id), [1, 2, 3]);

    stream.send(In::Status(StatusReport { node_id: machine.node_id.to_string(), ..StatusReport::default() }));
    testkit::eventually(BOUND, || async {
        bench.store.status(machine.node_id).filter(|(key, _)| !key.is_empty()).ok_or("no status")
    })
    .await;

    let inventory = NodeInventory::default();
    let (json, hash) = (inventory.encode(SectionName::Cpu), inventory.hash(SectionName::Cpu).to_string());
    let mut beat = wire::proto::agent::Heartbeat { seq: 1, ..Default::default() };
    beat.inventory_hashes = [("cpu".to_owned(), hash.clone())].into();
    stream.send(In::Heartbeat(beat));
    let asked = stream
        .until(|frame| match frame {
            Out::InventoryRequest(request) => Some(request.sections),
            _ => None,
        })
        .await;
    assert_eq!(asked, ["cpu"]);
    let section = |name: &str, json: &[u8], hash: &str| InventorySection {
        name: name.to_owned(),
        hash: hash.to_owned(),
        json: json.to_vec().into(),
    };
    let sections = vec![section("memory", b"{\"x\": 1.5}", "aa"), section("cpu", &json, &hash)];
    stream.send(In::Inventory(InventoryReport { sections }));
    testkit::eventually(BOUND, || async {
        let stored = bench.store.inventory(machine.node_id);
        if stored.get("cpu") == Some(&hash) && stored.len() == 1 {
            Ok(())
        } else {
            Err(format!("{stored:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn many_nodes_are_served_at_once() {
    let bench = Bench::new().await;
    let machines: Vec<Machine> = (0..50).map(|_| bench.machine()).collect();
    let opened = machines.iter().map(|machine| async {
        let mut stream = bench.open(machine).await;
        let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
        assert_eq!(commanded(&mut stream).await.0, command_id);
        stream.send(reported(command_id, CommandState::Succeeded));
        assert_eq!(acknowledged(&mut stream).await.1, [command_id.to_string()]);
        Ok::<_, std::convert::Infallible>(stream)
    });
    try_join_all(opened).await.unwrap();
}
