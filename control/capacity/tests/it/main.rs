//! Against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod cloud;

mod booking;
mod explaining;
mod host;
mod leaving;
mod life;
mod many;
mod nodes;
mod policies;
mod pools;
mod pools_end;
mod storm;
