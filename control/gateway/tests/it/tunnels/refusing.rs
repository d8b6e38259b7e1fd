//! Who is not let in, and what nobody may hold.

use super::*;

#[tokio::test]
async fn a_ticket_that_is_not_good_is_refused_by_what_is_wrong_with_it() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let good = bench.ticket(&machine);
    let changed = |change: fn(&mut ExecTicket)| {
        let mut ticket = bench.ticket(&machine);
        change(&mut ticket);
        bench.signed(&ticket)
    };
    let forged = {
        let (signed, mut ticket) = wire::tunnel::ticket(&bench.signed(&good)).unwrap();
        ticket.port = 23;
        SignedTicket { ticket: ticket.encode_to_vec().into(), ..signed }.encode_to_vec()
    };
    let never_issued =
        ExecTicket { tunnel_id: TunnelId::from_uuid(Uuid::new_v4()).to_string(), ..good.clone() };
    let elsewhere = bench.machine();
    let cases = [
        (b"\xff\xff".to_vec(), "malformed"),
        (Vec::new(), "bad-signature"),
        (forged, "bad-signature"),
        (Worker::new(&bench.lab).sign(&good, Purpose::ExecTicket), "bad-signature"),
        (bench.worker.sign(&good, Purpose::Command), "bad-signature"),
        (changed(|ticket| ticket.open_until_ms = 1), "expired"),
        (changed(|ticket| ticket.tunnel_id = "tun".to_owned()), "malformed"),
        (changed(|ticket| ticket.node_id = String::new()), "malformed"),
        (bench.signed(&bench.ticket(&elsewhere)), "not-here"),
        (bench.signed(&never_issued), "spent"),
    ];
    for (at, (ticket, reason)) in cases.iter().enumerate() {
        assert_eq!(bench.refused(ticket).await, *reason, "case {at}");
    }
    assert!(bench.tickets.rows().taken.is_empty(), "none of them was used up");
    // The good one is good all the same, once.
    let mut client = bench.client(&good).await;
    asked(&mut session).await;
    assert_eq!(bench.refused(&bench.signed(&good)).await, "spent", "while it waits");
    let mut node = bench.end(Some(&machine), End::TunnelId(good.tunnel_id.clone())).await;
    reply(&mut node).await.unwrap();
    reply(&mut client).await.unwrap();
    assert_eq!(bench.refused(&bench.signed(&good)).await, "spent", "while it is open");
    drop(client);
    over(&mut node).await;
    bench.tickets.closed(id(&good)).await;
    assert_eq!(bench.refused(&bench.signed(&good)).await, "spent", "and after it");
}

#[tokio::test]
async fn a_ticket_that_may_have_been_used_up_is_told_to_be_closed() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (tunnel_id, mut client, mut node) = bench.joined(&machine, &mut session).await;
    let doubtful = bench.ticket(&machine);
    bench.tickets.rows().take_breaks_off = true;
    assert_eq!(bench.refused(&bench.signed(&doubtful)).await, "unavailable");
    assert_eq!(bench.tickets.closed(id(&doubtful)).await.reason, "not-opened");
    // Whoever shows the ticket of an open one then does not have that one closed.
    let replayed = ExecTicket { tunnel_id: tunnel_id.to_string(), ..doubtful };
    assert_eq!(bench.refused(&bench.signed(&replayed)).await, "spent");
    client.write_all(b"on").await.unwrap();
    within(node.read_exact(&mut [0; 2])).await.unwrap();
    assert!(bench.tickets.rows().closed.iter().all(|one| one.tunnel_id != tunnel_id));
}

#[tokio::test]
async fn an_end_is_what_its_certificate_says() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let ticket = bench.ticket(&machine);
    over(&mut bench.end(Some(&machine), End::Ticket(bench.signed(&ticket).into())).await).await;
    let mut client = bench.client(&ticket).await;
    asked(&mut session).await;
    over(&mut bench.end(None, End::TunnelId(ticket.tunnel_id.clone())).await).await;
    will_not(&session, &ticket.tunnel_id, "busy");
    assert_eq!(reply(&mut client).await.unwrap().reason, "busy");
    // A hello that is none, and one that is longer than any.
    for wrong in [&[0, 2, 9, 9][..], &[0, 0][..], &[0xff, 0xff][..]] {
        let mut stream = connected(&bench.lab, &bench.gateway, None).await;
        stream.write_all(wrong).await.unwrap();
        over(&mut stream).await;
    }
}

#[tokio::test]
async fn a_node_holds_so_many_connections_for_tunnels_and_keeps_nobody_else_out() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (other, _session) = bench.node().await;
    let mut silent = Vec::new();
    for _ in 0..31 {
        silent.push(connected(&bench.lab, &bench.gateway, Some(&machine)).await);
    }
    let silent = Mutex::new(silent);
    // The gateway counts a connection when its handshake is done, which this end knows a moment earlier: so one that asks may
    // have come before one that is silent.
    testkit::eventually(SOON, || async {
        let another = connected(&bench.lab, &bench.gateway, Some(&machine)).await;
        silent.lock().unwrap().push(another);
        let mut one_more = bench.end(Some(&machine), End::TunnelId(String::new())).await;
        match reply(&mut one_more).await {
            Err(_) => Ok(()),
            Ok(reply) => Err(format!("it was served: {reply:?}")),
        }
    })
    .await;
    let mut node = bench.end(Some(&other), End::TunnelId(String::new())).await;
    assert_eq!(reply(&mut node).await.unwrap().reason, "not-here");
    drop(silent);
    testkit::eventually(SOON, || async {
        let mut node = bench.end(Some(&machine), End::TunnelId(String::new())).await;
        reply(&mut node).await.map(drop)
    })
    .await;
    bench.joined(&machine, &mut session).await;
}

#[tokio::test]
async fn a_gateway_that_joins_none_says_nothing() {
    let bench = Bench::new().await;
    let gateway = bench.lab.gateway(Arc::new(bench.store.clone())).await;
    let mut stream = connected(&bench.lab, &gateway, None).await;
    let ticket = bench.signed(&bench.ticket(&bench.machine()));
    let hello = TunnelHello { end: Some(End::Ticket(ticket.into())) };
    let _ = stream.write_all(&wire::tunnel::with_length(&hello)).await;
    over(&mut stream).await;
}
