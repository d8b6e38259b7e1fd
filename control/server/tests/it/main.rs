//! The API over HTTP, on a real database.
#![allow(clippy::unwrap_used)] // Helpers of tests lie outside test functions.

mod front;
mod ops;
mod streams;
mod tls;
mod world;
