//! Ends that meet, and ends that do not.

use super::*;

#[tokio::test]
async fn joined_ends_say_to_each_other_what_they_like_and_one_may_say_its_last_first() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let ticket = bench.ticket(&machine);
    let mut client = bench.client(&ticket).await;
    let open = asked(&mut session).await;
    assert_eq!(open.ticket.as_ref(), bench.signed_parts(&ticket, &open), "it is passed on as it came");
    assert_eq!(open.address, "gw-1.example.test:8443");
    let mut node = bench.end(Some(&machine), End::TunnelId(ticket.tunnel_id.clone())).await;
    assert_eq!(reply(&mut node).await.unwrap(), TunnelReply::default());
    assert_eq!(reply(&mut client).await.unwrap(), TunnelReply::default());

    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    let mut heard = Vec::new();
    within(node.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"hello");
    // More than any buffer on the way holds.
    let said = vec![7; 1 << 20];
    let (_, heard) = within(async {
        let mut heard = Vec::new();
        let write = async {
            node.write_all(&said).await.unwrap();
            node.shutdown().await.unwrap();
        };
        let (written, read) = tokio::join!(write, client.read_to_end(&mut heard));
        read.unwrap();
        (written, heard)
    })
    .await;
    assert_eq!(heard.len(), said.len());
    let closed = bench.tickets.closed(id(&ticket)).await;
    let wanted = TunnelClosed {
        tunnel_id: id(&ticket),
        reason: "closed",
        to_node_bytes: 5,
        to_client_bytes: said.len() as u64,
    };
    assert_eq!(closed, wanted);
}

#[tokio::test]
async fn another_node_does_not_come_in_the_place_of_the_right_one() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (other, other_session) = bench.node().await;
    let ticket = bench.ticket(&machine);
    let mut client = bench.client(&ticket).await;
    asked(&mut session).await;
    let end = || End::TunnelId(ticket.tunnel_id.clone());
    // Neither by a word nor by coming.
    will_not(&other_session, &ticket.tunnel_id, "busy");
    assert_eq!(reply(&mut bench.end(Some(&other), end()).await).await.unwrap().reason, "not-here");
    // Nor does one whose certificate counts no more, whatever node it is of.
    let old = bench.lab.machine_of(machine.node_id, &bench.lab.node_ca);
    bench.store.revoke_certificate(&old.serial);
    assert_eq!(reply(&mut bench.end(Some(&old), end()).await).await.unwrap().reason, "not-here");
    for wrong in ["", "tun_01", &TunnelId::from_uuid(Uuid::from_u128(3)).to_string()] {
        let mut node = bench.end(Some(&machine), End::TunnelId(wrong.to_owned())).await;
        assert_eq!(reply(&mut node).await.unwrap().reason, "not-here", "{wrong:?}");
    }
    let mut node = bench.end(Some(&machine), end()).await;
    assert_eq!(reply(&mut node).await.unwrap(), TunnelReply::default());
    assert_eq!(reply(&mut client).await.unwrap(), TunnelReply::default());
    // Nor does the right one come twice.
    assert_eq!(reply(&mut bench.end(Some(&machine), end()).await).await.unwrap().reason, "not-here");
}

#[tokio::test]
async fn a_node_that_will_not_come_says_why_and_the_ticket_is_told_to_be_closed() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    for (said, heard) in [("busy", "busy"), ("", "refused"), ("a\u{1b}[31m", "a[31m")] {
        let ticket = bench.ticket(&machine);
        let mut client = bench.client(&ticket).await;
        asked(&mut session).await;
        will_not(&session, &ticket.tunnel_id, said);
        let told = reply(&mut client).await.unwrap();
        assert_eq!((told.reason.as_str(), told.message.as_str()), (heard, "noroom"));
        over(&mut client).await;
        assert_eq!(bench.tickets.closed(id(&ticket)).await.reason, "not-opened");
        // It comes too late after all.
        let mut node = bench.end(Some(&machine), End::TunnelId(ticket.tunnel_id)).await;
        assert_eq!(reply(&mut node).await.unwrap().reason, "not-here");
    }
    // Refusals of what nobody waits for are heard and forgotten.
    for n in 0..1000 {
        will_not(&session, &TunnelId::from_uuid(Uuid::from_u128(n)).to_string(), "busy");
    }
    bench.joined(&machine, &mut session).await;
}

#[tokio::test]
async fn so_many_are_let_into_instances_of_a_node_and_its_console_is_apart() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let tickets: Vec<_> = (0..16).map(|_| bench.ticket(&machine)).collect();
    let mut clients = join_all(tickets.iter().map(|ticket| bench.client(ticket))).await;
    for _ in &tickets {
        asked(&mut session).await;
    }
    let one_more = bench.ticket(&machine);
    assert_eq!(bench.refused(&bench.signed(&one_more)).await, "busy");
    assert!(!bench.tickets.rows().taken.contains(&id(&one_more)), "its ticket is as good as before");
    let console = ExecTicket {
        instance_id: String::new(),
        op: TunnelOp::Console.into(),
        port: 0,
        ..bench.ticket(&machine)
    };
    clients.push(bench.client(&console).await);
    asked(&mut session).await;
    for ticket in tickets.iter().chain([&console]) {
        will_not(&session, &ticket.tunnel_id, "busy");
    }
    for mut client in clients {
        assert_eq!(reply(&mut client).await.unwrap().reason, "busy");
        over(&mut client).await;
    }
    // Each place is there again.
    let tickets: Vec<_> = (0..15).map(|_| bench.ticket(&machine)).chain([one_more]).collect();
    let _clients = join_all(tickets.iter().map(|ticket| bench.client(ticket))).await;
    for _ in &tickets {
        asked(&mut session).await;
    }
}

impl Bench {
    /// The ticket as a gateway passed it on, when what is signed in it is this one.
    fn signed_parts<'a>(&self, ticket: &ExecTicket, open: &'a OpenTunnel) -> &'a [u8] {
        let (_, passed) = wire::tunnel::ticket(&open.ticket).expect("it is a ticket");
        assert_eq!(&passed, ticket);
        &open.ticket
    }
}
