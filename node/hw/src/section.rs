//! The inventory's sections, each read from one root in one pass.

mod cpu;
mod disks;
mod gpus;
mod memory;
mod nics;
mod os;
mod system;

pub use cpu::read as cpu;
pub use disks::{file_system_bytes, read as disks};
pub use gpus::collect as gpus;
pub use memory::{free_pages as free_huge_pages, read as memory};
pub use nics::read as nics;
pub use os::{boot_id, read as os};
pub use system::read as system;

#[cfg(test)]
mod tests;
