//! Refusals, takeovers, bounds, and the end of things.

use super::*;

#[tokio::test]
async fn a_revocation_is_said_and_stays() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    bench.store.revoke_node(machine.node_id);
    assert!(matches!(stream.frame().await, Out::Revocation(_)));
    stream.end().await.unwrap();
    for _ in 0..2 {
        let client = dial(&bench.lab, bench.gateway.address, Some(&machine)).await;
        let status = try_session(client).await.err().expect("it stays closed");
        assert_eq!(status.code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn another_gateway_takes_a_session_over() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let other = bench.lab.gateway(Arc::new(bench.store.clone())).await;
    let mut first = bench.open(&machine).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    commanded(&mut first).await;
    let mut second = greet(&bench.lab, other.address, &machine, hello(&machine)).await;
    second.welcome().await;
    assert_eq!(commanded(&mut second).await, (command_id, 2));
    // The first gateway finds out with the next heartbeat it stores.
    first.beat(1, 4);
    assert_eq!(first.end().await.unwrap_err().code(), Code::Aborted);
    second.send(reported(command_id, CommandState::Succeeded));
    assert_eq!(acknowledged(&mut second).await.1, [command_id.to_string()]);
}

#[tokio::test]
async fn a_node_that_connects_again_to_the_same_gateway_has_one_session() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut first = bench.open(&machine).await;
    let mut second = bench.open(&machine).await;
    assert_eq!(first.end().await.unwrap_err().code(), Code::Aborted);
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut second).await.0, command_id);
}

#[tokio::test]
async fn a_hello_for_another_node_is_refused() {
    let bench = Bench::new().await;
    let (machine, other) = (bench.machine(), bench.machine());
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, hello(&other)).await;
    assert_eq!(refused(&mut stream).await, "wrong_node");
    assert_eq!(bench.store.open_session_epoch(other.node_id), None);
}

#[tokio::test]
async fn what_the_store_refuses_is_said() {
    let bench = Bench::new().await;
    let unknown = bench.lab.machine();
    // Its certificate is not known either.
    let client = dial(&bench.lab, bench.gateway.address, Some(&unknown)).await;
    assert_eq!(try_session(client).await.err().unwrap().code(), Code::PermissionDenied);

    let machine = bench.machine();
    let mut ahead = hello(&machine);
    ahead.applied_generation = 7;
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, ahead.clone()).await;
    assert_eq!(refused(&mut stream).await, "observe_only");
    bench.store.quarantine(machine.node_id);
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, ahead).await;
    assert_eq!(refused(&mut stream).await, "quarantined");

    let mut old = hello(&bench.machine());
    (old.protocol_min, old.protocol_max) = (0, 0);
    let machine = bench.machine();
    old.node_id = machine.node_id.to_string();
    let mut stream = greet(&bench.lab, bench.gateway.address, &machine, old).await;
    assert_eq!(refused(&mut stream).await, "upgrade_required");
}

