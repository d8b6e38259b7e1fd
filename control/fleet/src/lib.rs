//! Machines: how they join, what they are told, what they answer, and whether they are there.
//!
//! ```text
//! join_inbox -> join -> node (joined) -> adopt -> accepting -> diagnosis -> ready <-> unreachable
//! parts of modules -> spec -> signed bytes -> gateway -> node
//! gateway -> node_events, node_status, commands -> observe -> modules
//! ```
//!
//! A gateway stores what nodes say and delivers what is stored here; every judgement is made by this crate, in a worker.

mod adopt;
pub mod commands;
pub mod core;
pub mod delivery;
pub mod facts;
pub mod join;
pub mod keys;
pub mod liveness;
pub mod methods;
pub mod observe;
pub mod retention;
pub mod spec;
pub mod sql;
pub mod trust;

pub use core::Fleet;
pub use delivery::PgDelivery;
pub use keys::FleetKeys;

/// The channel gateways listen on. Payload: a node's UUID, or empty for "look at everything".
pub const DELIVERY_CHANNEL: &str = "bc_delivery";
/// The queue that looks at what a node sent. Key: the node's UUID.
pub const OBSERVE_QUEUE: &str = "node-observe";
/// The queue that tells what nodes offer. Key: the node's UUID.
pub const FACTS_QUEUE: &str = "node-facts";
/// The queue that answers joins and renewals. Key: the inbox row's UUID.
pub const JOIN_QUEUE: &str = "join";
/// The channel on which answered inbox rows are announced. Payload: the inbox row's UUID.
pub const JOIN_CHANNEL: &str = "bc_join";
