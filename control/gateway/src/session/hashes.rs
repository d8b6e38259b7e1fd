//! Which inventory is stored, by section: 32 bytes each, since there is one of these per session.

use std::collections::BTreeMap;

use wire::inventory::SectionName;

#[derive(Debug, Clone, Default)]
pub(super) struct Hashes([Option<[u8; 32]>; SectionName::ALL.len()]);

impl Hashes {
    pub(super) fn of(reported: &BTreeMap<String, String>) -> Self {
        let mut hashes = Self::default();
        for (name, hash) in reported {
            if let Ok(name) = name.parse::<SectionName>() {
                hashes.set(name, hash);
            }
        }
        hashes
    }

    pub(super) fn set(&mut self, name: SectionName, hash: &str) {
        let mut bytes = [0; 32];
        let read = hex::decode_to_slice(hash, &mut bytes).is_ok();
        self.0[name as usize] = read.then_some(bytes);
    }

    pub(super) fn forget(&mut self, name: &str) {
        if let Ok(name) = name.parse::<SectionName>() {
            self.0[name as usize] = None;
        }
    }

    /// The sections whose reported hash is another than the stored one.
    pub(super) fn changed(&self, reported: &BTreeMap<String, String>) -> Vec<String> {
        let now = Self::of(reported);
        SectionName::ALL
            .into_iter()
            .filter(|name| {
                let (is, was) = (now.0[*name as usize], self.0[*name as usize]);
                is.is_some() && is != was
            })
            .map(|name| name.as_str().to_owned())
            .collect()
    }
}