#[tokio::test]
async fn the_first_frame_must_be_a_hello_and_come_soon() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream =
        try_session(dial(&bench.lab, bench.gateway.address, Some(&machine)).await).await.unwrap();
    stream.beat(1, 1);
    assert_eq!(refused(&mut stream).await, "bad_hello");
    let mut silent =
        try_session(dial(&bench.lab, bench.gateway.address, Some(&machine)).await).await.unwrap();
    assert_eq!(silent.end().await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn frames_out_of_bounds_end_the_session_and_only_that() {
    let bench = Bench::new().await;
    let (machine, neighbour) = (bench.machine(), bench.machine());
    let mut other = bench.open(&neighbour).await;

    let mut stream = bench.open(&machine).await;
    let report = vec![0; wire::limits::FRAME_BYTES_MAX + 1];
    let event = NodeEvent { seq: 1, class: 1, report: report.into(), ..NodeEvent::default() };
    stream.send(In::Events(EventBatch { journal_id: journal(1), events: vec![event] }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::OutOfRange);

    let mut stream = bench.open(&machine).await;
    let events = (1..=257).map(|seq| NodeEvent { seq, class: 1, ..NodeEvent::default() }).collect();
    stream.send(In::Events(EventBatch { journal_id: journal(1), events }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::InvalidArgument);

    let mut stream = bench.open(&machine).await;
    stream
        .send(In::Status(StatusReport { node_id: neighbour.node_id.to_string(), ..StatusReport::default() }));
    assert_eq!(stream.end().await.unwrap_err().code(), Code::InvalidArgument);

    other.beat(1, 1);
    assert!(matches!(other.frame().await, Out::HeartbeatAck(_)));
}

#[tokio::test]
async fn garbage_and_strangers_get_nothing() {
    let bench = Bench::new().await;
    let mut tcp = TcpStream::connect(bench.gateway.address).await.unwrap();
    tcp.write_all(&[0xa5; 4096]).await.unwrap();
    let mut rest = Vec::new();
    let _ = tcp.read_to_end(&mut rest).await;
    // At most an alert.
    assert!(rest.len() < 64, "{rest:?}");

    let client = dial(&bench.lab, bench.gateway.address, None).await;
    assert_eq!(try_session(client).await.err().unwrap().code(), Code::Unauthenticated);

    let elsewhere = Lab::new();
    let stranger = elsewhere.machine_of(bench.machine().node_id, &elsewhere.node_ca);
    let refused = match try_dial(&bench.lab, bench.gateway.address, Some(&stranger)).await {
        // In TLS 1.3 a client hears of it only with what it reads next.
        Ok(client) => try_session(client).await.map(drop).map_err(|status| status.to_string()),
        Err(err) => Err(err),
    };
    refused.expect_err("a certificate of another authority is refused");
}

#[tokio::test]
async fn a_lost_lease_closes_every_session_and_another_epoch_serves() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.greet(&machine).await;
    let welcome = stream.welcome().await;
    let gateway_id = welcome.gateway_id.parse().unwrap();
    bench.store.expire(gateway_id);
    assert_eq!(stream.end().await.unwrap_err().code(), Code::Unavailable);
    testkit::eventually(BOUND, || async {
        if bench.gateway.gateway.is_serving() { Ok(()) } else { Err("it does not serve again") }
    })
    .await;
    let mut stream = bench.greet(&machine).await;
    assert!(stream.welcome().await.session_epoch > welcome.session_epoch);
}

#[tokio::test]
async fn a_stop_drains_first() {
    let bench = Bench::new().await;
    let machines: Vec<Machine> = (0..3).map(|_| bench.machine()).collect();
    let mut streams = Vec::new();
    for machine in &machines {
        streams.push(bench.open(machine).await);
    }
    bench.gateway.stop.cancel();
    let mut waits = Vec::new();
    for stream in &mut streams {
        waits.push(
            stream
                .until(|frame| match frame {
                    Out::Drain(drain) => Some(drain.reconnect_after_ms),
                    _ => None,
                })
                .await,
        );
    }
    waits.sort_unstable();
    assert_eq!(waits, [0, 100, 200]);
    drop(streams);
    bench.gateway.ended.finished().await;
    for machine in &machines {
        assert_eq!(bench.store.open_session_epoch(machine.node_id), None);
    }
}

#[tokio::test]
async fn a_crowd_is_let_in_at_a_pace() {
    let lab = Lab::new();
    let store = MemoryDelivery::new(lab.clock.clone());
    let gateway = lab
        .gateway_with(Arc::new(store.clone()), |config| {
            config.sessions_per_second = 1;
            config.sessions_burst = 2;
        })
        .await;
    let machine = lab.machine();
    store.add_node(machine.node_id, &machine.serial);
    let mut waits = Vec::new();
    for _ in 0..4 {
        match try_session(dial(&lab, gateway.address, Some(&machine)).await).await {
            Ok(_) => {}
            Err(status) => {
                assert_eq!(status.code(), Code::Unavailable);
                let wait = status.metadata().get(RETRY_PUSHBACK).expect("it says how long");
                waits.push(wait.to_str().unwrap().parse::<u64>().unwrap());
            }
        }
    }
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert!(waits[1] > waits[0], "{waits:?}");
}

#[tokio::test]
async fn a_node_that_floods_uses_up_its_own_admission_and_nobody_elses() {
    let bench = Bench::new().await;
    let (loud, quiet) = (bench.machine(), bench.machine());
    let mut refused = 0;
    for _ in 0..25 {
        let client = dial(&bench.lab, bench.gateway.address, Some(&loud)).await;
        if let Err(status) = try_session(client).await {
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.metadata().get(RETRY_PUSHBACK).is_some());
            refused += 1;
        }
    }
    assert!((1..=5).contains(&refused), "{refused}");
    bench.open(&quiet).await;
}

#[tokio::test]
async fn a_node_has_one_stream_that_did_not_say_its_hello() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let session = || async {
        let client = dial(&bench.lab, bench.gateway.address, Some(&machine)).await;
        try_session(client).await.expect("it is taken")
    };
    let mut first = session().await;
    let second = session().await;
    assert_eq!(first.end().await.unwrap_err().code(), Code::Aborted);
    second.send(In::Hello(hello(&machine)));
    let mut second = second;
    second.welcome().await;
}

#[tokio::test]
async fn a_connection_carries_one_session() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    assert_eq!(stream.another().await.unwrap_err().code(), Code::FailedPrecondition);
    stream.beat(1, 1);
    assert!(matches!(stream.frame().await, Out::HeartbeatAck(_)));
}
