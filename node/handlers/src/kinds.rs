//! Everything this node can be told to do once, one file a kind.

pub mod diag_nvml;
pub mod gpu_reset;
pub mod inventory_refresh;
pub mod logs_collect;
pub mod node_reboot;

use agent::kinds::Outcome;

/// The payload is not one this kind can act on. Nothing was done.
const INVALID_PAYLOAD: &str = "invalid-payload";
const INTERNAL: &str = "internal";

/// The dispatcher hands every handler its own payload; anything else is a fault of ours.
fn wrong_payload() -> Outcome {
    Outcome::failed(INTERNAL, "the payload is of another kind")
}

#[cfg(test)]
mod tests;
