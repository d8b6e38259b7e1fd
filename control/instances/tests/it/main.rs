//! Against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod cloud;

mod admission;
mod hosts;
mod images;
mod life;
mod network;
mod places;
