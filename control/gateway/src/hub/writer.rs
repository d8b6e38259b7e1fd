//! Command updates of all sessions, a batch per transaction: what arrives while one is under way goes into the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel::ports::delivery::{DeliveryError, Poke, ReportedUpdate};
use kit::{Wake, mutant};
use model::{CommandId, NodeId};

use super::{Hub, News, Queued};
use crate::session::{Answer, Input};

/// Updates of one transaction: a few tens of milliseconds of it.
const UPDATES_PER_TX: usize = 512;
/// How long an outage is waited out between tries.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn bytes_of(updates: &[ReportedUpdate]) -> usize {
    updates
        .iter()
        .map(|update| {
            size_of::<ReportedUpdate>()
                + update.result.as_ref().map_or(0, Vec::len)
                + update.reason.len()
                + update.message.len()
        })
        .sum()
}

impl Hub {
    pub(crate) async fn run_writer(self: Arc<Self>, mut wake: Wake) {
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.beat) => {}
            }
            self.write_updates().await;
        }
    }

    /// One pass: writes until nothing is queued.
    pub(crate) async fn write_updates(&self) {
        loop {
            let batch = self.take_batch();
            if batch.is_empty() || self.over.is_cancelled() {
                return;
            }
            let bytes: usize = batch.iter().map(|queued| bytes_of(&queued.updates)).sum();
            self.write_batch(batch).await;
            self.update_bytes.fetch_sub(bytes, Ordering::SeqCst);
            let held_back =
                std::mem::take(&mut *self.held_back.lock().expect("no holder of this lock panics"));
            held_back.iter().for_each(|live| live.wake());
        }
    }

    fn take_batch(&self) -> Vec<Queued> {
        let mut queue = self.updates.lock().expect("no holder of this lock panics");
        let mut count = 0;
        // A Hello's results stay together, so a batch may go over by one session's.
        let end = queue
            .iter()
            .position(|queued| {
                count += queued.updates.len();
                count >= UPDATES_PER_TX
            })
            .map_or(queue.len(), |at| at + 1);
        queue.drain(..end).collect()
    }

    async fn write_batch(&self, batch: Vec<Queued>) {
        loop {
            let updates: Vec<ReportedUpdate> =
                batch.iter().flat_map(|queued| queued.updates.iter().cloned()).collect();
            self.metrics.call("apply_updates");
            match self.store.apply_updates(self.lease, updates).await {
                Ok(acknowledged) => return self.tell(&batch, acknowledged),
                Err(err @ DeliveryError::Unavailable(_)) => {
                    self.failed("store command updates", &err);
                    if mutant::on("gateway.updates-dropped-on-outage") {
                        return self.tell(&batch, Vec::new());
                    }
                    // Cancel-safe: nothing is taken.
                    tokio::select! {
                        () = self.over.cancelled() => return,
                        () = self.clock.sleep(RETRY_PAUSE) => {}
                    }
                }
                Err(DeliveryError::Failed(_)) if batch.len() > 1 => {
                    // One session's update that the store cannot take must not keep the others' out.
                    for queued in batch {
                        Box::pin(self.write_batch(vec![queued])).await;
                    }
                    return;
                }
                Err(err) => {
                    self.failed("store command updates", &err);
                    batch.iter().for_each(|queued| self.feed(&queued.live, Input::Unavailable));
                    return;
                }
            }
        }
    }

    fn tell(&self, batch: &[Queued], acknowledged: Vec<(NodeId, CommandId)>) {
        // A result gives a credit back, and the next command of its lane may be waiting for just that.
        if !acknowledged.is_empty() {
            let nodes = acknowledged.iter().map(|(node_id, _)| *node_id).collect();
            News::note(&self.dispatch_news, &Poke::Nodes(nodes));
            self.dispatch.wake();
        }
        let mut by_node: BTreeMap<NodeId, Vec<CommandId>> = BTreeMap::new();
        for (node_id, command_id) in acknowledged {
            by_node.entry(node_id).or_default().push(command_id);
        }
        for queued in batch {
            let Some(first) = queued.updates.first() else { continue };
            let acknowledged = by_node.remove(&first.session.node_id).unwrap_or_default();
            let count = queued.updates.len();
            self.feed(&queued.live, Input::Answer(Answer::Updates { count, acknowledged }));
        }
    }
}
