//! What runs instances on a machine: a hypervisor behind [`Runtime`], and all that an instance needs before it starts.
//!
//! ```text
//!              define            start            guest, or start
//!   (nothing) --------> Stopped --------> Running <--------------- Paused
//!       ^                 |  ^               |
//!       |     destroy     |  |  stop, guest  |
//!       +-----------------+  +---------------+
//!       destroy takes an instance from any state, also one whose define was cut short (Incomplete)
//! ```
//!
//! - [`instance`] is what is asked for, [`runtime`] the port and what is observed. [`fake`] and [`libvirt`] are behind the
//!   port; one conformance suite holds for both.
//! - [`images`] fetches what disks begin with, once for all that want it.
//! - [`qcow2`] reads headers of disks that strangers made. [`disk`] makes an instance's disk of an image.
//! - [`seed`] is what a guest is told at its first boot, as NoCloud has it.
//! - [`firewall`] has the host's kernel judge what instances send, and by whom they are reached.
//! - [`nat`] is a network for them where the host has none.
//! - [`vfio`] hands the host's GPUs to guests, and takes them back.
//! - [`admission`] says whether the host's memory and disk suffice. [`accel`] says whether KVM does, by a [`canary`].
//!
//! A pass over a section's instances, for who makes one:
//!
//! 1. [`Runtime::list`]: what is there, what counts against the host's memory, and what is reported.
//! 2. Those to be stopped or deleted: [`Runtime::stop`] until it is done, and [`Runtime::destroy`] for the deleted ones.
//! 3. The others: [`Runtime::define`], with user data when nothing of them is there or they are incomplete;
//!    [`admission::admit`] for those that do not run and should; [`Runtime::start`].
//!
//! Nothing here runs by itself. A domain is ours when its name and its UUID are those of one instance; all others are
//! listed and never touched. Calls about one instance come one after the other: the caller sees to that.

pub mod instance;
pub mod name;

pub mod runtime;

pub mod fake;
pub mod libvirt;

pub mod disk;
pub mod images;
pub mod qcow2;
pub mod seed;

pub mod firewall;
pub mod nat;
pub mod network;

pub mod vfio;

pub mod accel;
pub mod admission;
pub mod canary;

mod record;

#[cfg(test)]
mod lab;

pub use fake::FakeRuntime;
pub use images::{ImageRef, ImageSource, Images};
pub use instance::{Image, ImageFormat, Instance, Nic};
pub use libvirt::Libvirt;
pub use runtime::{
    Console, Domain, DomainState, Progress, Reboot, Runtime, RuntimeError, SeedInput, Trouble,
};
pub use seed::UserData;

#[cfg(test)]
mod conformance;
