//! The rows of the method table that are served, with their handlers.

use std::collections::{BTreeMap, BTreeSet};

use api::MethodRow;
use model::ErrorCode;

use crate::fault::ApiError;
use crate::module::{Handler, Module};

/// A mistake of the composition, found when the program starts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("module {module:?} handles {method:?}, which is no row of the method table")]
    Unknown { module: &'static str, method: &'static str },
    #[error("method {method:?} has two handlers")]
    Twice { method: &'static str },
    #[error("method {method:?} has no handler, though others of its group have")]
    Missing { method: &'static str },
}

pub(crate) struct Entry {
    pub(crate) row: &'static MethodRow,
    pub(crate) handler: Handler,
}

pub(crate) struct Table(BTreeMap<&'static str, Entry>);

/// Methods of a group that another module serves than the rest of it: all of them or none.
const APART: [&[&str]; 1] = [&["nodes.issueSshCert", "nodes.listSshCerts", "nodes.revokeSshCert"]];

/// What is served as a whole: the group, or the part of it that is apart, by its first method.
fn group(method: &str) -> &str {
    match APART.iter().find(|apart| apart.contains(&method)) {
        Some(apart) => apart[0],
        None => method.split_once('.').map_or(method, |(group, _)| group),
    }
}

impl Table {
    pub(crate) fn new(modules: &[Module]) -> Result<Self, TableError> {
        let mut entries = BTreeMap::new();
        for module in modules {
            for (method, handler) in &module.methods {
                let row = api::find(method).ok_or(TableError::Unknown { module: module.name, method })?;
                if entries.insert(row.name, Entry { row, handler: handler.clone() }).is_some() {
                    return Err(TableError::Twice { method: row.name });
                }
            }
        }
        let groups: BTreeSet<&str> = entries.keys().map(|name| group(name)).collect();
        let missing = api::METHODS
            .iter()
            .find(|row| groups.contains(group(row.name)) && !entries.contains_key(row.name));
        match missing {
            Some(row) => Err(TableError::Missing { method: row.name }),
            None => Ok(Self(entries)),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// NOT_FOUND for a method that is not served, with the nearest one that is.
    pub(crate) fn get(&self, method: &str) -> Result<&Entry, ApiError> {
        self.0.get(method).ok_or_else(|| {
            let shown: String = method.chars().take(64).collect();
            let error = ApiError::new(ErrorCode::NotFound, format!("no method {shown}"));
            match api::near(&shown, self.names()) {
                Some(meant) => {
                    ApiError { message: format!("no method {shown}; did you mean {meant}?"), ..error }
                        .detail("didYouMean", meant)
                }
                None => error,
            }
        })
    }
}
