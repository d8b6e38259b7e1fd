//! Everything a node can be asked: a converger for each section of its spec, a handler for each kind of command, and what
//! the agent hears of the machine. [`node`] puts them together for this host or for a simulated one.
//!
//! | New | Write | Wired in |
//! |---|---|---|
//! | section | a folder below [`sections`]: `plan` decides, `observe` looks, `apply` acts | [`node::parts`] |
//! | command kind | a file below [`kinds`] | [`node::parts`] |
//! | condition | a file below [`conditions`] | [`machine::Machine`] |
//!
//! Whatever reaches the host goes through a port with a fake: [`files`], [`slices`], [`sshd`], [`upload`],
//! [`images::Lookup`], [`sections::instances::port`], `hw`.

pub mod node;

pub mod sections;

pub mod kinds;

pub mod conditions;
pub mod machine;

pub mod files;
pub mod https;
pub mod images;
pub mod logs;
pub mod shell;
pub mod slices;
pub mod sshd;
pub mod tunnels;
pub mod upload;
