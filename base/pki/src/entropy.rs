//! Where key material and nonces come from. A port, so that a simulation replays byte for byte.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng;
use sha2::{Digest, Sha256};

/// A source of unpredictable bytes.
pub trait Entropy: Send + Sync {
    /// Fills all of `out`.
    fn fill(&self, out: &mut [u8]);
}

/// `N` fresh bytes.
pub fn bytes<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut out = [0u8; N];
    entropy.fill(&mut out);
    out
}

/// The operating system's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, out: &mut [u8]) {
        // Going on with guessable bytes would be worse than stopping.
        rand::rngs::SysRng
            .try_fill_bytes(out)
            .expect("the operating system's random generator does not fail once it is seeded");
    }
}

/// SHA-256 over a seed and a counter: the same seed gives the same bytes, for simulations and tests only. Keys made
/// from it are as secret as the seed.
pub struct SeededEntropy {
    seed: [u8; 32],
    block: AtomicU64,
}

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"better-compute/seeded-entropy");
        hash.update(seed.to_be_bytes());
        Self { seed: hash.finalize().into(), block: AtomicU64::new(0) }
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, out: &mut [u8]) {
        for chunk in out.chunks_mut(32) {
            let mut hash = Sha256::new();
            hash.update(self.seed);
            hash.update(self.block.fetch_add(1, Ordering::Relaxed).to_be_bytes());
            let block: [u8; 32] = hash.finalize().into();
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

impl fmt::Debug for SeededEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededEntropy")
    }
}
