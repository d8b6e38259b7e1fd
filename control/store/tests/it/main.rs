//! Against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod embedded;
mod migrations;
mod transactions;
