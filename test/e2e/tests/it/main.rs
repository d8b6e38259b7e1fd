//! One binary for all end-to-end tests.

mod guest;
mod quickstart;
