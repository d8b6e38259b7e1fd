//! What repeats, on a real database.
#![allow(clippy::unwrap_used)] // Helpers of tests lie outside test functions.

mod calls;
mod passes;
mod queues;
mod together;
mod world;
