//! Faults built in on purpose, one of them switched on at start, to see that the simulators catch it.
//!
//! A site asks [`on`] for its own name: `if mutant::on("journal.skip-fsync") { return Ok(()); }`. Without the feature
//! `testing` the answer is the constant `false` and the branch is not in the program. The names, and the invariant that
//! catches each, are in `docs/simulation.md`.

/// Whether the mutant of this name was chosen at start.
#[cfg(feature = "testing")]
pub fn on(name: &str) -> bool {
    CHOSEN.get().is_some_and(|chosen| chosen == name)
}

/// Whether the mutant of this name was chosen at start: never, in a program without the feature `testing`.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}

#[cfg(feature = "testing")]
static CHOSEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Switches one mutant on for the life of this process.
///
/// # Errors
/// The one that was chosen before.
#[cfg(feature = "testing")]
pub fn choose(name: &str) -> Result<(), &'static str> {
    CHOSEN.set(name.to_owned()).map_err(|_| CHOSEN.get().map_or("", String::as_str))
}
