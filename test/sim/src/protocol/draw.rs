//! Chance, from a seed.
//!
//! What the network and the machines do by chance is a function of the seed and of what it is for, and not of how often anything
//! was drawn before: a fault taken out of a scenario leaves the rest of the run as it was, as far as that goes.

use kit::Rng;

/// One step of splitmix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a draw is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    Latency,
    Work,
    Pass,
    Boot,
    Gateway,
    Batch,
    Worker,
    Hostile,
    Restore,
    Busy,
}

#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub fn number(self, what: For, about: u64, nth: u64) -> u64 {
        mix(mix(mix(self.0 ^ (what as u64)) ^ about) ^ nth)
    }

    /// Uniform in `low..high`, near enough.
    pub fn between(self, what: For, about: u64, nth: u64, low: u64, high: u64) -> u64 {
        low + self.number(what, about, nth) % (high - low).max(1)
    }
}

/// The one of these that a draw chose, if there are any.
pub fn pick<'a, T, I>(from: I, drawn: u64) -> Option<&'a T>
where
    I: IntoIterator<Item = &'a T, IntoIter: ExactSizeIterator>,
{
    let mut all = from.into_iter();
    let count = all.len().max(1) as u64;
    all.nth(usize::try_from(drawn % count).unwrap_or(0))
}

/// A sequence of draws, for making scenarios.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5ce0))
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low))
    }

    pub fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap_or(0)]
    }
}

/// The machine's randomness, for one process of it. Cheaper to make than a generator that is cryptographic.
pub struct Bytes(std::sync::atomic::AtomicU64);

impl Bytes {
    pub fn new(seed: u64) -> Self {
        Self(std::sync::atomic::AtomicU64::new(mix(seed)))
    }
}

impl Rng for Bytes {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let at = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let word = mix(at).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
