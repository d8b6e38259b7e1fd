//! Secrets against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod broker;
mod keys;
mod methods;
mod statements;
mod world;
