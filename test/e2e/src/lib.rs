//! End-to-end tests on real processes: the programs as a person starts them, a real PostgreSQL, real TLS.

pub mod dev;
pub mod footprint;
pub mod guest;
pub mod program;
pub mod serve;
