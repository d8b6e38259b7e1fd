//! What a module hands to the composition root: its methods, its queues, its passes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use serde_json::Value;
use store::Tx;
use store::work::Queue;

use crate::BoxFuture;
use crate::call::Call;
use crate::fault::Fault;

/// Runs one method on a parsed request. Built by [`Module::method`].
pub type Handler = Arc<dyn Fn(Arc<Call>, Value) -> BoxFuture<'static, Result<Value, Fault>> + Send + Sync>;

/// Handles one item of a work queue, by its key. Level-triggered: it looks at the rows, not at why it was woken, so running
/// it twice is running it once. Returns when to look again, if ever.
pub trait QueueHandler: Send + Sync + 'static {
    /// The queue's name, which is also its metric label.
    fn queue(&self) -> &'static str;
    /// Whether handling changes intent or the outside world. One that does not, or minds it by itself, runs in observe-only too.
    fn acts(&self) -> bool {
        true
    }
    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>>;
    /// The same for many keys at once, where there is such a way. Then [`handle`](Self::handle) is for keys that failed
    /// together, to find which of them it is.
    fn together(&self) -> Option<&dyn HandleTogether> {
        None
    }
}

/// Handles many keys of a queue in one transaction, in which they are also settled: it all happens, or none of it.
pub trait HandleTogether: Send + Sync {
    /// Keys of one transaction, and at most 31 more that were woken together with one of them: what a failure repeats, and how
    /// long their rows are locked.
    fn keys_max(&self) -> u32;

    /// `keys` are sorted and each is there once; nobody else handles them meanwhile. Returns when to look again at which of
    /// them, if ever. May run more than once, as any transaction.
    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>>;
}

/// A key to be looked at again, after a pause.
pub type Again = (String, Duration);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassOutcome {
    /// Nothing is left to do now.
    Idle,
    /// There is more: run again at once.
    More,
}

/// Work that repeats by period. `singleton` passes run in one process at a time, under a lease of their name.
pub trait Pass: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn period(&self) -> Duration;
    fn singleton(&self) -> bool {
        true
    }
    /// Whether it changes intent or the outside world. One that only records what is so runs in observe-only too.
    fn acts(&self) -> bool {
        true
    }
    fn run<'a>(&'a self) -> BoxFuture<'a, Result<PassOutcome, Fault>>;
}

/// Bytes as they come.
pub type ContentBytes = BoxStream<'static, std::io::Result<Bytes>>;

/// Takes what belongs to a resource and is too large for a request: the body of `PUT /api/compute/<group>/<id>/content?offset=N`.
pub trait Content: Send + Sync + 'static {
    /// Of the resource's methods.
    fn group(&self) -> &'static str;
    /// The method under whose name such a call is audited.
    fn method(&self) -> &'static str;
    /// Takes bytes from `offset` on. It decides by itself whether the caller may. What has come stays when they break off.
    fn put<'a>(
        &'a self,
        call: &'a Call,
        id: &'a str,
        offset: u64,
        bytes: ContentBytes,
    ) -> BoxFuture<'a, Result<Value, Fault>>;
}

/// What one module brings.
#[derive(Default)]
pub struct Module {
    pub name: &'static str,
    pub methods: Vec<(&'static str, Handler)>,
    pub queues: Vec<Arc<dyn QueueHandler>>,
    pub passes: Vec<Arc<dyn Pass>>,
    pub contents: Vec<Arc<dyn Content>>,
}

impl Module {
    pub fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// Registers the handler of an API method. The request was parsed and checked against `M`'s schema before.
    pub fn method<M, F>(mut self, handler: F) -> Self
    where
        M: api::Method,
        F: Fn(Arc<Call>, M::Request) -> BoxFuture<'static, Result<M::Response, Fault>>
            + Send
            + Sync
            + 'static,
    {
        let handler = Arc::new(handler);
        let erased: Handler = Arc::new(move |call, value| {
            let handler = handler.clone();
            Box::pin(async move {
                let request = api::parse_request::<M>(value)
                    .map_err(|invalid| crate::ApiError::invalid(&invalid.pointer, invalid.message))?;
                let response = handler(call, request).await?;
                serde_json::to_value(&response).map_err(|source| Fault::Internal {
                    doing: "encode the answer",
                    source: Box::new(source),
                })
            })
        });
        self.methods.push((M::NAME, erased));
        self
    }

    pub fn queue(mut self, handler: Arc<dyn QueueHandler>) -> Self {
        self.queues.push(handler);
        self
    }

    pub fn pass(mut self, pass: Arc<dyn Pass>) -> Self {
        self.passes.push(pass);
        self
    }

    pub fn content(mut self, content: Arc<dyn Content>) -> Self {
        self.contents.push(content);
        self
    }
}

/// A key that failed this often in a row is parked for a person to look at: after about eight hours of trying.
const ATTEMPTS_MAX: i32 = 100;

/// The queue of this name.
pub fn queue(name: &'static str) -> Queue {
    Queue::new(name, ATTEMPTS_MAX)
}

/// Wakes a queue's handler for a key when the transaction commits.
pub async fn wake(tx: &mut Tx<'_>, queue_name: &'static str, key: &str) -> Result<(), store::StoreError> {
    wake_in(tx, queue_name, key, Duration::ZERO).await
}

/// Wakes a queue's handler for many keys when the transaction commits.
pub async fn wake_all(
    tx: &mut Tx<'_>,
    queue_name: &'static str,
    keys: &[String],
) -> Result<(), store::StoreError> {
    store::work::enqueue_all(tx, queue(queue_name), keys).await
}

/// Wakes a queue's handler for a key after a delay, or earlier if it is to be woken earlier already.
pub async fn wake_in(
    tx: &mut Tx<'_>,
    queue_name: &'static str,
    key: &str,
    delay: Duration,
) -> Result<(), store::StoreError> {
    store::work::enqueue(tx, queue(queue_name), key, delay).await
}
