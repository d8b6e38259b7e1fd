//! Notifications of the database, folded and never missed.
//!
//! A notification says only that there is something to look at. Those that come while nobody looks fold into one,
//! and after every connect, the first included, everything counts as notified: what was sent in between is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use futures::{FutureExt, future::Either};
use kit::{Backoff, Rng};
use tokio_postgres::{AsyncMessage, Client};

use crate::error::StoreError;
use crate::{Store, StoreConfig};

const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(5);
/// How often a silent connection is asked whether it lives; a proxy in between may have forgotten it.
const PROBE_EVERY: Duration = Duration::from_secs(30);
const PROBE_WITHIN: Duration = Duration::from_secs(10);
/// What is named of one channel at once. Past it everything counts as named: a look at all is cheaper than so many at one.
const NAMED_MAX: usize = 4096;

pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// What to look at now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notified {
    /// The channels that were told something since the last return.
    pub channels: BTreeSet<&'static str>,
    /// The connection is new, so every channel is in `channels`.
    pub reconnected: bool,
    named: Told,
}

impl Notified {
    /// What the channel's notifications named, when each named something and all of them were heard. None when anything may have
    /// changed.
    pub fn named(&self, channel: &str) -> Option<&BTreeSet<String>> {
        self.named.get(channel)?.as_ref()
    }
}

/// By channel: what was named, or none when that does not say all.
type Told = BTreeMap<&'static str, Option<BTreeSet<String>>>;

/// One connection of its own, driven by whoever calls [`Listener::next`].
pub struct Listener {
    config: StoreConfig,
    channels: &'static [&'static str],
    rng: Arc<dyn Rng>,
    backoff: Backoff,
    session: Option<(Client, Messages)>,
    /// Told but not returned yet.
    told: Told,
}

impl Listener {
    /// Connects at the first [`Listener::next`]. Channel names are plain lowercase words.
    pub fn new(store: &Store, channels: &'static [&'static str]) -> Self {
        let config = store.config().clone();
        let rng = config.rng.clone();
        let backoff = Backoff::new(RECONNECT_FIRST, RECONNECT_MAX);
        Self { config, channels, rng, backoff, session: None, told: Told::new() }
    }

    /// Returns when there is something to look at, connecting again for as long as it takes.
    ///
    /// Cancel-safe: what a dropped call had read, the next one returns.
    pub async fn next(&mut self) -> Notified {
        loop {
            if self.session.is_none() {
                match self.connect().await {
                    Ok(()) => {
                        self.backoff.reset();
                        self.told.clear();
                        return Notified {
                            channels: self.channels.iter().copied().collect(),
                            reconnected: true,
                            named: Told::new(),
                        };
                    }
                    Err(err) => {
                        let attempt = self.backoff.attempt();
                        tracing::warn!(err = %kit::chain(&err), attempt, "cannot listen to the database");
                        tokio::time::sleep(self.backoff.next_wait(&*self.rng)).await;
                        continue;
                    }
                }
            }
            if self.wait().await {
                let named = std::mem::take(&mut self.told);
                return Notified { channels: named.keys().copied().collect(), reconnected: false, named };
            }
            tracing::info!("the listening connection was lost");
            self.session = None;
        }
    }

    async fn connect(&mut self) -> Result<(), StoreError> {
        let (client, mut messages) = crate::pool::connect_raw(&self.config).await?;
        let listen: String = self.channels.iter().map(|channel| format!("LISTEN {channel};")).collect();
        driving(&mut messages, client.batch_execute(&listen), &[], &mut self.told)
            .await
            .ok_or_else(|| StoreError::lost("listen"))?
            .map_err(|err| StoreError::driver("listen", &err))?;
        self.session = Some((client, messages));
        Ok(())
    }

    /// Waits until something was told. False when the connection is lost.
    async fn wait(&mut self) -> bool {
        let Some((client, messages)) = self.session.as_mut() else { return false };
        while self.told.is_empty() {
            match tokio::time::timeout(PROBE_EVERY, messages.next()).await {
                Ok(Some(Ok(message))) => note(&mut self.told, &message, self.channels),
                Ok(Some(Err(_)) | None) => return false,
                Err(_silent) => {
                    let probe =
                        driving(messages, client.batch_execute("SELECT 1"), self.channels, &mut self.told);
                    if !matches!(tokio::time::timeout(PROBE_WITHIN, probe).await, Ok(Some(Ok(())))) {
                        return false;
                    }
                }
            }
        }
        // What has arrived meanwhile goes along.
        while let Some(Some(Ok(message))) = messages.next().now_or_never() {
            note(&mut self.told, &message, self.channels);
        }
        true
    }
}

fn note(told: &mut Told, message: &AsyncMessage, channels: &[&'static str]) {
    let AsyncMessage::Notification(note) = message else { return };
    let Some(channel) = channels.iter().copied().find(|channel| *channel == note.channel()) else { return };
    let named = told.entry(channel).or_insert_with(|| Some(BTreeSet::new()));
    match named {
        Some(names) if !note.payload().is_empty() && names.len() < NAMED_MAX => {
            names.insert(note.payload().to_owned());
        }
        _ => *named = None,
    }
}

/// Polls the connection while `request`, which needs it, runs, and notes what is told meanwhile. `None` when the
/// connection ends first.
async fn driving<T>(
    messages: &mut Messages,
    request: impl Future<Output = T>,
    channels: &[&'static str],
    told: &mut Told,
) -> Option<T> {
    let mut request = Box::pin(request);
    loop {
        match futures::future::select(request, messages.next()).await {
            Either::Left((done, _)) => return Some(done),
            Either::Right((Some(Ok(message)), unfinished)) => {
                note(told, &message, channels);
                request = unfinished;
            }
            Either::Right((Some(Err(_)) | None, _)) => return None,
        }
    }
}

/// The connection as a stream of what the server says unasked.
pub(crate) fn messages<S, T>(mut connection: tokio_postgres::Connection<S, T>) -> Messages
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(stream::poll_fn(move |cx| connection.poll_message(cx)))
}
