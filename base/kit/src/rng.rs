//! Randomness as a port.

use std::sync::Mutex;

use model::{Id, Timestamp};
use rand::{Rng as _, SeedableRng, rngs::StdRng};

pub trait Rng: Send + Sync + 'static {
    fn fill(&self, bytes: &mut [u8]);
}

impl dyn Rng {
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0u8; N];
        self.fill(&mut bytes);
        bytes
    }

    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Uniform in `0..bound`; 0 when `bound` is 0. The bias of a 128-bit product is below 2^-64.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A version 7 UUID (RFC 9562) of any id kind: time first, so that ids sort by their making.
    pub fn id<I: Id>(&self, now: Timestamp) -> I {
        let millis = u64::try_from(now.millis()).unwrap_or(0);
        I::from_uuid(uuid::Builder::from_unix_timestamp_millis(millis, &self.bytes()).into_uuid())
    }
}

/// The operating system's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRng;

impl Rng for OsRng {
    fn fill(&self, bytes: &mut [u8]) {
        // rand's thread generator reseeds from the system and is a CSPRNG.
        rand::rng().fill_bytes(bytes);
    }
}

/// The same bytes for the same seed; for simulation and tests, never for keys that matter.
pub struct SeededRng(Mutex<StdRng>);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Rng for SeededRng {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().expect("no holder of this lock panics").fill_bytes(bytes);
    }
}
