//! The agent's one source of randomness in the shape the key code asks for.

use std::sync::Arc;

use kit::Rng;
use pki::Entropy;

pub struct RngEntropy(pub Arc<dyn Rng>);

impl Entropy for RngEntropy {
    fn fill(&self, out: &mut [u8]) {
        self.0.fill(out);
    }
}
