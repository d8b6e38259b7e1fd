//! What ends a tunnel.

use super::*;

#[tokio::test]
async fn one_that_is_taken_back_is_cut_and_others_go_on() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (tunnel_id, mut client, mut node) = bench.joined(&machine, &mut session).await;
    let (_, mut other_client, mut other_node) = bench.joined(&machine, &mut session).await;
    bench.tickets.rows().revoked.insert(tunnel_id);
    over(&mut client).await;
    over(&mut node).await;
    assert_eq!(bench.tickets.closed(tunnel_id).await.reason, "revoked");
    other_client.write_all(b"on").await.unwrap();
    within(other_node.read_exact(&mut [0; 2])).await.unwrap();
}

#[tokio::test]
async fn what_may_not_go_on_ends_also_while_closes_cannot_be_told() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (first, client, node) = bench.joined(&machine, &mut session).await;
    let (second, mut second_client, mut second_node) = bench.joined(&machine, &mut session).await;
    bench.tickets.rows().closed_fails = true;
    drop((client, node));
    bench.tickets.rows().revoked.insert(second);
    over(&mut second_client).await;
    over(&mut second_node).await;
    bench.tickets.rows().closed_fails = false;
    // It is told once it can be.
    assert_eq!(bench.tickets.closed(first).await.reason, "closed");
    assert_eq!(bench.tickets.closed(second).await.reason, "revoked");
}

#[tokio::test]
async fn an_end_that_goes_away_ends_the_other() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    for node_goes in [false, true] {
        let (tunnel_id, client, node) = bench.joined(&machine, &mut session).await;
        let (gone, mut left) = if node_goes { (node, client) } else { (client, node) };
        drop(gone);
        over(&mut left).await;
        assert_eq!(bench.tickets.closed(tunnel_id).await.reason, "closed");
    }
}

#[tokio::test]
async fn a_lease_that_is_lost_ends_every_tunnel() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let (_, mut client, mut node) = bench.joined(&machine, &mut session).await;
    bench.store.expire(bench.gateway_id);
    over(&mut client).await;
    over(&mut node).await;
}

#[tokio::test]
async fn one_whose_time_is_over_is_cut() {
    let bench = Bench::new().await;
    let (machine, mut session) = bench.node().await;
    let mut ticket = bench.ticket(&machine);
    ticket.ends_at_ms = u64::try_from(bench.lab.clock.now().millis()).unwrap() + 1500;
    let mut client = bench.client(&ticket).await;
    asked(&mut session).await;
    let mut node = bench.end(Some(&machine), End::TunnelId(ticket.tunnel_id.clone())).await;
    let _ = (reply(&mut node).await, reply(&mut client).await);
    over(&mut client).await;
    over(&mut node).await;
    assert_eq!(bench.tickets.closed(id(&ticket)).await.reason, "time-over");
}
