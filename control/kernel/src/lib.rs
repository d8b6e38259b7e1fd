//! What every module of the control plane shares: how a method is registered and run, how work repeats, and the ports
//! through which modules that do not know each other meet.
//!
//! ```text
//! request -> authenticate -> handler { draft -> decide -> admit } -> audit -> answer
//! work queue item -> handler          pass -> sleep until it says
//! ```

pub mod call;
pub mod fault;
pub mod module;
pub mod ports;

pub mod audit;
pub mod events;
pub mod idempotency;
pub mod page;
pub mod pipeline;
pub mod run;
pub mod wait;

pub mod bounded;
pub mod json;
pub mod rate;
mod sql;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use call::{Call, Principal};
pub use fault::{ApiError, Fault, ResultExt};
pub use module::{Handler, Module, Pass, PassOutcome, QueueHandler};
pub use pipeline::{Answer, CallLimits, Incoming, Pipeline};

/// A boxed future at a crate seam, so that its body is compiled once.
pub type BoxFuture<'a, T> = futures::future::BoxFuture<'a, T>;
