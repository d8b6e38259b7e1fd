//! Events of all sessions, a batch per transaction: what arrives while one is under way goes into the next.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use kernel::ports::delivery::{DeliveryError, ReportedEvent, ReportedEvents, SessionKey};
use kit::Wake;
use model::JournalId;

use super::Hub;
use crate::live::Live;
use crate::session::{Answer, Input};

/// Sessions of one transaction, and about how many events: a few milliseconds of it.
const SESSIONS_PER_TX: usize = 256;
const EVENTS_PER_TX: usize = 1024;

/// Events of one session on their way to the store.
pub(super) struct Reported {
    live: Arc<Live>,
    session: SessionKey,
    journal_id: JournalId,
    events: Vec<ReportedEvent>,
}

impl Hub {
    /// Makes a task of its own the one that stores events.
    pub(crate) fn events_apart(&self) -> Wake {
        let (wake, waker) = Wake::new();
        // Asked for once, by whoever serves this lease.
        let _ = self.eventer.set(waker);
        wake
    }

    pub(crate) async fn run_events(self: Arc<Self>, mut wake: Wake) {
        while !self.over.is_cancelled() {
            // Both arms are cancel-safe: a wake-up that is not taken stays.
            tokio::select! {
                () = self.over.cancelled() => return,
                () = wake.wait(self.timing.dispatch) => {}
            }
            self.events_pass().await;
        }
    }

    /// Whether a task of its own stores events: [`Hub::queue_events`] is for when it does.
    pub(crate) fn has_events_apart(&self) -> bool {
        self.eventer.get().is_some()
    }

    /// Has events stored: the answer is fed to the session.
    pub(crate) fn queue_events(&self, live: &Arc<Live>, journal_id: JournalId, events: Vec<ReportedEvent>) {
        let Some(session) = live.lock().core.key() else { return self.feed(live, Input::Unavailable) };
        let reported = Reported { live: live.clone(), session, journal_id, events };
        self.reported.lock().expect("no holder of this lock panics").push_back(reported);
        if let Some(eventer) = self.eventer.get() {
            eventer.wake();
        }
    }

    /// One pass: stores until nothing waits.
    pub(crate) async fn events_pass(&self) {
        loop {
            let batch = self.take_reported();
            if batch.is_empty() || self.over.is_cancelled() {
                return;
            }
            self.store_reported(batch).await;
        }
    }

    /// Each session once: its next events come after the answer to these, which may be that no more are taken.
    fn take_reported(&self) -> Vec<Reported> {
        let mut waiting = self.reported.lock().expect("no holder of this lock panics");
        let (mut batch, mut later, mut events) = (Vec::new(), VecDeque::new(), 0);
        let mut named: HashSet<SessionKey> = HashSet::new();
        while batch.len() < SESSIONS_PER_TX
            && events < EVENTS_PER_TX
            && let Some(reported) = waiting.pop_front()
        {
            if named.insert(reported.session) {
                events += reported.events.len();
                batch.push(reported);
            } else {
                later.push_back(reported);
            }
        }
        later.append(&mut waiting);
        *waiting = later;
        batch
    }

    async fn store_reported(&self, batch: Vec<Reported>) {
        let (batch, refused): (Vec<Reported>, Vec<Reported>) =
            batch.into_iter().partition(|reported| reported.live.lock().core.takes_events());
        refused.iter().for_each(|reported| self.feed(&reported.live, Input::Answer(Answer::EventsRefused)));
        if batch.is_empty() {
            return;
        }
        let all = batch.iter().map(|reported| ReportedEvents {
            session: reported.session,
            journal_id: reported.journal_id,
            events: reported.events.clone(),
        });
        self.metrics.call("put_events");
        match self.store.put_events_of(self.lease, all.collect()).await {
            Ok(stored) => {
                for (reported, stored) in batch.iter().zip(stored) {
                    self.feed(&reported.live, Input::Answer(answer(reported, stored)));
                }
            }
            // One event that the store cannot take must not keep the others out.
            Err(DeliveryError::Failed(_)) if batch.len() > 1 => {
                for reported in batch {
                    Box::pin(self.store_reported(vec![reported])).await;
                }
            }
            Err(err) => {
                self.failed("store events", &err);
                batch.iter().for_each(|reported| self.feed(&reported.live, Input::Unavailable));
            }
        }
    }
}

fn answer(reported: &Reported, stored: Option<u64>) -> Answer {
    let last = reported.events.last().map_or(0, |event| event.seq);
    if stored.is_some_and(|stored| stored < last) {
        tracing::warn!(node_id = %reported.session.node_id, "too many events of a node wait to be handled: no more are stored");
        return Answer::EventsRefused;
    }
    Answer::Events(stored)
}
