//! What tests of virtual machines run: a guest that is built of Debian's packages in seconds, and a libvirt of their own.

mod libvirtd;
mod programs;
mod tiny;

pub use libvirtd::{Left, Libvirtd};
pub use tiny::Tiny;
