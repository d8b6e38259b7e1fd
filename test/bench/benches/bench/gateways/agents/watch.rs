//! What each agent went through from the loss of a session to its next, as its link saw it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent::link::{Connection, Credentials, Link, LinkError};
use bench::figures::{Run, Sample};
use futures::StreamExt;
use futures::future::BoxFuture;
use kit::{Clock, SystemClock};
use serde::{Deserialize, Serialize};
use wire::proto::agent::{JoinReply, JoinRequest, RenewReply, RenewRequest};

/// One agent's way back. Microseconds of the wall clock, which all processes of a machine share.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Recovery {
    /// When it let go of its connection, or that of it.
    lost: i64,
    first_dial: i64,
    last_dial: i64,
    connected: i64,
    welcome: i64,
    dials: u32,
    /// Why the last dial that failed did.
    failed: Option<String>,
}

/// Those that are back since the last look. Cheap to clone.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Vec<Recovery>>>);

impl Watch {
    pub fn take(&self) -> Vec<Recovery> {
        std::mem::take(&mut *self.0.lock().expect("no holder of this lock panics"))
    }
}

pub struct Watched<L> {
    link: L,
    seen: Arc<Mutex<Recovery>>,
    watch: Watch,
}

impl<L> Watched<L> {
    pub fn new(link: L, watch: Watch) -> Self {
        Self { link, seen: Arc::default(), watch }
    }
}

fn now() -> i64 {
    SystemClock::new().now().micros()
}

fn lock(seen: &Mutex<Recovery>) -> MutexGuard<'_, Recovery> {
    seen.lock().expect("no holder of this lock panics")
}

/// Of one connection, from its first frame to its end.
struct Held {
    seen: Arc<Mutex<Recovery>>,
    watch: Watch,
    welcome: bool,
}

impl Held {
    fn heard(&mut self) {
        if std::mem::replace(&mut self.welcome, true) {
            return;
        }
        let mut seen = lock(&self.seen);
        seen.welcome = now();
        self.watch.0.lock().expect("no holder of this lock panics").push(seen.clone());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // One that never was welcome is a dial that failed.
        if self.welcome {
            *lock(&self.seen) = Recovery { lost: now(), ..Recovery::default() };
        }
    }
}

impl<L: Link> Link for Watched<L> {
    fn connect(&self, credentials: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>> {
        let (seen, watch) = (self.seen.clone(), self.watch.clone());
        {
            let mut seen = lock(&seen);
            seen.last_dial = now();
            seen.dials += 1;
            if seen.dials == 1 {
                seen.first_dial = seen.last_dial;
            }
        }
        let dial = self.link.connect(credentials);
        Box::pin(async move {
            match dial.await {
                Ok(Connection { outgoing, incoming }) => {
                    lock(&seen).connected = now();
                    let mut held = Held { seen, watch, welcome: false };
                    let incoming = incoming.inspect(move |frame| match frame {
                        Ok(_) => held.heard(),
                        Err(err) => lock(&held.seen).failed = Some(err.to_string()),
                    });
                    Ok(Connection { outgoing, incoming: incoming.boxed() })
                }
                Err(err) => {
                    lock(&seen).failed = Some(err.to_string());
                    Err(err)
                }
            }
        })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>> {
        self.link.join(request)
    }

    fn renew(
        &self,
        credentials: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>> {
        self.link.renew(credentials, request)
    }
}

/// How long one took, of an agent's way back and the moment of the fault.
type Stage = fn(&Recovery, i64) -> i64;

/// Where the time went, over all agents that came back.
pub struct Stages(Vec<Recovery>);

impl Stages {
    /// Of those that lost their session after `from`.
    pub fn of(all: Vec<Recovery>, from: i64) -> Self {
        Self(all.into_iter().filter(|one| one.lost >= from).collect())
    }

    pub fn say(&self, from: i64) {
        let stages: [(&str, Stage); 5] = [
            ("  fault to the loss being noticed", |one, from| one.lost - from),
            ("  to the first dial", |one, _| one.first_dial - one.lost),
            ("  to the last dial", |one, _| one.last_dial - one.first_dial),
            ("  to HTTP/2 over TLS", |one, _| one.connected - one.last_dial),
            ("  to the Welcome", |one, _| one.welcome - one.connected),
        ];
        for (what, took) in stages {
            let took = |one: &Recovery| Duration::from_micros(u64::try_from(took(one, from)).unwrap_or(0));
            let samples: Vec<Sample> =
                self.0.iter().map(|one| Sample { at: took(one), took: took(one) }).collect();
            let run = Run::new(what, Duration::from_secs(1), samples);
            let [middle, high, most] = [50, 99, 100].map(|at| bench::figures::short(run.percentile(at)));
            println!("{what:<44} p50 {middle:>9}   p99 {high:>9}   max {most:>9}");
        }
        let again = self.0.iter().filter(|one| one.dials > 1).count();
        let most = self.0.iter().map(|one| one.dials).max().unwrap_or(0);
        let why = self.0.iter().max_by_key(|one| one.dials).and_then(|one| one.failed.as_deref());
        println!(
            "  {} came back, {again} of them by more than one dial, at most {most}{}",
            self.0.len(),
            why.map(|why| format!(" ({why})")).unwrap_or_default(),
        );
    }
}
