//! The protocol simulator: the real agent core, the real gateway core and the real rules of delivery in one thread, over a disk, a
//! network, clocks and chance that are made of a seed. The same seed gives the same bytes.
//!
//! ```text
//!  Engine ── disk with modelled fsync        Driven gateway (hub, sessions, passes)
//!     │                                            │
//!     └──────── network (TCP-like, hostile) ───────┤
//!                                                  └── MemoryDelivery behind a database that fails
//! ```
//! A [`scenario::Scenario`] says what happens when; [`run::run`] plays it, takes the faults away, and watches the world until it
//! rests; [`watch`] knows what really happened and holds it against [`invariants`].

pub mod action;
pub mod clock;
pub mod explore;
pub mod invariants;
pub mod kinds;
pub mod mutants;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod skew;

mod disk;
mod draw;
mod faults;
mod gateways;
mod hostile;
mod looks;
mod network;
mod nodes;
mod plane;
mod steps;
mod store;
mod told;
mod transcript;
mod treason;
mod watch;
mod words;
mod world;
