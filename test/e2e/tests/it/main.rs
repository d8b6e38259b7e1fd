//! One binary for all end-to-end tests.

mod quickstart;
