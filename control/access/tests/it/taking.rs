//! A ticket is used up by one connection, at one gateway, in its time.

use std::time::Duration;

use futures::future::join_all;
use kernel::ports::delivery::GatewayLease;
use kernel::ports::tunnels::TicketStore;
use model::TunnelId;

use crate::world::{World, id};

impl World {
    pub async fn tickets_take(&self, lease: GatewayLease, tunnel: TunnelId) -> bool {
        self.tickets.take(lease, tunnel, self.node).await.expect("the store answers")
    }
}

#[tokio::test]
async fn two_gateways_that_race_for_a_ticket_get_it_once() {
    let world = World::new().await;
    let leases = [world.gateway(1).await, world.gateway(2).await];
    for _ in 0..10 {
        let tunnel = world.open().await;
        let tries = (0..8).map(|n| world.tickets_take(leases[n % 2], tunnel));
        let taken = join_all(tries).await.into_iter().filter(|taken| *taken).count();
        assert_eq!(taken, 1);
        // It is one's own, and to be closed by the other.
        let ask = [tunnel];
        let ended = join_all(leases.map(|lease| world.ended(lease, &ask))).await;
        assert_eq!(ended.iter().filter(|ended| ended.is_empty()).count(), 1, "{ended:?}");
    }
}

#[tokio::test]
async fn no_ticket_is_taken_that_is_not_good_here_and_now() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.open().await;
    assert!(!world.tickets_take(GatewayLease { epoch: 2, ..lease }, tunnel).await, "of an older lease");
    assert!(!world.tickets_take(GatewayLease { gateway_id: id(), ..lease }, tunnel).await, "no gateway");
    assert!(!world.tickets.take(lease, tunnel, id()).await.unwrap(), "another node's");
    assert!(!world.tickets_take(lease, id()).await, "nobody's");
    world.call("tunnels.close", serde_json::json!({ "id": tunnel.to_string() })).await.ok();
    assert!(!world.tickets_take(lease, tunnel).await, "taken back");
    assert_eq!(world.get(tunnel).await["reason"], "closed-by-call");
    assert_eq!(world.look(tunnel).await, None);

    let late = world.open().await;
    world.db.batch("UPDATE tunnels SET open_until = compute_now() - interval '1 second'").await;
    assert!(!world.tickets_take(lease, late).await, "its time is over");
    assert_eq!(world.get(late).await["reason"], "not-used");

    let kept = world.open().await;
    world.lose_leases().await;
    assert!(!world.tickets_take(lease, kept).await, "the lease is over");
    assert_eq!(world.told_both().await, "");
}

#[tokio::test]
async fn one_that_was_taken_at_the_last_moment_is_watched_although_that_is_seen_late() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.open().await;
    world.db.batch("UPDATE tunnels SET open_until = compute_now() - interval '1 second'").await;
    assert_eq!(
        world.look(tunnel).await,
        Some(Duration::from_secs(2)),
        "what takes it may not have committed"
    );
    world
        .db
        .batch(&format!(
            "UPDATE tunnels SET taken_at = open_until, gateway_id = '{}', gateway_epoch = 1",
            lease.gateway_id.uuid()
        ))
        .await;
    world.look(tunnel).await;
    assert_eq!(world.told_both().await, "opened");

    let unused = world.open().await;
    world.db.batch("UPDATE tunnels SET open_until = compute_now() - interval '2 minutes'").await;
    assert_eq!(world.look(unused).await, None);
}
