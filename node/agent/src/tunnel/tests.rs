use prost::Message;
use wire::proto::agent::SignedTicket;

use super::*;
use crate::testing::{Deployment, at as second, at_ms, nth};

fn ticket() -> ExecTicket {
    ExecTicket {
        tunnel_id: nth::<TunnelId>(3).to_string(),
        node_id: nth::<NodeId>(1).to_string(),
        deployment_epoch: 1,
        instance_id: nth::<InstanceId>(2).to_string(),
        op: TunnelOp::Ssh.into(),
        port: 22,
        client_key_sha256: vec![7; 32].into(),
        not_before_ms: at_ms(0),
        open_until_ms: at_ms(60),
        ends_at_ms: at_ms(3600),
        user: "alice\n".into(),
    }
}

fn signed(deployment: &Deployment, ticket: &ExecTicket) -> Vec<u8> {
    let bytes = ticket.encode_to_vec();
    let signature = Some(deployment.sign(Purpose::ExecTicket, &bytes));
    SignedTicket { ticket: bytes.into(), signature }.encode_to_vec()
}

fn judged(deployment: &Deployment, bytes: &[u8], now: Timestamp) -> Result<Ticket, Refused> {
    let verifier = CommandVerifier::new(deployment.id, &[deployment.root.verifying_key().clone()]);
    judge(&Facts { node_id: nth(1), deployment_epoch: 1, now, verifier: &verifier }, bytes)
}

#[test]
fn a_ticket_says_who_may_reach_what() {
    let deployment = Deployment::new(1);
    let found = judged(&deployment, &signed(&deployment, &ticket()), second(10)).unwrap();
    assert_eq!(found.target, Target::Port(nth(2), 22));
    assert_eq!((found.client, found.user.as_str()), (Pin::from_bytes([7; 32]), "alice"));
    let console = ExecTicket { op: TunnelOp::Console.into(), port: 0, ..ticket() };
    let found = judged(&deployment, &signed(&deployment, &console), second(10)).unwrap();
    assert_eq!(found.target, Target::Console(nth(2)));
    let of_node = ExecTicket { instance_id: String::new(), ..console };
    let found = judged(&deployment, &signed(&deployment, &of_node), second(10)).unwrap();
    assert_eq!(found.target, Target::NodeConsole);
    let ssh = ExecTicket { instance_id: String::new(), ..ticket() };
    let found = judged(&deployment, &signed(&deployment, &ssh), second(10)).unwrap();
    assert_eq!(found.target, Target::NodePort(22));
}

#[test]
fn a_ticket_that_is_not_for_us_now_opens_nothing() {
    let deployment = Deployment::new(1);
    let refused = |ticket: ExecTicket, now: u64, expected: &str| {
        let refused = judged(&deployment, &signed(&deployment, &ticket), second(now)).unwrap_err();
        assert_eq!(refused.reason, expected, "{ticket:?}");
    };
    refused(ExecTicket { node_id: nth::<NodeId>(9).to_string(), ..ticket() }, 10, "other-node");
    refused(ExecTicket { deployment_epoch: 0, ..ticket() }, 10, "stale");
    refused(ticket(), 61, "expired");
    refused(ExecTicket { not_before_ms: at_ms(100), open_until_ms: at_ms(200), ..ticket() }, 10, "early");
    refused(ExecTicket { ends_at_ms: at_ms(14 * 3600), ..ticket() }, 10, "malformed");
    refused(ExecTicket { ends_at_ms: at_ms(5), ..ticket() }, 10, "malformed");
    refused(ExecTicket { tunnel_id: "tun_x".into(), ..ticket() }, 10, "malformed");
    refused(ExecTicket { client_key_sha256: vec![7; 31].into(), ..ticket() }, 10, "malformed");
    refused(ExecTicket { port: 0, ..ticket() }, 10, "unsupported");
    refused(ExecTicket { port: 70_000, ..ticket() }, 10, "unsupported");
    refused(ExecTicket { op: 9, ..ticket() }, 10, "unsupported");
    // A shell is all there is on a node itself.
    let of_node =
        |op: TunnelOp, port| ExecTicket { instance_id: String::new(), op: op.into(), port, ..ticket() };
    refused(of_node(TunnelOp::Tcp, 22), 10, "unsupported");
    refused(of_node(TunnelOp::Ssh, 0), 10, "unsupported");
}

#[test]
fn what_others_signed_or_what_was_changed_is_not_believed() {
    let deployment = Deployment::new(1);
    let other = Deployment::new(2);
    let reason = |bytes: &[u8]| judged(&deployment, bytes, second(10)).unwrap_err().reason;
    assert_eq!(reason(&signed(&other, &ticket())), "bad-signature");
    let bytes = ticket().encode_to_vec();
    // Signed by a worker of ours, as something else.
    let as_command = Some(deployment.sign(Purpose::Command, &bytes));
    assert_eq!(
        reason(&SignedTicket { ticket: bytes.clone().into(), signature: as_command }.encode_to_vec()),
        "bad-signature"
    );
    assert_eq!(
        reason(&SignedTicket { ticket: bytes.into(), signature: None }.encode_to_vec()),
        "bad-signature"
    );
    let changed = ExecTicket { port: 23, ..ticket() }.encode_to_vec();
    let signature = Some(deployment.sign(Purpose::ExecTicket, &ticket().encode_to_vec()));
    assert_eq!(reason(&SignedTicket { ticket: changed.into(), signature }.encode_to_vec()), "bad-signature");
    assert_eq!(reason(&[0xff; 40]), "malformed");
    assert_eq!(reason(&vec![0; 10_000]), "malformed");
}
