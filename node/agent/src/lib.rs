//! The daemon's engine: what turns a session with a gateway into a machine that is what its spec says, and commands that
//! run once. It knows traits only; what they do to a machine is in `handlers`, `hw` and their like.
//!
//! ```text
//!   Link ──frames──▶ ┌────────────────────── Engine (no I/O) ──────────────────────┐ ──effects──▶ workers (KindHandler)
//!                    │ session · acceptance · dispatch · desired · conditions      │              converge loop (Converger)
//!   Hardware ──────▶ │                     journal rules                           │              Link, IdentityStore
//!                    └──────────────────────────┬──────────────────────────────────┘
//!                                        writes, one fsync a step
//!                                         JournalStore (redb, memory)
//! ```
//!
//! [`engine`] is the state machine, [`run`] the actor around it. Every effect of a step happens after the writes of that
//! step are durable: that one rule is what the crash tests hold the crate to.
//!
//! Deliberately absent: policy (who gets what), any knowledge of a section's or kind's content, a listener on the network.

pub mod acceptance;
pub mod clock;
pub mod conditions;
pub mod config;
pub mod converge;
pub mod desired;
pub mod dispatch;
pub mod effect;
pub mod engine;
mod entropy;
pub mod hardware;
pub mod identity;
pub mod join;
pub mod journal;
pub mod kinds;
pub mod link;
pub mod renew;
pub mod run;
pub mod secrets;
pub mod session;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transport;
pub mod tunnel;
