//! Sessions are opened together: who says Hello while some are being opened goes into the next transaction.

use std::collections::HashSet;
use std::sync::Arc;

use kernel::BoxFuture;
use kernel::ports::delivery::{DeliveryError, HelloFacts, SessionEnd, SessionOpened, SessionRefused};
use kit::Wake;
use model::NodeId;

use super::Hub;
use crate::live::Live;
use crate::session::{Answer, Input};

/// Of one transaction: past it a node would wait for its Welcome longer than the rest gains.
const OPENS_PER_TX: usize = 128;

/// A stream that has said its Hello.
pub(super) struct Opening {
    live: Arc<Live>,
    facts: HelloFacts,
}

impl Hub {
    /// Makes a task of its own the one that opens sessions.
    pub(crate) fn open_apart(&self) -> Wake {
        let (wake, waker) = Wake::new();
        // Asked for once, by whoever serves this lease.
        let _ = self.opener.set(waker);
        wake
    }

    pub(crate) async fn run_opens(self: Arc<Self>, mut wake: Wake) {
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.dispatch) => {}
            }
            self.open_pass().await;
        }
    }

    /// Has a session opened: the answer is fed to it. What is returned, if anything, has to be driven for that.
    pub(crate) fn queue_open(
        self: &Arc<Self>,
        live: &Arc<Live>,
        facts: HelloFacts,
    ) -> Option<BoxFuture<'static, Input>> {
        let opening = Opening { live: live.clone(), facts };
        self.openings.lock().expect("no holder of this lock panics").push_back(opening);
        if let Some(opener) = self.opener.get() {
            opener.wake();
            return None;
        }
        let hub = self.clone();
        Some(Box::pin(async move {
            hub.open_pass().await;
            Input::Tick
        }))
    }

    /// One pass: opens until nobody waits.
    pub(crate) async fn open_pass(&self) {
        loop {
            let batch = self.take_openings();
            if batch.is_empty() || self.over.is_cancelled() {
                return;
            }
            self.open_batch(batch).await;
        }
    }

    /// Each node once: a second stream of one comes after its first.
    fn take_openings(&self) -> Vec<Opening> {
        let mut waiting = self.openings.lock().expect("no holder of this lock panics");
        let (mut batch, mut later) = (Vec::new(), Vec::new());
        let mut named: HashSet<NodeId> = HashSet::new();
        while batch.len() < OPENS_PER_TX
            && let Some(opening) = waiting.pop_front()
        {
            match named.insert(opening.facts.node_id) {
                true => batch.push(opening),
                false => later.push(opening),
            }
        }
        later.into_iter().rev().for_each(|opening| waiting.push_front(opening));
        batch
    }

    async fn open_batch(&self, batch: Vec<Opening>) {
        let hellos: Vec<HelloFacts> = batch.iter().map(|opening| opening.facts.clone()).collect();
        self.metrics.call("open_sessions");
        match self.store.open_sessions(self.lease, hellos).await {
            Ok(opened) => {
                for (opening, opened) in batch.iter().zip(opened) {
                    self.opened(&opening.live, opening.facts.node_id, opened);
                }
            }
            // One Hello that the store cannot take must not keep the others out.
            Err(DeliveryError::Failed(_)) if batch.len() > 1 => {
                for opening in batch {
                    Box::pin(self.open_batch(vec![opening])).await;
                }
            }
            Err(err) => {
                self.failed("open sessions", &err);
                batch.iter().for_each(|opening| self.feed(&opening.live, Input::Unavailable));
            }
        }
    }

    fn opened(&self, live: &Arc<Live>, node_id: NodeId, opened: Result<SessionOpened, SessionRefused>) {
        let is_open = opened.is_ok();
        // The one before ends first: at most one talks.
        if is_open {
            self.take_over(live, node_id);
        }
        self.feed(live, Input::Answer(Answer::Open(opened.map(Box::new))));
        if is_open && !self.registry().lives.contains_key(&live.id) {
            self.close_later(live);
        }
    }

    /// The node's sessions before this one end.
    fn take_over(&self, live: &Arc<Live>, node_id: NodeId) {
        let before = {
            let mut registry = self.registry();
            registry.greeted(node_id, live.id);
            // Its stream may have gone meanwhile.
            let before = match registry.lives.contains_key(&live.id) {
                true => registry.by_node.insert(node_id, live.id),
                false => registry.by_node.get(&node_id).copied(),
            };
            before.filter(|id| *id != live.id).and_then(|id| registry.lives.get(&id)).cloned()
        };
        if let Some(before) = before {
            self.feed(&before, Input::Ended(SessionEnd::TakenOver));
        }
    }
}
