//! Which protocol versions a side speaks, and which one two sides have in common.
//!
//! A release speaks the versions of the two releases before it and its own: any two releases at most two apart can talk, and
//! further apart the one that is behind must be upgraded. Within a version, a side ignores frames and fields it does not know.

use std::fmt;

use crate::paths::{PROTOCOL_MAX, PROTOCOL_MIN};

/// The versions a side speaks, both ends included. They count from 1: 0 is a side that did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub min: u32,
    pub max: u32,
}

impl Versions {
    /// Those of this build.
    pub const SPOKEN: Self = Self { min: PROTOCOL_MIN, max: PROTOCOL_MAX };

    pub const fn contain(self, version: u32) -> bool {
        self.min <= version && version <= self.max
    }

    /// The newest version both sides speak, if there is one.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest > 0 && newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// `3`, or `3 to 5`.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.max)
        } else {
            write!(f, "{} to {}", self.min, self.max)
        }
    }
}

#[cfg(test)]
mod tests;
