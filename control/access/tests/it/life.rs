//! From an open tunnel to its end, and what is told of it.

use std::time::Duration;

use model::lifecycle::InstanceState;

use crate::world::{Doors, Token, World};

const SOON: Option<Duration> = Some(Duration::from_secs(2));

#[tokio::test]
async fn opening_and_closing_are_told_once_whoever_looks_how_often() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.open().await;
    assert_eq!(world.look(tunnel).await, SOON, "its ticket may yet be used");
    assert_eq!(world.told_both().await, "");
    assert_eq!(world.get(tunnel).await["state"], "issued");

    assert!(world.tickets_take(lease, tunnel).await);
    let (one, two) = tokio::join!(world.look(tunnel), world.look(tunnel));
    assert_eq!((one, two, world.look(tunnel).await), (SOON, SOON, SOON));
    assert_eq!(world.told_both().await, "opened");
    assert_eq!(world.get(tunnel).await["state"], "open");
    assert!(world.ended(lease, &[tunnel]).await.is_empty());

    world.closed(lease, tunnel, "closed").await;
    world.closed(lease, tunnel, "broken").await;
    let (one, two) = tokio::join!(world.look(tunnel), world.look(tunnel));
    assert_eq!((one, two, world.look(tunnel).await), (None, None, None));
    assert_eq!(world.told_both().await, "opened closed");
    let shown = world.get(tunnel).await;
    assert_eq!((&shown["state"], &shown["reason"]), (&"closed".into(), &"closed".into()));
    assert_eq!((&shown["toNodeBytes"], &shown["toClientBytes"]), (&5.into(), &7.into()));
}

#[tokio::test]
async fn one_that_was_over_before_anybody_looked_is_told_to_have_been_open() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let short = world.taken(lease).await;
    world.closed(lease, short, "closed").await;
    assert_eq!(world.look(short).await, None);
    assert_eq!(world.told_both().await, "opened closed");

    // Nobody was let in by this one.
    let never = world.taken(lease).await;
    world.closed(lease, never, "not-opened").await;
    assert_eq!(world.look(never).await, None);
    assert_eq!(world.told_both().await, "opened closed closed");
}

#[tokio::test]
async fn what_may_not_go_on_is_taken_back_at_the_next_look() {
    type Change = fn(&mut Doors);
    let cases: [(&str, Change); 6] = [
        ("token-over", |doors| doors.token = Token::Revoked),
        ("not-allowed", |doors| doors.deny("compute:instances:exec")),
        ("instance-gone", |doors| doors.instance = Some(InstanceState::Stopping)),
        ("instance-gone", |doors| doors.instance = None),
        ("node-gone", |doors| doors.node = false),
        ("closed-by-call", |_| {}),
    ];
    let world = World::new().await;
    let lease = world.gateway(1).await;
    for (reason, change) in cases {
        let (other, tunnel) = (world.taken(lease).await, world.taken(lease).await);
        world.look(tunnel).await;
        assert!(world.ended(lease, &[other, tunnel]).await.is_empty());
        match reason {
            "closed-by-call" => {
                let id = serde_json::json!({ "id": tunnel.to_string() });
                world.call("tunnels.close", id.clone()).await.ok();
                world.call("tunnels.close", id).await.ok();
            }
            _ => world.change(change),
        }
        assert_eq!(world.look(tunnel).await, SOON, "{reason}: it is looked at until it is closed");
        world.look(tunnel).await;
        assert_eq!(world.ended(lease, &[other, tunnel]).await, [tunnel], "{reason}");
        world.change(|doors| {
            *doors = Doors {
                instance: Some(InstanceState::Running),
                node: true,
                denied: [].into(),
                token: Token::Good,
                capabilities: doors.capabilities.clone(),
                ..*doors
            };
        });
        world.look(tunnel).await;
        assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel], "{reason}: what is taken back stays so");
        world.closed(lease, tunnel, "revoked").await;
        assert_eq!(world.look(tunnel).await, None);
        let shown = world.get(tunnel).await;
        assert_eq!((&shown["state"], &shown["reason"]), (&"closed".into(), &reason.into()));
    }
    assert_eq!(world.told_both().await, format!("{}opened closed", "opened revoked closed ".repeat(5)));
}

