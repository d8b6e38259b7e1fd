//! What tests of a host have: a network namespace of their own, whose taps are theirs to write frames to, and a disk that
//! they may fill.

use std::process::Command;

mod disk;
mod frames;
mod taps;

pub use disk::{fill, on_a_small_disk};
pub use frames::Frame;
pub use taps::Tap;

/// Runs it on a thread in a network of its own, where the programs that it starts are too. As root.
pub fn in_a_network_of_its_own(test: impl AsyncFnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        taps::leave_the_hosts_network();
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    });
    if let Err(panicked) = thread.join() {
        std::panic::resume_unwind(panicked);
    }
}

/// # Panics
/// When `ip` refuses.
pub fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().expect("ip runs");
    assert!(status.success(), "ip {words}");
}
