//! One binary for all end-to-end tests.

mod concurrency;
mod gateways;
mod guest;
mod quickstart;
