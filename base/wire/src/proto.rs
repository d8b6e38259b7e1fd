//! Generated protocol code. Packages keep their protobuf names as modules, since generated code refers to them so.

#[allow(clippy::all, missing_docs)]
pub mod bettercompute {
    pub mod common {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/bettercompute.common.v1.rs"));
        }
    }
    pub mod agent {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/bettercompute.agent.v1.rs"));
        }
    }
}

pub use bettercompute::agent::v1 as agent;
pub use bettercompute::common::v1 as common;

/// Descriptors of every file, for the baseline test.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.binpb"));
