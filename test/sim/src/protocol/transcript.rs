//! What a run did, as one hash.

use prost::Message;
use sha2::{Digest, Sha256};

use super::clock::Micros;

#[derive(Default)]
pub struct Transcript {
    hash: Sha256,
    bytes: Vec<u8>,
    /// Things that happened.
    pub entries: u64,
    /// Told as text too, for whoever reads a failing run.
    pub text: Option<Vec<String>>,
}

impl Transcript {
    /// Something happened to the nth of its kind.
    pub fn note(&mut self, at: Micros, what: &str, about: u64, detail: &[u8]) {
        self.entries += 1;
        self.hash.update(at.to_le_bytes());
        self.hash.update(what.as_bytes());
        self.hash.update(about.to_le_bytes());
        self.hash.update((detail.len() as u64).to_le_bytes());
        self.hash.update(detail);
    }

    pub fn frame<M: Message + std::fmt::Debug>(&mut self, at: Micros, what: &str, about: u64, frame: &M) {
        self.bytes.clear();
        // The buffer grows to what is needed.
        let _ = frame.encode(&mut self.bytes);
        let bytes = std::mem::take(&mut self.bytes);
        self.note(at, what, about, &bytes);
        self.bytes = bytes;
        self.tell(at, what, about, || {
            let mut text = format!("{frame:?}");
            text.truncate(text.char_indices().nth(600).map_or(text.len(), |(end, _)| end));
            text
        });
    }

    pub fn tell(&mut self, at: Micros, what: &str, about: u64, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.text {
            lines.push(format!("{:>10.3} {what} {about} {}", at as f64 / 1e6, text()));
        }
    }

    pub fn finish(self) -> String {
        self.hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
