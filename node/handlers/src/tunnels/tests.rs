use std::sync::atomic::{AtomicUsize, Ordering};

use agent::link::{Credentials, LinkError};
use agent::tunnel::Ticket;
use futures::future::BoxFuture;
use kit::SystemClock;
use model::{Timestamp, TunnelId};
use pki::{SeededEntropy, SigningKey};
use rustls_pki_types::ServerName;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;

use super::*;
use crate::shell::EchoShell;

/// A gateway that joins whatever comes.
struct Gateway(mpsc::UnboundedSender<DuplexStream>);

impl TunnelLink for Gateway {
    fn tunnel(
        &self,
        _: &Credentials,
        _: Option<&str>,
        _: TunnelId,
    ) -> BoxFuture<'static, Result<Box<dyn ByteStream>, LinkError>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let _ = self.0.send(far);
        Box::pin(async move { Ok(Box::new(near) as Box<dyn ByteStream>) })
    }
}

struct Lab {
    node: SigningKey,
    client: SigningKey,
    tunnels: NodeTunnels,
    gateway: mpsc::UnboundedReceiver<DuplexStream>,
    opened: AtomicUsize,
}

impl Lab {
    fn new() -> Self {
        let entropy = SeededEntropy::new(4);
        let (joined, gateway) = mpsc::unbounded_channel();
        let clock = Arc::new(SystemClock::new());
        let link = Arc::new(Gateway(joined));
        let tunnels = NodeTunnels::new(link, None, Arc::new(EchoShell), clock, Supervisor::new());
        let [node, client] = [(); 2].map(|()| SigningKey::generate(&entropy));
        Self { node, client, tunnels, gateway, opened: AtomicUsize::new(0) }
    }

    fn order(&self, target: Target, lasts: Duration) -> bool {
        let n = self.opened.fetch_add(1, Ordering::SeqCst);
        let ticket = Ticket {
            tunnel_id: TunnelId::from_uuid(uuid::Uuid::from_u128(n as u128)),
            target,
            client: self.client.verifying_key().pin(),
            user: "alice".to_owned(),
            open_until: Timestamp::from_millis(0),
            ends_at: Timestamp::from_millis(0),
        };
        let credentials = Credentials {
            chain: Vec::new().into(),
            key: self.node.clone(),
            serving_ca_pins: Vec::new().into(),
        };
        self.tunnels.open(Order { ticket, address: None, credentials, lasts })
    }

    async fn end(&mut self, key: &SigningKey) -> io::Result<ClientStream<DuplexStream>> {
        let stream = self.gateway.recv().await.unwrap();
        let config = pki::tls::end_client(key, vec![self.node.verifying_key().pin()]).unwrap();
        TlsConnector::from(config).connect(ServerName::try_from("node").unwrap(), stream).await
    }
}

async fn reply(end: &mut ClientStream<DuplexStream>) -> TunnelReply {
    let mut head = [0; 2];
    end.read_exact(&mut head).await.unwrap();
    let mut body = vec![0; wire::tunnel::length(head).unwrap()];
    end.read_exact(&mut body).await.unwrap();
    wire::decode("reply", &body, body.len()).unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn whoever_the_ticket_names_is_let_in_and_nobody_else() {
    let mut lab = Lab::new();
    assert!(lab.order(Target::NodeConsole, HOUR));
    let client = lab.client.clone();
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await, TunnelReply::default());
    end.write_all(&ConsoleFrame::Resize { columns: 10, rows: 5 }.encode()).await.unwrap();
    end.write_all(&ConsoleFrame::Data(b"hi".to_vec()).encode()).await.unwrap();
    let mut frames = ConsoleFrames::default();
    let said = loop {
        if let Some(frame) = frames.next_frame().unwrap() {
            break frame;
        }
        let mut piece = [0; 64];
        let read = end.read(&mut piece).await.unwrap();
        frames.push(&piece[..read]);
    };
    assert_eq!(said, ConsoleFrame::Data(b"shell: hi".to_vec()));

    // A gateway that has stolen the ticket has another key.
    assert!(lab.order(Target::NodeConsole, HOUR));
    let thief = SigningKey::generate(&SeededEntropy::new(5));
    if let Ok(mut end) = lab.end(&thief).await {
        let refused = end.read(&mut [0; 64]).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_reached_is_said_inside() {
    let mut lab = Lab::new();
    let instance = InstanceId::from_uuid(uuid::Uuid::from_u128(1));
    assert!(lab.order(Target::Port(instance, 22), HOUR));
    let client = lab.client.clone();
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await.reason, "NoHypervisor");
    assert_eq!(end.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_node_has_so_many_tunnels_and_closes_them_all_when_it_is_revoked() {
    let mut lab = Lab::new();
    let client = lab.client.clone();
    let mut ends = Vec::new();
    for _ in 0..AT_ONCE_MAX {
        assert!(lab.order(Target::NodeConsole, HOUR));
        ends.push(lab.end(&client).await.unwrap());
    }
    assert!(!lab.order(Target::NodeConsole, HOUR), "one more than there may be");
    lab.tunnels.close_all();
    for end in &mut ends {
        let mut rest = Vec::new();
        // Cut, with or without a word.
        let _ = end.read_to_end(&mut rest).await;
    }
    while lab.tunnels.0.places.available_permits() < AT_ONCE_MAX {
        tokio::task::yield_now().await;
    }
    assert!(lab.order(Target::NodeConsole, HOUR), "there is room again");
}

#[tokio::test]
async fn a_tunnel_ends_when_its_time_is_over() {
    let mut lab = Lab::new();
    assert!(lab.order(Target::NodeConsole, Duration::from_millis(300)));
    let client = lab.client.clone();
    let mut end = lab.end(&client).await.unwrap();
    reply(&mut end).await;
    let mut rest = Vec::new();
    let _ = end.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}
