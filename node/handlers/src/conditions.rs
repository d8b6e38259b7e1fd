//! What is wrong with this machine, as facts that a person or a placer must know.
//!
//! [`xid`] says what an error line means, [`faults`] remembers the lines of this boot, [`presence`] compares the GPUs
//! with those that were here before, [`pressure`] judges memory pressure and stolen CPU time.

pub mod faults;
pub mod presence;
pub mod pressure;
pub mod xid;
