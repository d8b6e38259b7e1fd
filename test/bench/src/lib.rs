//! What the benchmarks share: figures of a run, what a process takes, and what the disk can do.
//!
//! The benchmarks themselves are in `benches/bench`, one file or folder each; `cargo xtask bench NAME` builds and runs them.

pub mod figures;
pub mod pgbench;
pub mod probe;
pub mod usage;
