//! Parsers of the kernel's text files. Pure; each takes a file's text.

mod cpuinfo;
mod meminfo;
mod pressure;
mod stat;

pub use cpuinfo::{CpuInfo, FLAGS_THAT_MATTER, parse as cpuinfo};
pub use meminfo::{MemInfo, node_total_bytes, parse as meminfo};
pub use pressure::parse as pressure;
pub use stat::{CpuTimes, parse as cpu_times};

#[cfg(test)]
mod tests;
