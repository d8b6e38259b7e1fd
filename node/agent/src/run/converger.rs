//! The converge loop: a pass when something says so, soon again while a section is under way, and now and then to find drift.

use std::convert::Infallible;
use std::sync::Arc;

use kit::{Clock, Wake};
use model::NodeId;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Message, STOP_PATIENCE};
use crate::converge::{self, ConvergeContext, Converger, DRIFT_PERIOD, RETRY_PERIOD};
use crate::desired::HeldSpec;
use crate::secrets::Desk;

pub(super) struct Loop {
    pub convergers: Vec<Box<dyn Converger>>,
    pub held: watch::Receiver<Option<Arc<HeldSpec>>>,
    pub wake: Wake,
    pub inbox: mpsc::Sender<Message>,
    pub node_id: NodeId,
    pub boot_id: String,
    pub desk: Desk,
    pub clock: Arc<dyn Clock>,
}

async fn over(clock: &dyn Clock, cancel: &CancellationToken) {
    cancel.cancelled().await;
    clock.sleep(STOP_PATIENCE).await;
}

impl Loop {
    pub async fn run(mut self, cancel: CancellationToken) -> Result<(), Infallible> {
        let mut first_pass = true;
        let mut at_most = DRIFT_PERIOD;
        loop {
            // Cancel-safe: a wake-up that is not returned stays for the next wait.
            tokio::select! {
                () = self.wake.wait(at_most) => {}
                () = cancel.cancelled() => return Ok(()),
            }
            let Some(held) = self.held.borrow_and_update().clone() else { continue };
            let context = ConvergeContext {
                node_id: self.node_id,
                generation: held.generation,
                boot_id: self.boot_id.clone(),
                first_pass,
                cancel: cancel.clone(),
                secrets: self.desk.clone(),
            };
            // A pass that does not come to an end when asked is dropped where it waits, as a crash would.
            let report = tokio::select! {
                report = converge::pass(&mut self.convergers, &held, &context) => report,
                () = over(self.clock.as_ref(), &cancel) => return Ok(()),
            };
            at_most = if report.settled() { DRIFT_PERIOD } else { RETRY_PERIOD };
            first_pass = false;
            if self.inbox.send(Message::Passed(report)).await.is_err() {
                return Ok(());
            }
        }
    }
}
