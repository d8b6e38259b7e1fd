//! The daemon's composition root. A library beside its program, so that `better-compute dev` runs the same machines in its own process.

pub mod commands;
pub mod hypervisor;
pub mod logs;
pub mod machine;
pub mod sim;

/// The version that Hello, join and `bcd version` tell.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
