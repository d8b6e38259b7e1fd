//! Thousands of nodes in one process: each holds a session, beats, and takes its commands at once.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use futures::StreamExt;
use kit::{Clock, Supervisor, SystemClock, TaskKind};
use model::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{Command, CommandState, CommandUpdate, Heartbeat};

use crate::sessions::nodes::{Dialer, Session};
use crate::sessions::{identities, part};

const NODE: TaskKind = TaskKind::isolated("node");
/// Of each process: more than a gateway opens in one transaction, so that it never waits for its nodes, and fewer than wait in its
/// listener's queue.
const DIALS_AT_ONCE: usize = 256;

/// When a command came, in microseconds of the wall clock, which all processes of a machine share.
type Received = Arc<Mutex<Vec<(String, i64)>>>;

/// Says "ready", and then does a line at a time: `connect ADDRESS HEARTBEAT_MS` or `report`.
pub async fn run(numbers: Range<u64>, at: Timestamp) -> anyhow::Result<()> {
    let (serving, node_ca) = (identities::serving_ca(at)?, identities::node_ca(at)?);
    let made =
        numbers.map(|number| identities::node(number, &node_ca, at)).collect::<anyhow::Result<Vec<_>>>()?;
    let dialers =
        made.into_iter().map(|node| Dialer::new(node, &serving)).collect::<anyhow::Result<Vec<_>>>()?;
    let received = Received::default();
    let mut held: Option<Held> = None;
    part::say(&json!("ready"));
    loop {
        let line = part::line().await?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["connect", address, heartbeat_ms] => {
                // Whatever they held is gone, or is now.
                drop(held.take());
                let every = Duration::from_millis(heartbeat_ms.parse()?);
                let (now_held, samples) = connect(&dialers, address.parse()?, every, &received).await?;
                held = Some(now_held);
                part::say(&samples);
            }
            ["report"] => {
                let all = std::mem::take(&mut *received.lock().expect("no holder of this lock panics"));
                part::say(&json!(all));
            }
            other => bail!("not an order: {other:?}"),
        }
    }
}

/// Ends its nodes when dropped.
struct Held(CancellationToken);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn connect(
    dialers: &[Dialer],
    address: SocketAddr,
    every: Duration,
    received: &Received,
) -> anyhow::Result<(Held, Value)> {
    let supervisor = Supervisor::new();
    let started = Instant::now();
    let opening = futures::stream::iter(dialers.iter().enumerate()).map(|(at, dialer)| {
        let supervisor = &supervisor;
        async move {
            let from = Instant::now();
            let session = dialer.open(address, supervisor).await?;
            let (ended, took) = (started.elapsed(), from.elapsed());
            // They do not all beat at one instant, as a fleet does not.
            let first = every.mul_f64(at as f64 / dialers.len() as f64);
            let received = received.clone();
            supervisor.spawn(NODE, move |stop| live(session, first, every, received, stop));
            anyhow::Ok([ended.as_micros() as u64, took.as_micros() as u64])
        }
    });
    let samples: Vec<anyhow::Result<[u64; 2]>> = opening.buffer_unordered(DIALS_AT_ONCE).collect().await;
    let samples = samples.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok((Held(supervisor.token()), json!(samples)))
}

async fn live(
    mut session: Box<Session>,
    first: Duration,
    every: Duration,
    received: Received,
    stop: CancellationToken,
) -> Result<(), std::fmt::Error> {
    let clock = SystemClock::new();
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + first.max(every / 2), every);
    let mut seq = 0;
    loop {
        // Each arm is cancel-safe: a tick that is not taken stays, and a frame that is not either.
        let done = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = beat.tick() => {
                seq += 1;
                session.say(In::Heartbeat(Heartbeat { seq, lane_credits: Session::credits(), ..Heartbeat::default() }))
            }
            frame = session.hears() => match frame {
                Ok(Out::Command(command)) => {
                    let at = clock.now().micros();
                    take(&mut session, &command, at, &received)
                }
                Ok(_) => Ok(()),
                // The gateway is gone: so is this session, until it is told where another one is.
                Err(_) => return Ok(()),
            }
        };
        if done.is_err() {
            return Ok(());
        }
    }
}

fn take(session: &mut Session, command: &Command, at: i64, received: &Received) -> anyhow::Result<()> {
    let body = wire::command::decode_body(&command.body)?;
    let update = CommandUpdate {
        command_id: body.command_id.clone(),
        state: CommandState::Succeeded.into(),
        ..CommandUpdate::default()
    };
    received.lock().expect("no holder of this lock panics").push((body.command_id, at));
    session.say(In::CommandUpdate(update))
}
