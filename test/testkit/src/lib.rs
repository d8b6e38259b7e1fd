//! What tests stand on: a database per test, data captured from real machines, and waiting without sleeping.

mod db;
mod wait;

pub use db::{TestDb, db};
pub use wait::eventually;

use std::path::PathBuf;

/// The folder of outputs captured from real machines, which lies beside the source tree and never in it:
/// `$BC_SHARED_DATA`, else `../shared/data`. A test over it prints that it was skipped where this is `None`.
pub fn shared_data() -> Option<PathBuf> {
    let dir = std::env::var_os("BC_SHARED_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    if dir.is_dir() {
        return dir.canonicalize().ok();
    }
    eprintln!("skipped: no captured data at {}", dir.display());
    None
}

#[cfg(test)]
mod tests;
