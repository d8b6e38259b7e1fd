//! The records, through the pipeline, on a real database.
#![allow(clippy::unwrap_used)] // Helpers of tests lie outside test functions.

mod audit;
mod system;
mod work;
mod world;
