use std::sync::atomic::{AtomicUsize, Ordering};

use agent::link::{Credentials, LinkError};
use agent::tunnel::{Refusals, Ticket};
use futures::future::BoxFuture;
use kit::SystemClock;
use model::{Timestamp, TunnelId};
use pki::{SeededEntropy, SigningKey};
use rustls_pki_types::ServerName;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use wire::proto::agent::InstanceSpec;

use super::*;
use crate::sections::instances::port::{Held, Stopping, Told, Unguarded};
use crate::shell::{EchoShell, HostShell};

/// A gateway that joins whatever comes, unless it is said to be elsewhere.
struct Gateway(mpsc::UnboundedSender<DuplexStream>);

impl TunnelLink for Gateway {
    fn tunnel(
        &self,
        _: &Credentials,
        address: Option<&str>,
        _: TunnelId,
    ) -> BoxFuture<'static, Result<Box<dyn ByteStream>, LinkError>> {
        if address.is_some() {
            return Box::pin(async { Err(LinkError::new("open a tunnel", "no route".to_owned())) });
        }
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
    refused: Arc<Mutex<Vec<Refused>>>,
    opened: AtomicUsize,
}

impl Lab {
    fn new() -> Self {
        Self::with(None, Arc::new(EchoShell))
    }

    fn with(hypervisor: Option<Arc<dyn Hypervisor>>, shell: Arc<dyn Shell>) -> Self {
        let entropy = SeededEntropy::new(4);
        let (joined, gateway) = mpsc::unbounded_channel();
        let clock = Arc::new(SystemClock::new());
        let link = Arc::new(Gateway(joined));
        let tunnels = NodeTunnels::new(link, hypervisor, shell, clock, Supervisor::new());
        let [node, client] = [(); 2].map(|()| SigningKey::generate(&entropy));
        Self { node, client, tunnels, gateway, refused: Arc::default(), opened: AtomicUsize::new(0) }
    }

    fn order(&self, target: Target, lasts: Duration) -> bool {
        self.order_at(target, lasts, None)
    }

    fn order_at(&self, target: Target, lasts: Duration, address: Option<String>) -> bool {
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
        let told = self.refused.clone();
        let refusals = Refusals::new(move |refused| told.lock().unwrap().push(refused));
        self.tunnels.open(Order { ticket, address, credentials, lasts, refusals })
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
async fn that_its_gateway_is_not_reached_is_told_over_the_session() {
    let lab = Lab::new();
    assert!(lab.order_at(Target::NodeConsole, HOUR, Some("gw-2.example.test:8443".to_owned())));
    let told = async {
        while lab.refused.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told).await.expect("it is told");
    let refused = lab.refused.lock().unwrap()[0].clone();
    assert_eq!((refused.reason, refused.message.contains("no route")), ("not-dialled", true), "{refused:?}");
}

#[tokio::test]
async fn the_ssh_server_of_the_node_is_reached_on_the_node_itself_and_nowhere_else() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let mut lab = Lab::with(None, Arc::new(HostShell));
    let client = lab.client.clone();
    assert!(lab.order(Target::NodePort(port), HOUR));
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await, TunnelReply::default());
    let (mut reached, from) = server.accept().await.unwrap();
    assert!(from.ip().is_loopback());
    reached.write_all(b"SSH-2.0-here").await.unwrap();
    let mut banner = [0; 12];
    end.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0-here");
    drop((server, reached, end));

