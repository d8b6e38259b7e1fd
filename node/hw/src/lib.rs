//! What the machine is made of and how it does: readers of procfs, sysfs, the kernel log and `nvidia-smi`, and a fake
//! machine behind the same port.
//!
//! - [`Hardware`] is the port. [`HostHardware`] is this machine, [`FakeHardware`] an eight-GPU node that exists only in
//!   memory; one conformance suite holds for both.
//! - `proc`, `section`, `smi`, `kmsg` and `xid` parse. They are pure functions over text, never panic on any input, and
//!   leave out what they cannot read: a wrong fact is worse than a missing one.
//! - [`diag`], [`doctor`] and [`report`] judge and render what was collected. They do no I/O.
//!
//! Collecting is a pass that the caller asks for. Nothing here runs by itself, keeps a timer or remembers an inventory.

mod hardware;
mod host;

pub mod fake;

pub mod diag;
pub mod doctor;
pub mod report;

pub mod kmsg;
pub mod proc;
pub mod section;
pub mod smi;
pub mod xid;

mod clock;
mod commands;
mod health;
mod readers;
mod root;
mod text;

pub use clock::ClockSync;
pub use commands::{CannedCommands, CommandError, CommandOutput, Commands, HostCommands, InNetwork};
pub use fake::FakeHardware;
pub use hardware::{BoxFuture, Hardware, HardwareError, ResetError, XidBatch};
pub use health::{may_take_work, verdict};
pub use host::HostHardware;
pub use readers::{Readers, Stalled};
pub use root::{ReadError, Root};
pub use xid::{Xid, XidEvent, XidKind};

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod tests;
