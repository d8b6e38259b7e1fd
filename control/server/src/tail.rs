//! The newest events in memory, so that many streams cost one read.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::events::{EventReader, StoredEvent};
use kernel::run::Running;
use kit::TaskKind;
use store::{StoreError, outbox};
use tokio::sync::watch;

const TAIL: TaskKind = TaskKind::fatal("event_tail");
/// Events kept: some seconds of a busy deployment. A stream that is further behind reads the database.
const KEPT_MAX: usize = 4_096;
/// Events of one read.
const READ_MAX: u32 = 500;
/// Without any wake-up, how often to look.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Follows the events of the deployment.
#[derive(Clone)]
pub(crate) struct Tail(Arc<Inner>);

struct Inner {
    /// Consecutive, up to the head.
    kept: Mutex<VecDeque<Arc<StoredEvent>>>,
    head: watch::Sender<i64>,
}

impl Tail {
    pub(crate) async fn start(reader: &EventReader, running: &Running) -> Result<Self, StoreError> {
        let head = reader.range().await?.head;
        let tail = Self(Arc::new(Inner { kept: Mutex::default(), head: watch::Sender::new(head) }));
        let (inner, reader, clock) = (tail.0.clone(), reader.clone(), running.clock.clone());
        let mut signal = running.signals.of(outbox::EVENTS_CHANNEL);
        running.supervisor.spawn(TAIL, move |cancel| async move {
            let follow = async {
                loop {
                    signal.borrow_and_update();
                    if let Err(err) = inner.pass(&reader).await {
                        tracing::warn!(err = kit::chain(&err), "failed to read new events");
                    }
                    // Both arms are cancel-safe: a signal that is not looked at stays.
                    tokio::select! {
                        _ = signal.changed() => {}
                        () = clock.sleep(LOOK_EVERY) => {}
                    }
                }
            };
            let follow: Option<Infallible> = cancel.run_until_cancelled(follow).await;
            debug_assert!(follow.is_none(), "it loops until it is cancelled");
            Ok::<(), Infallible>(())
        });
        Ok(tail)
    }

    pub(crate) fn head(&self) -> watch::Receiver<i64> {
        self.0.head.subscribe()
    }

    /// Up to `limit` events after `seq`, oldest first; `None` when not all of them are kept here.
    pub(crate) fn after(&self, seq: i64, limit: usize) -> Option<Vec<Arc<StoredEvent>>> {
        let kept = self.0.kept.lock().expect("no holder of this lock panics");
        if seq >= *self.0.head.borrow() {
            return Some(Vec::new());
        }
        let first = kept.front()?.seq;
        let skip = usize::try_from(seq + 1 - first).ok()?;
        Some(kept.iter().skip(skip).take(limit).cloned().collect())
    }
}

impl Inner {
    async fn pass(&self, reader: &EventReader) -> Result<(), StoreError> {
        loop {
            let head = *self.head.borrow();
            let read = reader.after(head, READ_MAX).await?;
            let Some(last) = read.last().map(|event| event.seq) else { return Ok(()) };
            let full = read.len() == READ_MAX as usize;
            {
                let mut kept = self.kept.lock().expect("no holder of this lock panics");
                kept.extend(read.into_iter().map(Arc::new));
                let surplus = kept.len().saturating_sub(KEPT_MAX);
                kept.drain(..surplus);
                self.head.send_replace(last);
            }
            if !full {
                return Ok(());
            }
        }
    }
}
