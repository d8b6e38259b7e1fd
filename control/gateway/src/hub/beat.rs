//! Once a second: who beat, what they last said of themselves, who fell silent, and who has left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kernel::ports::delivery::{DeliveryError, ReportedStatus, SessionEnd, SessionKey};
use model::NodeId;

use super::Hub;
use crate::live::Live;
use crate::session::Input;

/// Statuses of one transaction.
const STATUSES_PER_TX: usize = 1000;
/// How long a session that is over may still have something unsent before its connection is cut.
const LINGER: std::time::Duration = std::time::Duration::from_secs(2);

/// What could not be written yet; latest wins.
#[derive(Default)]
pub(crate) struct Unsaved {
    beats: BTreeSet<SessionKey>,
    statuses: BTreeMap<NodeId, ReportedStatus>,
}

impl Hub {
    pub(crate) async fn run_beats(self: Arc<Self>) {
        let mut unsaved = Unsaved::default();
        loop {
            // Both arms are cancel-safe: neither takes anything.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = self.clock.sleep(self.timing.beat) => {}
            }
            self.beat_pass(&mut unsaved).await;
        }
    }

    /// One pass.
    pub(crate) async fn beat_pass(&self, unsaved: &mut Unsaved) {
        if self.is_over() {
            return self.end();
        }
        for live in self.lives() {
            self.look_at(&live, unsaved);
        }
        self.write_beats(unsaved).await;
        self.write_statuses(unsaved).await;
        self.close_left().await;
    }

    fn look_at(&self, live: &Live, unsaved: &mut Unsaved) {
        let now = self.now();
        let mut inner = live.lock();
        let read = inner.core.reads();
        inner.feed(&self.terms, Input::Tick, now);
        if !read && inner.core.reads() {
            live.wake();
        }
        unsaved.beats.extend(inner.core.take_beat());
        if let Some(mut status) = inner.core.take_status() {
            let before = unsaved.statuses.remove(&status.session.node_id);
            if let (0, Some(before)) = (status.trust_version, before) {
                status.trust_version = before.trust_version;
            }
            unsaved.statuses.insert(status.session.node_id, *status);
        }
        if inner.core.is_over() {
            let since = *inner.over_since.get_or_insert(now.monotonic);
            drop(inner);
            live.wake();
            if now.monotonic.saturating_sub(since) >= LINGER {
                live.kill.cancel();
            }
        }
    }

    async fn write_beats(&self, unsaved: &mut Unsaved) {
        let beats: Vec<SessionKey> = unsaved.beats.iter().copied().collect();
        if beats.is_empty() {
            return;
        }
        self.metrics.call("heartbeats");
        match self.store.heartbeats(self.lease, beats).await {
            Ok(lost) => {
                unsaved.beats.clear();
                self.end_sessions(lost.into_iter().map(|key| (key, SessionEnd::TakenOver)).collect());
            }
            Err(err) => self.failed("store heartbeats", &err),
        }
    }

    async fn write_statuses(&self, unsaved: &mut Unsaved) {
        let statuses: Vec<ReportedStatus> = std::mem::take(&mut unsaved.statuses).into_values().collect();
        for chunk in statuses.chunks(STATUSES_PER_TX) {
            self.metrics.call("put_statuses");
            match self.store.put_statuses(self.lease, chunk.to_vec()).await {
                Ok(()) => {}
                Err(DeliveryError::Failed(_)) if chunk.len() > 1 => self.write_one_by_one(chunk).await,
                Err(err @ DeliveryError::Unavailable(_)) => {
                    self.failed("store statuses", &err);
                    unsaved
                        .statuses
                        .extend(chunk.iter().map(|status| (status.session.node_id, status.clone())));
                }
                Err(err) => self.failed("store statuses", &err),
            }
        }
    }

    /// One status that the store cannot take must not keep the others out.
    async fn write_one_by_one(&self, chunk: &[ReportedStatus]) {
        for status in chunk {
            self.metrics.call("put_statuses");
            if let Err(err) = self.store.put_statuses(self.lease, vec![status.clone()]).await {
                tracing::warn!(node_id = %status.session.node_id, "a status is left out");
                self.failed("store a status", &err);
            }
        }
    }
}
