//! The invariants, and the control plane under several hands at once, against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod clock;
mod cloud;
mod machine;

mod concurrency;
mod delivery;
mod fleet;
mod invariants;
mod mutants;
