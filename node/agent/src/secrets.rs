//! Values that a node is told and its spec only names. A converger says what it needs, the engine asks for it over the session,
//! and what is answered lies on a desk until the next pass takes it. Nothing of it is ever in the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use model::{AllocationId, InstanceId, SecretId};
use zeroize::Zeroizing;

/// A secret, and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretWanted {
    pub instance_id: InstanceId,
    /// Its place on this node.
    pub allocation_id: AllocationId,
    pub secret_id: SecretId,
}

/// Wiped from memory when it is dropped, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    pub fn new(value: Zeroizing<Vec<u8>>) -> Self {
        Self(value)
    }

    pub fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValue({} bytes)", self.0.len())
    }
}

/// What a node was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretTold {
    Value(SecretValue),
    /// The control plane says that this node is not to know it: not until its spec says something else.
    Refused {
        message: String,
    },
    /// Nobody said either yet.
    Later {
        message: String,
    },
}

/// Where what was told lies until it is taken. Cheap to clone.
#[derive(Clone, Default)]
pub struct Desk(Arc<Mutex<BTreeMap<SecretWanted, SecretTold>>>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SecretWanted, SecretTold>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn put(&self, wanted: SecretWanted, told: SecretTold) {
        self.lock().insert(wanted, told);
    }

    /// What was told of it since it was last taken.
    pub fn take(&self, wanted: &SecretWanted) -> Option<SecretTold> {
        self.lock().remove(wanted)
    }

    /// Lets go of everything else.
    pub fn keep(&self, wanted: &BTreeSet<SecretWanted>) {
        self.lock().retain(|held, _| wanted.contains(held));
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Desk({})", self.lock().len())
    }
}
