//! Leaving a request for a worker, and waiting for its answer.
//!
//! One notification says that some request was answered, not which: whoever listens reads all that are waited for in one
//! statement, however many machines join at once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::{self, Either};
use kernel::ports::delivery::{DeliveryError, GatewayLease, InboxAnswer, InboxRequest};
use store::{Op, Row};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Failure, PgDelivery, guard, sql, store_error};
use crate::JOIN_QUEUE;

/// A notification may be missed while the listener reconnects; this is how soon a row is looked at all the same.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Asking(Mutex<HashMap<Uuid, oneshot::Sender<InboxAnswer>>>);

impl Asking {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Uuid, oneshot::Sender<InboxAnswer>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// Forgets who waits, also when the wait is dropped.
struct Waiting<'a> {
    asking: &'a Asking,
    inbox_id: Uuid,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.asking.lock().remove(&self.inbox_id);
    }
}

impl PgDelivery {
    pub(super) async fn ask_worker(
        &self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Result<InboxAnswer, DeliveryError> {
        let inbox_id = Uuid::from_u128(u128::from_be_bytes((*self.0.rng).bytes()));
        let (told, mut answer) = oneshot::channel();
        self.0.asking.lock().insert(inbox_id, told);
        let _waiting = Waiting { asking: &self.0.asking, inbox_id };
        self.leave_request(lease, inbox_id, &request).await?;
        let deadline = self.0.clock.monotonic() + patience;
        loop {
            let Some(left) = deadline.checked_sub(self.0.clock.monotonic()) else {
                return Ok(InboxAnswer::TimedOut);
            };
            // Cancel-safe: the receiver stays, and an answer in it too.
            let patience = self.0.clock.sleep(left.min(LOOK_AGAIN));
            if let Either::Left((Ok(answer), _)) = future::select(&mut answer, patience).await {
                return Ok(answer);
            }
            if let Some((_, answer)) = self.read_answers(vec![inbox_id]).await?.pop() {
                return Ok(answer);
            }
        }
    }

    async fn leave_request(
        &self,
        lease: GatewayLease,
        inbox_id: Uuid,
        request: &InboxRequest,
    ) -> Result<(), DeliveryError> {
        self.store()
            .tx(Op::new("inbox_ask"), |tx| {
                Box::pin(async move {
                    guard(tx, lease).await?;
                    tx.execute(
                        &sql::INBOX_INSERT,
                        &[
                            &inbox_id,
                            &request.kind.name(),
                            &lease.gateway_id.uuid(),
                            &request.request,
                            &request.source_ip,
                            &request.peer_serial,
                        ],
                    )
                    .await?;
                    let key = inbox_id.hyphenated().to_string();
                    store::work::enqueue_all(tx, kernel::module::queue(JOIN_QUEUE), &[key]).await?;
                    Ok::<_, Failure>(())
                })
            })
            .await
            .map_err(DeliveryError::from)
    }

    /// Some request was answered: tells everybody whose was. A failure is made good by [`LOOK_AGAIN`].
    pub(super) async fn hand_out_answers(&self) {
        let waiting: Vec<Uuid> = self.0.asking.lock().keys().copied().collect();
        if waiting.is_empty() {
            return;
        }
        match self.read_answers(waiting).await {
            Ok(answers) => {
                let mut asking = self.0.asking.lock();
                for (inbox_id, answer) in answers {
                    if let Some(told) = asking.remove(&inbox_id) {
                        let _ = told.send(answer);
                    }
                }
            }
            Err(err) => tracing::warn!(err = kit::chain(&err), "cannot read answers of workers"),
        }
    }

    async fn read_answers(&self, inbox_ids: Vec<Uuid>) -> Result<Vec<(Uuid, InboxAnswer)>, DeliveryError> {
        let rows = self.store().read(&sql::INBOX_READ, &[&inbox_ids]).await.map_err(store_error)?;
        Ok(rows.iter().map(|row| (row.get("inbox_id"), answer(row))).collect())
    }
}

fn answer(row: &Row) -> InboxAnswer {
    match row.get::<_, Option<Vec<u8>>>("reply") {
        Some(reply) => InboxAnswer::Reply(reply),
        None => InboxAnswer::Refused(row.get::<_, Option<String>>("refusal").unwrap_or_default()),
    }
}
