//! What every running part needs: a clock and randomness as ports, supervised tasks, backoff, crash-safe files.

pub mod backoff;
pub mod clock;
pub mod fs;
pub mod mutant;
pub mod net;
pub mod pace;
pub mod rng;
pub mod signal;
pub mod supervisor;
pub mod together;
pub mod wake;

pub use backoff::Backoff;
pub use clock::{Clock, ManualClock, SystemClock};
pub use pace::Pace;
pub use rng::{OsRng, Rng, SeededRng};
pub use supervisor::{OnEnd, Supervisor, TaskHandle, TaskKind};
pub use together::Together;
pub use wake::{Wake, Waker};

/// An error and its sources as one line: `failed to read config: permission denied`.
pub fn chain(err: &(dyn std::error::Error + 'static)) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // A transparent error prints its source's text; saying it twice helps nobody.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
