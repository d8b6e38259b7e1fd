//! Against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod cloud;

mod admission;
mod exhausted;
mod hosts;
mod images;
mod life;
mod lost;
mod names;
mod network;
mod orphans;
mod places;
mod pools;
mod tenants;
mod user_data;
