//! What is wrong with a document, where, and what was meant.

use std::fmt;

use crate::limits::{ATTRIBUTE_BYTES_MAX, QUOTE_CHARS_MAX};

/// The first thing wrong with a policy document, or with attributes given as JSON. Its text is fit for the author:
/// it quotes at most a few words of the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read {}: {problem}", Place(.pointer))]
pub struct ParseError {
    /// JSON pointer (RFC 6901) to the value at fault, or for a missing field to the object it is missing from.
    /// Empty for the document itself.
    pub pointer: String,
    pub problem: Problem,
}

struct Place<'a>(&'a str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("the document") } else { write!(f, "\"{}\"", self.0) }
    }
}

/// What is wrong. `meant` is the nearest name that would have been right, if one is near.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("not JSON: {detail}")]
    NotJson { detail: String },
    #[error("expected {expected}, found {found}")]
    WrongType { expected: &'static str, found: &'static str },
    #[error("unknown field {given:?}{}", Meant(.meant))]
    UnknownField { given: String, meant: Option<String> },
    #[error("the field {given:?} is given twice")]
    RepeatedField { given: String },
    #[error("the field {field:?} is missing")]
    MissingField { field: &'static str },
    #[error("unknown {what} {given:?}{}", Meant(.meant))]
    UnknownName { what: &'static str, given: String, meant: Option<String> },
    #[error("the {what} {given:?} is malformed: expected {expected}")]
    Malformed { what: &'static str, given: String, expected: String },
    #[error("the operator {operator:?} does not take {attribute:?}, which is {kind}")]
    WrongOperator { operator: String, attribute: String, kind: &'static str },
    #[error("another statement has the sid {sid:?}")]
    RepeatedSid { sid: String },
    #[error("no {what}: at least one is needed")]
    Empty { what: &'static str },
    #[error("{count} {what}: at most {count_max} are allowed")]
    TooMany { what: &'static str, count: usize, count_max: usize },
    #[error("{bytes} bytes: at most {bytes_max} are allowed")]
    TooLong { bytes: usize, bytes_max: usize },
}

struct Meant<'a>(&'a Option<String>);

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(meant) => write!(f, "; did you mean {meant:?}?"),
            None => Ok(()),
        }
    }
}

/// Foreign text, shortened for an error.
pub(crate) fn quote(text: &str) -> String {
    text.chars().take(QUOTE_CHARS_MAX).collect()
}

/// A key as a token of a JSON pointer, shortened like every foreign text but long enough for any attribute.
pub(crate) fn pointer_token(key: &str) -> String {
    let key: String = key.chars().take(ATTRIBUTE_BYTES_MAX).collect();
    key.replace('~', "~0").replace('/', "~1")
}

/// The candidate that `given` most likely misspells: about one edit for every four letters, without regard to case.
pub(crate) fn nearest<S: AsRef<str>>(given: &str, candidates: impl IntoIterator<Item = S>) -> Option<String> {
    if given.len() > QUOTE_CHARS_MAX {
        return None;
    }
    let given = given.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let candidate = candidate.as_ref();
            (strsim::damerau_levenshtein(&given, &candidate.to_ascii_lowercase()), candidate.to_owned())
        })
        .filter(|(edits, candidate)| *edits <= candidate.len().div_ceil(4))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
