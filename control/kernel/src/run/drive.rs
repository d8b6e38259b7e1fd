//! The same passes for whoever drives them itself: the simulator, which decides what runs when.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use store::outbox::Relay;
use store::work::Claimed;

use super::Running;
use super::item::run_and_settle;
use super::passes::{Held, Once, once};
use super::queues::Dispatcher;
use super::relay;
use crate::module::{Pass, QueueHandler};

/// One queue of one process.
pub struct DrivenQueue {
    running: Running,
    handler: Arc<dyn QueueHandler>,
    dispatcher: Dispatcher,
}

impl DrivenQueue {
    pub fn new(running: &Running, handler: Arc<dyn QueueHandler>) -> Self {
        let dispatcher = Dispatcher::new(running.clone(), handler.clone(), 1);
        Self { running: running.clone(), handler, dispatcher }
    }

    pub fn name(&self) -> &'static str {
        self.handler.queue()
    }

    /// One look: handles what can be handled together, and claims up to `room` keys to [`run`](Self::run). How long to wait
    /// until the next look, unless something signals: not at all when there may be more.
    pub async fn claim(&self, room: u32) -> Result<(Vec<Claimed>, Duration), StoreError> {
        self.dispatcher.look(room).await
    }

    /// Handles a key and settles it.
    pub async fn run(&self, item: &Claimed) -> Result<(), StoreError> {
        run_and_settle(&self.running, &*self.handler, item).await
    }
}

/// One pass of one process, and its lease.
pub struct DrivenPass {
    running: Running,
    pass: Arc<dyn Pass>,
    held: Held,
}

impl DrivenPass {
    pub fn new(running: &Running, pass: Arc<dyn Pass>) -> Self {
        let held = Held::new(running.clone(), format!("pass:{}", pass.name()));
        Self { running: running.clone(), pass, held }
    }

    pub fn name(&self) -> &'static str {
        self.pass.name()
    }

    pub fn period(&self) -> Duration {
        self.pass.period()
    }

    /// Runs it, where this process may. Whether it ran.
    pub async fn once(&mut self) -> Result<bool, StoreError> {
        Ok(matches!(once(&self.running, &*self.pass, &mut self.held).await?, Once::Ran))
    }
}

/// The relay of events, of one process.
pub struct DrivenRelay {
    running: Running,
    held: Held,
    relay: Relay,
}

impl DrivenRelay {
    pub fn new(running: &Running) -> Self {
        let held = Held::new(running.clone(), store::outbox::RELAY_LEASE.to_owned());
        Self { running: running.clone(), held, relay: Relay::default() }
    }

    pub async fn once(&mut self) -> Result<(), StoreError> {
        relay::pass(&self.running, &mut self.held, &mut self.relay).await.map(drop)
    }
}
