//! Two simulators, seeded and replayable.
//!
//! `protocol` drives the real agent core, the real gateway core and the rules of delivery over ports in memory: fast, one
//! thread, byte for byte. `fleet` drives the real control plane on a real PostgreSQL under a virtual clock.

pub mod invariants;

pub mod fleet;
#[cfg(feature = "testing")]
pub mod protocol;
pub mod world;
