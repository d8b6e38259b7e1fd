//! What tests of virtual machines run: guests that are built of Debian's packages, and a libvirt of their own.

mod built;
mod cloud;
mod debian;
mod libvirtd;
mod programs;
mod tiny;

pub use cloud::CloudImage;
pub use debian::Debian;
pub use libvirtd::{Left, Libvirtd};
pub use tiny::Tiny;
