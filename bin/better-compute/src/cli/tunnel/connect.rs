//! From a door to a stream: a ticket, a connection to the gateway that has the node's session, and TLS inside of it with the
//! node, which that gateway cannot look into.

use std::sync::Arc;
use std::time::Duration;

use api::MethodRow;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL;
use client::Client;
use kit::Clock;
use pki::tls::{ALPN_TUNNEL, ClientOptions, TlsClock, client_config, end_client};
use pki::{OsEntropy, Pin, SigningKey};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use wire::proto::agent::{TunnelHello, TunnelReply, tunnel_hello};

use super::super::{Failure, api_command};
use super::{Door, NotYet};

/// What is said into it is between here and the node.
pub type Sealed = TlsStream<TlsStream<TcpStream>>;

/// The gateway waits for the node for fifteen seconds.
const CONNECT_WITHIN: Duration = Duration::from_secs(18);
/// A node that has just gone over to another gateway is there a moment later.
const TRIES_MAX: u32 = 5;
const TRY_PAUSE: Duration = Duration::from_millis(400);

pub async fn connect(client: &Client, door: &Door, clock: &Arc<dyn Clock>) -> Result<Sealed, Failure> {
    let row = api::find("tunnels.open").expect("the table has it");
    let mut tries = 1;
    loop {
        match attempt(row, client, door, clock).await {
            Err(Attempt::Elsewhere(_)) if tries < TRIES_MAX => {
                clock.sleep(TRY_PAUSE * tries).await;
                tries += 1;
            }
            Err(Attempt::Elsewhere(failure) | Attempt::Failed(failure)) => return Err(failure),
            Ok(stream) => return Ok(stream),
        }
    }
}

enum Attempt {
    /// The node is at another gateway by now, or was.
    Elsewhere(Failure),
    Failed(Failure),
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Attempt::Failed(failure)
    }
}

fn broken(what: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |err| Failure::local(format!("{what}: {err}"))
}

async fn attempt(
    row: &'static MethodRow,
    client: &Client,
    door: &Door,
    clock: &Arc<dyn Clock>,
) -> Result<Sealed, Attempt> {
    let key = SigningKey::generate(&OsEntropy);
    let mut request = door.request.clone();
    request["clientKey"] = BASE64URL.encode(key.verifying_key().spki_der()).into();
    let opened = api_command::send(row, &request, client).await?;
    let unreadable = || Failure::local("the answer to tunnels.open cannot be read: is the server newer?");
    let text = |pointer: &str| opened.pointer(pointer).and_then(Value::as_str).ok_or_else(unreadable);
    let address = text("/gateway/address")?.to_owned();
    let options = ClientOptions {
        serving_ca_pins: vec![text("/gateway/servingCaPin")?.parse().map_err(|_| unreadable())?],
        known_cas: Vec::new(),
        identity: None,
        clock: {
            let clock = clock.clone();
            TlsClock::new(move || clock.now())
        },
        protocol: ALPN_TUNNEL,
    };
    let server_name =
        ServerName::try_from(text("/gateway/serverName")?.to_owned()).map_err(|_| unreadable())?;
    let nodes: Vec<Pin> = opened["nodeKeys"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pin| pin.as_str().and_then(|pin| pin.parse().ok()).ok_or_else(unreadable))
        .collect::<Result<_, _>>()?;
    let ticket = BASE64URL.decode(text("/ticket")?).map_err(|_| unreadable())?;
    let config = client_config(&options).map_err(|err| Failure::local(kit::chain(&err)))?;
    let inside = end_client(&key, nodes).map_err(|err| Failure::local(kit::chain(&err)))?;

    let dial = async {
        let tcp = TcpStream::connect(&address).await?;
        tcp.set_nodelay(true)?;
        // A gateway that vanished without a word is noticed within minutes, and not when somebody types.
        kit::net::keep_alive(&tcp)?;
        TlsConnector::from(config).connect(server_name, tcp).await
    };
    let mut outer = within(clock, dial).await.map_err(|err| Failure::Local {
        message: format!("cannot connect to the gateway at {address}: {err}"),
        help: "a gateway has to be reached from here too; its operator sets gateway.url, or gateway.own_url"
            .to_owned(),
    })?;
    let hello =
        wire::tunnel::with_length(&TunnelHello { end: Some(tunnel_hello::End::Ticket(ticket.into())) });
    let answer = async {
        outer.write_all(&hello).await?;
        outer.flush().await?;
        reply(&mut outer).await
    };
    let answer = within(clock, answer).await.map_err(broken("the gateway does not answer"))?;
    if answer.reason == "not-here" {
        return Err(Attempt::Elsewhere(refused(&answer, door)));
    }
    if !answer.reason.is_empty() {
        return Err(refused(&answer, door).into());
    }
    let name = ServerName::try_from("node").expect("it is a name");
    let sealed = TlsConnector::from(inside).connect(name, outer);
    let mut inner = within(clock, sealed).await.map_err(|err| {
        Failure::local(format!("what answered is not the node, or it does not know us: {err}"))
    })?;
    let reached = within(clock, reply(&mut inner)).await.map_err(broken("the node does not answer"))?;
    match reached.reason.is_empty() {
        true => Ok(inner),
        false => Err(refused(&reached, door).into()),
    }
}

fn refused(reply: &TunnelReply, door: &Door) -> Failure {
    let plain = |text: &str| text.chars().filter(|c| !c.is_control()).take(300).collect::<String>();
    let help = match reply.reason.as_str() {
        "busy" => "better-compute tunnels list; and close one of them".to_owned(),
        NotYet::WORD => format!("better-compute console {}, to see whether it has booted", door.shown),
        _ => String::new(),
    };
    Failure::Local { message: format!("{} ({})", plain(&reply.message), plain(&reply.reason)), help }
}

async fn reply(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<TunnelReply> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut body = vec![0; wire::tunnel::length(head).map_err(std::io::Error::other)?];
    stream.read_exact(&mut body).await?;
    wire::decode("tunnel reply", &body, body.len()).map_err(std::io::Error::other)
}

async fn within<T>(
    clock: &Arc<dyn Clock>,
    work: impl Future<Output = std::io::Result<T>>,
) -> std::io::Result<T> {
    // Both arms own what they wait for, and the loser is dropped whole.
    tokio::select! {
        done = work => done,
        () = clock.sleep(CONNECT_WITHIN) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}
