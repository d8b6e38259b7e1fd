//! Which node takes a claim, and why the others do not.
//!
//! ```text
//! Snapshot (one pool in memory) + Claim + Policy -> Placement | NoFit { groups, nodes, hints }
//!
//!   view      what the caller tells the snapshot about a node
//!   snapshot  the nodes, changed in place: upsert, book, release, flags, health; a generation for each
//!   index     the nodes in classes that are equally good for every claim, so that a decision looks at few of them
//!   topology  which devices of a class to take: fewest NVLink islands, fewest NUMA nodes, nothing broken up
//!   decide    the search: the best class first, in it the first node that passes
//!   explain   the same question asked of every node, with numbers, and what would fit instead
//! ```
//!
//! Pure: no clock, no I/O. The same nodes, claim and policy give the same answer, in whatever order the nodes came.
//! The snapshot is a cache over rows: the database refuses a second booking of an atom; the snapshot only avoids
//! asking for one. A caller that decides on a snapshot and commits elsewhere compares [`Placement::generation`] with
//! [`Snapshot::generation`] before it commits.
//!
//! Deliberately absent: parts of a GPU (an atom here is a whole device), preemption, claims over several nodes (the
//! caller places them one by one, with `avoid`), and NUMA placement of virtual machines without GPUs, which their
//! owner decides on the node it was given.

mod claim;
mod cpus;
mod decide;
mod explain;
mod index;
mod placement;
mod snapshot;
mod topology;
mod view;

pub use claim::{CAPABILITY_LIMITS, Claim, Policy};
pub use cpus::{CPU_MAX, CpuListError, CpuSet, floating};
pub use explain::{Group, Hint, NoFit, Reason, Verdict};
pub use placement::{Booking, DeviceScore, Limits, Placement, Score};
pub use snapshot::{BookError, InvalidNode, Snapshot};
pub use topology::{Cell, Choice, NO_ISLAND, NO_NUMA, choose};
pub use view::{Amount, AtomId, Cordon, DeviceView, HostView, NodeView, NumaView, Standing, Text};
