//! One binary for all end-to-end tests.

mod gateways;
mod guest;
mod quickstart;
