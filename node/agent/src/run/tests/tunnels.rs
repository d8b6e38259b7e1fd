//! Tickets, from their frames to what is opened.

use model::{InstanceId, NodeId};
use wire::proto::agent::{ExecTicket, OpenTunnel, RevocationNotice, SignedTicket, TunnelOp};

use super::*;

impl World {
    /// As a gateway passes it on.
    fn ticket(&self, n: u128) -> Gateway {
        let now = u64::try_from(self.clock.now().millis()).unwrap();
        let ticket = ExecTicket {
            tunnel_id: nth::<TunnelId>(n).to_string(),
            node_id: nth::<NodeId>(NODE).to_string(),
            deployment_epoch: 1,
            instance_id: nth::<InstanceId>(1).to_string(),
            op: TunnelOp::Console.into(),
            client_key_sha256: vec![1; 32].into(),
            open_until_ms: now + 60_000,
            ends_at_ms: now + 3_600_000,
            ..ExecTicket::default()
        };
        let ticket = prost::Message::encode_to_vec(&ticket);
        let signature = Some(self.deployment.sign(pki::Purpose::ExecTicket, &ticket));
        let signed = SignedTicket { ticket: ticket.into(), signature };
        Gateway::OpenTunnel(OpenTunnel {
            ticket: prost::Message::encode_to_vec(&signed).into(),
            address: String::new(),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_tunnel_is_told_that_its_gateway_is_not_reached() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session.say(world.ticket(UNREACHABLE)).await;
    let refused = session.refused().await;
    assert_eq!(refused.tunnel_id, nth::<TunnelId>(UNREACHABLE).to_string());
    assert_eq!((refused.reason.as_str(), refused.message.as_str()), ("not-dialled", "no route"));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_ticket_lets_in_once_also_after_a_crash() {
    let mut world = World::new();
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    let ticket = world.ticket(1);
    session.say(ticket.clone()).await;
    session.say(ticket.clone()).await;
    let refused = session.refused().await;
    assert_eq!((refused.tunnel_id, refused.reason.as_str()), (nth::<TunnelId>(1).to_string(), "spent"));
    assert_eq!(*world.tunnels.0.lock().unwrap(), [nth::<TunnelId>(1)]);

    agent.crash().await;
    let agent = world.start();
    let (mut session, _) = world.accept().await;
    session.say(ticket).await;
    assert_eq!(session.refused().await.reason, "spent");
    // One more than there is room for is told so, and all are closed when the node is trusted no more.
    session.say(world.ticket(2)).await;
    session.say(world.ticket(3)).await;
    assert_eq!(session.refused().await.reason, "busy");
    assert_eq!(world.tunnels.0.lock().unwrap().len(), 2);
    session.say(Gateway::Revocation(RevocationNotice { reason: "gone".into() })).await;
    session.say(world.ticket(4)).await;
    within(async {
        while !world.tunnels.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    agent.stop().await;
    assert!(world.tunnels.0.lock().unwrap().is_empty());
}