    assert!(lab.order(Target::NodePort(port), HOUR));
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await.reason, "NotReached");
    // A machine that is only simulated has none.
    let mut lab = Lab::new();
    assert!(lab.order(Target::NodePort(22), HOUR));
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await.reason, "NoSsh");
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
    for _ in 0..CONSOLES_MAX {
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
    while lab.tunnels.0.consoles.available_permits() < CONSOLES_MAX {
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

/// Lets nobody in, and says so over and over.
struct Talkative(&'static str);

impl Hypervisor for Talkative {
    fn id(&self) -> &str {
        "talkative"
    }

    fn hands_gpus(&self) -> bool {
        false
    }

    fn reach(&self, _: InstanceId, _: Door) -> BoxFuture<'_, Result<Box<dyn ByteStream>, Trouble>> {
        let message = self.0.repeat(10_000);
        Box::pin(async move { Err(Trouble { reason: "NotReached", message, retryable: true }) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Held>, Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn guard<'a>(&'a self, _: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<Unguarded, Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn define<'a>(&'a self, _: &'a InstanceSpec, _: Told<'a>) -> BoxFuture<'a, Result<(), Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn start(&self, _: InstanceId, _: u64) -> BoxFuture<'_, Result<(), Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn stop(&self, _: InstanceId) -> BoxFuture<'_, Result<Stopping, Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn destroy(&self, _: InstanceId) -> BoxFuture<'_, Result<(), Trouble>> {
        unreachable!("nobody asks for more")
    }

    fn tidy<'a>(&'a self, _: &'a [&'a InstanceSpec]) -> BoxFuture<'a, Result<(), Trouble>> {
        unreachable!("nobody asks for more")
    }
}

#[tokio::test]
async fn whoever_sees_to_the_node_gets_onto_it_however_many_are_let_into_instances() {
    let mut lab = Lab::new();
    let instance = InstanceId::from_uuid(uuid::Uuid::from_u128(1));
    let mut waiting = Vec::new();
    for _ in 0..AT_ONCE_MAX {
        assert!(lab.order(Target::Port(instance, 22), HOUR));
        waiting.push(lab.gateway.recv().await.unwrap());
    }
    assert!(!lab.order(Target::Console(instance), HOUR), "one more than there may be");
    assert!(lab.order(Target::NodeConsole, HOUR));
    let client = lab.client.clone();
    assert_eq!(reply(&mut lab.end(&client).await.unwrap()).await, TunnelReply::default());
}

#[tokio::test]
async fn what_a_hypervisor_says_at_length_is_said_in_short() {
    let mut lab = Lab::with(Some(Arc::new(Talkative("überlang"))), Arc::new(EchoShell));
    let instance = InstanceId::from_uuid(uuid::Uuid::from_u128(1));
    assert!(lab.order(Target::Port(instance, 22), HOUR));
    let client = lab.client.clone();
    let said = reply(&mut lab.end(&client).await.unwrap()).await;
    assert_eq!((said.reason.as_str(), said.message.chars().count()), ("NotReached", MESSAGE_CHARS_MAX));
}

/// Types a line, and reads until the shell has ended.
async fn typed(lab: &mut Lab, line: &str) -> (String, Option<u8>) {
    assert!(lab.order(Target::NodeConsole, HOUR));
    let client = lab.client.clone();
    let mut end = lab.end(&client).await.unwrap();
    assert_eq!(reply(&mut end).await, TunnelReply::default());
    end.write_all(&ConsoleFrame::Data(line.as_bytes().to_vec()).encode()).await.unwrap();
    let (mut frames, mut said, mut buffer) = (ConsoleFrames::default(), String::new(), vec![0; 4096]);
    loop {
        while let Some(frame) = frames.next_frame().unwrap() {
            match frame {
                ConsoleFrame::Data(data) => said.push_str(&String::from_utf8_lossy(&data)),
                ConsoleFrame::Exit(status) => return (said, Some(status)),
                ConsoleFrame::Resize { .. } => {}
            }
        }
        match end.read(&mut buffer).await {
            Ok(read) if read > 0 => frames.push(&buffer[..read]),
            _ => return (said, None),
        }
    }
}

#[tokio::test]
async fn a_shell_that_ends_ends_its_console_whatever_it_left_behind() {
    let mut lab = Lab::with(None, Arc::new(HostShell));
    // It holds the terminal, and does not go when its shell does.
    let (said, status) =
        typed(&mut lab, "trap '' HUP; sleep 100 & echo left-$((40+2)) $!; disown; exit 3\n").await;
    assert_eq!(status, Some(3), "{said}");
    let left = said.split("left-42 ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let left = rustix::process::Pid::from_raw(left.parse().unwrap()).unwrap();
    assert_eq!(rustix::process::test_kill_process(left), Ok(()), "there was nothing left behind: {said}");
    let _ = rustix::process::kill_process(left, rustix::process::Signal::KILL);
}

#[tokio::test]
async fn a_client_that_goes_away_takes_the_shell_with_it() {
    let mut lab = Lab::with(None, Arc::new(HostShell));
    assert!(lab.order(Target::NodeConsole, HOUR));
    let client = lab.client.clone();
    let mut end = lab.end(&client).await.unwrap();
    reply(&mut end).await;
    // It has given up its terminal, and waits.
    let line = "echo pid-$((1)) $$; exec sleep 1000 </dev/null >/dev/null 2>&1\n";
    end.write_all(&ConsoleFrame::Data(line.as_bytes().to_vec()).encode()).await.unwrap();
    let (mut said, mut buffer) = (String::new(), vec![0; 4096]);
    let pid = loop {
        let read = end.read(&mut buffer).await.unwrap();
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let word = said.split("pid-1 ").nth(1).and_then(|rest| rest.split_once(['\r', '\n']));
        if let Some((pid, _)) = word {
            break pid.to_owned();
        }
    };
    drop(end);
    let gone = || !std::path::Path::new("/proc").join(&pid).exists();
    for _ in 0..1000 {
        if gone() && lab.tunnels.0.consoles.available_permits() == CONSOLES_MAX {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the shell is there, or its place is held: {}", lab.tunnels.0.consoles.available_permits());
}
