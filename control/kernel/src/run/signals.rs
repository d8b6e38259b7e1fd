//! One listening connection for the whole process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

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
pub struct Signals(Arc<BTreeMap<&'static str, watch::Sender<()>>>);

impl Signals {
    /// Nobody signals.
    pub(super) fn silent() -> Self {
        let senders: BTreeMap<&'static str, watch::Sender<()>> =
            CHANNELS.iter().map(|channel| (*channel, watch::Sender::new(()))).collect();
        Self(Arc::new(senders))
    }

    pub fn start(store: &Store, supervisor: &Supervisor) -> Self {
        let signals = Self::silent();
        let told = signals.clone();
        let mut listener = Listener::new(store, CHANNELS);
        supervisor.spawn(LISTEN, move |cancel| async move {
            // Both arms are cancel-safe: a dropped `next` loses no notification.
            while let Some(notified) = cancel.run_until_cancelled(listener.next()).await {
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
        self.0.get(channel).expect("a channel of the list above").subscribe()
    }

    fn told(&self, channel: &str) {
        if let Some(sender) = self.0.get(channel) {
            sender.send_replace(());
        }
    }
}
