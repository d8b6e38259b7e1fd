//! Leaving a request for a worker, and waiting for its answer.

use std::time::Duration;

use kernel::ports::delivery::{DeliveryError, GatewayLease, InboxAnswer, InboxRequest};
use store::{Op, StoreError};
use uuid::Uuid;

use super::{PgDelivery, sql, store_error};
use crate::JOIN_QUEUE;

/// A notification may be missed while the listener reconnects; this is how soon the row is looked at all the same.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl PgDelivery {
    pub(super) async fn ask_worker(
        &self,
        lease: GatewayLease,
        request: InboxRequest,
        patience: Duration,
    ) -> Result<InboxAnswer, DeliveryError> {
        let inbox_id = Uuid::from_u128(u128::from_be_bytes((*self.0.rng).bytes()));
        let request = &request;
        self.store()
            .tx(Op::new("inbox_ask"), |tx| {
                Box::pin(async move {
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
                    store::work::enqueue_all(
                        tx,
                        kernel::module::queue(JOIN_QUEUE),
                        &[inbox_id.hyphenated().to_string()],
                    )
                    .await?;
                    Ok::<_, StoreError>(())
                })
            })
            .await
            .map_err(store_error)?;
        self.await_answer(inbox_id, patience).await
    }

    async fn await_answer(&self, inbox_id: Uuid, patience: Duration) -> Result<InboxAnswer, DeliveryError> {
        let deadline = self.0.clock.monotonic() + patience;
        loop {
            // Registered before the look, so that an answer between look and wait is not slept through.
            let notified = self.0.answered.notified();
            let row = self.store().read_opt(&sql::INBOX_READ, &[&inbox_id]).await.map_err(store_error)?;
            if let Some(row) = row {
                return Ok(match row.get::<_, Option<Vec<u8>>>("reply") {
                    Some(reply) => InboxAnswer::Reply(reply),
                    None => InboxAnswer::Refused(row.get::<_, Option<String>>("refusal").unwrap_or_default()),
                });
            }
            let Some(left) = deadline.checked_sub(self.0.clock.monotonic()) else {
                return Ok(InboxAnswer::TimedOut);
            };
            let _ = tokio::time::timeout(left.min(LOOK_AGAIN), notified).await;
        }
    }
}
