//! Handshakes and nothing else: no socket, no task, both sides in turn on one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use bench::figures::{Run, Sample};
use kit::{Clock, SystemClock};
use model::Timestamp;
use pki::tls::{ClientOptions, TlsClock, client_config, server_config};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;

use super::identities;

/// A round trip each way ends a handshake of TLS 1.3; more are no handshake.
const TURNS_MAX: usize = 8;

/// Both sides' handshakes, and what the server's half of one takes.
pub fn raw(at: Timestamp, lasts: Duration) -> anyhow::Result<(Run, Duration)> {
    let node_ca = identities::node_ca(at)?;
    let node = identities::node(0, &node_ca, at)?;
    let cas = [node_ca.certificate_der()];
    let server: Arc<ServerConfig> = server_config(&identities::server(at)?, &cas, clock())?;
    let client: Arc<ClientConfig> = client_config(&ClientOptions {
        serving_ca_pins: vec![identities::serving_ca(at)?.pin()],
        known_cas: vec![],
        identity: Some(node.identity),
        clock: clock(),
        protocol: pki::tls::ALPN_H2,
    })?;
    let started = Instant::now();
    let (mut samples, mut served) = (Vec::new(), Duration::ZERO);
    while started.elapsed() < lasts {
        let from = Instant::now();
        served += one(&server, &client)?;
        samples.push(Sample { at: started.elapsed(), took: from.elapsed() });
    }
    let count = u32::try_from(samples.len())?;
    Ok((
        Run::new("raw handshakes, both halves on one core", started.elapsed(), samples),
        served / count.max(1),
    ))
}

fn clock() -> TlsClock {
    let clock = SystemClock::new();
    TlsClock::new(move || clock.now())
}

/// What the server's half took.
fn one(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> anyhow::Result<Duration> {
    let mut served = Duration::ZERO;
    let from = Instant::now();
    let mut server = ServerConnection::new(server.clone())?;
    served += from.elapsed();
    let mut client = ClientConnection::new(client.clone(), ServerName::try_from("127.0.0.1")?)?;
    let mut bytes = Vec::new();
    for _ in 0..TURNS_MAX {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes)?;
        }
        let from = Instant::now();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            server.read_tls(&mut unread)?;
            server.process_new_packets()?;
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes)?;
        }
        served += from.elapsed();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            client.read_tls(&mut unread)?;
            client.process_new_packets()?;
        }
        if !client.is_handshaking() && !server.is_handshaking() {
            return Ok(served);
        }
    }
    bail!("the handshake does not end")
}
