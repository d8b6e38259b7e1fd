//! One binary for all end-to-end tests.

mod bad_input;
mod concurrency;
mod gateways;
mod guest;
mod instances;
mod machines;
mod quickstart;
mod security;
mod ssh;
