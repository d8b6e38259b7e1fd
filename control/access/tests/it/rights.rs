//! What a gateway may do to rows of tunnels under its own role, and what a stolen one may not.

use access::PgTickets;
use kernel::ports::tunnels::{TicketStore, TunnelClosed};
use store::{ErrorKind, Store, sql};

use crate::world::World;

async fn as_gateway(world: &World) -> Store {
    let mut config = world.db.config();
    config.role = Some("bc_gateway".to_owned());
    world.db.open(config).await
}

#[tokio::test]
async fn a_gateway_takes_asks_and_closes_under_its_own_role() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tickets = PgTickets::new(as_gateway(&world).await);
    let tunnel_id = world.open().await;
    assert!(tickets.take(lease, tunnel_id, world.node).await.unwrap());
    assert!(!tickets.take(lease, tunnel_id, world.node).await.unwrap());
    assert!(tickets.ended(lease, vec![tunnel_id]).await.unwrap().is_empty());
    let closed = TunnelClosed { tunnel_id, reason: "closed", to_node_bytes: 1, to_client_bytes: 2 };
    tickets.closed(lease, vec![closed.clone()]).await.unwrap();
    tickets.closed(lease, vec![TunnelClosed { reason: "broken", ..closed }]).await.unwrap();
    assert_eq!(world.get(tunnel_id).await["reason"], "closed");
}

#[tokio::test]
async fn a_stolen_gateway_neither_makes_a_ticket_good_again_nor_learns_whose_it_is() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let store = as_gateway(&world).await;
    let tunnel = world.taken(lease).await;
    let forbidden = [
        "SELECT user_id FROM tunnels",
        "SELECT source_ip FROM tunnels",
        "SELECT * FROM tunnels",
        "UPDATE tunnels SET revoked_at = NULL",
        "UPDATE tunnels SET revoke_reason = ''",
        "UPDATE tunnels SET open_until = 'infinity'",
        "UPDATE tunnels SET ends_at = 'infinity'",
        "UPDATE tunnels SET node_id = gen_random_uuid()",
        "UPDATE tunnels SET instance_id = NULL",
        "UPDATE tunnels SET told_open_at = compute_now()",
        "UPDATE tunnels SET told_closed_at = compute_now()",
        "UPDATE tunnels SET token_id = gen_random_uuid()",
        "UPDATE tunnels SET taken_at = NULL, gateway_id = NULL, gateway_epoch = NULL",
        "INSERT INTO tunnels (tunnel_id) VALUES (gen_random_uuid())",
        "DELETE FROM tunnels",
        "TRUNCATE tunnels",
    ];
    let mut allowed = Vec::new();
    for text in forbidden {
        match store.execute(&sql("forbidden", text), &[]).await {
            Err(err) if *err.kind() == ErrorKind::InsufficientPrivilege => {}
            other => allowed.push(format!("{text}: {other:?}")),
        }
    }
    assert!(allowed.is_empty(), "{}", allowed.join("\n"));
    // What is closed is out of its reach, also where it was told already.
    world.closed(lease, tunnel, "closed").await;
    world.look(tunnel).await;
    for text in [
        "UPDATE tunnels SET closed_at = NULL, close_reason = ''",
        "UPDATE tunnels SET to_node_bytes = 0, to_client_bytes = 0",
        "UPDATE tunnels SET gateway_id = gen_random_uuid()",
    ] {
        assert_eq!(store.execute(&sql("hidden", text), &[]).await.unwrap(), 0, "{text}");
    }
    let shown = world.get(tunnel).await;
    assert_eq!((&shown["state"], &shown["toNodeBytes"]), (&"closed".into(), &5.into()));
}
