//! One listening connection for the whole process.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use kit::{Supervisor, TaskKind};
use store::Store;
use store::listen::Listener;
use tokio::sync::watch;

const LISTEN: TaskKind = TaskKind::fatal("database_signals");

/// Told when something waits that the owner of its pool is to place.
pub const PLACE_CHANNEL: &str = "bc_place";

const CHANNELS: &[&str] =
    &[store::work::CHANNEL, store::outbox::OUTBOX_CHANNEL, store::outbox::EVENTS_CHANNEL, PLACE_CHANNEL];

/// Hands on what the database signals. A receiver that was changed says only: look again.
#[derive(Clone)]
pub struct Signals(Arc<Inner>);

struct Inner {
    channels: BTreeMap<&'static str, watch::Sender<()>>,
    /// Of each queue that somebody waits for: who has woken one queue disturbs nobody at another.
    queues: Mutex<BTreeMap<&'static str, watch::Sender<()>>>,
}

impl Signals {
    /// Nobody signals.
    pub(super) fn silent() -> Self {
        let channels = CHANNELS.iter().map(|channel| (*channel, watch::Sender::new(()))).collect();
        Self(Arc::new(Inner { channels, queues: Mutex::default() }))
    }

    pub fn start(store: &Store, supervisor: &Supervisor) -> Self {
        let signals = Self::silent();
        let told = signals.clone();
        let mut listener = Listener::new(store, CHANNELS);
        supervisor.spawn(LISTEN, move |cancel| async move {
            // Both arms are cancel-safe: a dropped `next` loses no notification.
            while let Some(notified) = cancel.run_until_cancelled(listener.next()).await {
                if notified.channels.contains(store::work::CHANNEL) {
                    told.queues_told(notified.named(store::work::CHANNEL));
                }
                for channel in notified.channels {
                    told.told(channel);
                }
            }
            Ok::<(), Infallible>(())
        });
        signals
    }

    /// # Panics
    /// When the channel is none of those listened to.
    pub fn of(&self, channel: &'static str) -> watch::Receiver<()> {
        self.0.channels.get(channel).expect("a channel of the list above").subscribe()
    }

    /// What wakes a queue.
    pub fn of_queue(&self, queue: &'static str) -> watch::Receiver<()> {
        let mut queues = self.0.queues.lock().expect("no holder of this lock panics");
        queues.entry(queue).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Wakes these queues, or all when it is not known which.
    fn queues_told(&self, names: Option<&BTreeSet<String>>) {
        let queues = self.0.queues.lock().expect("no holder of this lock panics");
        for (queue, sender) in &*queues {
            if names.is_none_or(|names| names.contains(*queue)) {
                sender.send_replace(());
            }
        }
    }

    /// Wakes whoever listens to the channel.
    pub fn told(&self, channel: &str) {
        if let Some(sender) = self.0.channels.get(channel) {
            sender.send_replace(());
        }
    }
}
