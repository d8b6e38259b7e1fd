//! Ports: where modules that do not know each other meet, and where a fake may stand for the real thing.

pub mod delivery;
pub mod iam;
pub mod images;
pub mod node;
pub mod secrets;
pub mod tenants;
pub mod tunnels;
