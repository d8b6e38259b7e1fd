//! Strict parsing of requests, with errors that name the place.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::Method;

mod unknown;

/// A request that is not what the method takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// JSON pointer (RFC 6901) of the offending place; empty for the whole body.
    pub pointer: String,
    pub message: String,
}

impl InvalidRequest {
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), message: message.into() }
    }
}

/// Parses a request body that is JSON already: types, bounds, then the rules over several fields.
pub fn parse_request<M: Method>(body: Value) -> Result<M::Request, InvalidRequest> {
    // Serde would take a list for the fields in their order, which is nobody's contract.
    if !body.is_object() {
        return Err(InvalidRequest::new("", "expected a JSON object"));
    }
    let request = match serde_path_to_error::deserialize::<_, M::Request>(&body) {
        Ok(request) => request,
        Err(err) => {
            // Serde names the unknown field and all known ones; the schema tells the near one and its exact place.
            let mut generator = SchemaSettings::draft2020_12().into_generator();
            let schema = generator.root_schema_for::<M::Request>();
            if let Some(unknown) = unknown::find(&body, schema.as_value()) {
                return Err(unknown);
            }
            return Err(InvalidRequest::new(pointer(err.path()), err.inner().to_string()));
        }
    };
    M::check(&request)?;
    Ok(request)
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => push(&mut pointer, key),
            Segment::Enum { variant } => push(&mut pointer, variant),
            Segment::Unknown => {}
        }
    }
    pointer
}

/// Appends one segment, escaped.
pub(crate) fn push(pointer: &mut String, segment: &str) {
    pointer.push('/');
    pointer.push_str(&segment.replace('~', "~0").replace('/', "~1"));
}

/// The known word that was probably meant.
pub fn near<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long input is no misspelling, and comparing it would cost its length times that of every word.
    if given.len() > 64 {
        return None;
    }
    let lower = given.to_lowercase();
    known
        .into_iter()
        .map(|word| {
            let word_lower = word.to_lowercase();
            let distance = strsim::damerau_levenshtein(&lower, &word_lower);
            // `gpu` for `gpus`, `node` for `nodeName`: the start of a word is close to it.
            let starts =
                lower.len() >= 3 && (word_lower.starts_with(&lower) || lower.starts_with(&word_lower));
            (if starts { 1 } else { distance }, word)
        })
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, word)| (*distance, word.len().abs_diff(given.len()), *word))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests;
