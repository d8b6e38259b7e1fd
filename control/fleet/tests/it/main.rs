//! The worker's half of the fleet against a real PostgreSQL, with real keys on both sides.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod machine;
mod world;

mod acceptance;
mod claims;
mod joins;
mod liveness;
mod methods;
mod observing;
mod renewals;
mod secrets;
mod specs;
mod statements;
mod sweeping;
mod together;