#[tokio::test]
async fn a_console_of_the_node_ends_with_the_right_to_it() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let request =
        serde_json::json!({ "node": "node-1", "op": "console", "clientKey": crate::world::client_key() });
    let opened = world.call("tunnels.open", request).await.ok();
    let tunnel = opened["tunnel"]["id"].as_str().unwrap().parse().unwrap();
    assert!(world.tickets_take(lease, tunnel).await);
    world.change(|doors| doors.deny("compute:instances:exec"));
    world.look(tunnel).await;
    assert!(world.ended(lease, &[tunnel]).await.is_empty(), "that right is another");
    world.change(|doors| doors.deny("compute:nodes:exec"));
    world.look(tunnel).await;
    assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel]);
}

#[tokio::test]
async fn while_nobody_can_say_whether_it_may_go_on_it_is_asked_as_often_as_ever() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.taken(lease).await;
    world.change(|doors| doors.token = Token::Unknown);
    assert_eq!(world.look(tunnel).await, SOON);
    assert!(world.ended(lease, &[tunnel]).await.is_empty());
    world.change(|doors| doors.token = Token::Revoked);
    assert_eq!(world.look(tunnel).await, SOON);
    assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel]);
}

#[tokio::test]
async fn one_of_which_nobody_can_say_for_long_whether_it_may_go_on_does_not() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.taken(lease).await;
    world.look(tunnel).await;
    world.db.batch("UPDATE tunnels SET decided_at = compute_now() - interval '29 seconds'").await;
    world.look(tunnel).await;
    world.change(|doors| doors.token = Token::Unknown);
    world.look(tunnel).await;
    assert!(world.ended(lease, &[tunnel]).await.is_empty(), "it was decided just now");
    world.db.batch("UPDATE tunnels SET decided_at = compute_now() - interval '29 seconds'").await;
    world.look(tunnel).await;
    assert!(world.ended(lease, &[tunnel]).await.is_empty());
    world.db.batch("UPDATE tunnels SET decided_at = compute_now() - interval '31 seconds'").await;
    world.look(tunnel).await;
    assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel]);
    world.closed(lease, tunnel, "revoked").await;
    world.change(|doors| doors.token = Token::Good);
    assert_eq!(world.get(tunnel).await["reason"], "not-decided");
}

#[tokio::test]
async fn the_tunnels_of_a_gateway_that_is_gone_are_closed_and_told() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.taken(lease).await;
    world.look(tunnel).await;
    world.lose_leases().await;
    assert_eq!(world.look(tunnel).await, Some(Duration::ZERO));
    assert_eq!(world.look(tunnel).await, None);
    assert_eq!(world.told_both().await, "opened closed");
    assert_eq!(world.get(tunnel).await["reason"], "gateway-lost");
    // Should it come back, it is told to cut it, and does not write over what was told.
    assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel]);
    world.closed(lease, tunnel, "closed").await;
    assert_eq!(world.get(tunnel).await["reason"], "gateway-lost");
}

#[tokio::test]
async fn one_that_its_gateway_does_not_close_in_time_is_closed_for_it() {
    let world = World::new().await;
    let lease = world.gateway(1).await;
    let tunnel = world.taken(lease).await;
    world.db.batch("UPDATE tunnels SET ends_at = compute_now() - interval '2 minutes'").await;
    assert_eq!(world.look(tunnel).await, Some(Duration::ZERO));
    assert_eq!(world.look(tunnel).await, None);
    assert_eq!(world.get(tunnel).await["reason"], "time-over");
    assert_eq!(world.ended(lease, &[tunnel]).await, [tunnel]);
}
