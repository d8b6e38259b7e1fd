//! Bounded reading of the small binary and JSON formats of this crate.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes from outside are not the format they should be. The text never repeats the input, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("decode a {what}: {problem}")]
pub struct DecodeError {
    pub what: &'static str,
    pub problem: &'static str,
}

/// Takes fields off the front of a byte string.
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts after the version byte, which must be `version`; `bytes_max` bounds the whole.
    pub(crate) fn versioned(
        what: &'static str,
        bytes: &'a [u8],
        bytes_max: usize,
        version: u8,
    ) -> Result<Self, DecodeError> {
        if bytes.len() > bytes_max {
            return Err(DecodeError { what, problem: "it is longer than its format allows" });
        }
        match bytes.split_first() {
            Some((found, rest)) if *found == version => Ok(Self { what, rest }),
            Some(_) => Err(DecodeError { what, problem: "its version is not one this program reads" }),
            None => Err(DecodeError { what, problem: "it is empty" }),
        }
    }

    pub(crate) fn error(&self, problem: &'static str) -> DecodeError {
        DecodeError { what: self.what, problem }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or_else(|| self.error("it ends early"))?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let head = self.take(N)?;
        Ok(head.try_into().expect("take gave N bytes"))
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

pub(crate) fn to_base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Unpadded base64url (RFC 4648 section 5) with zero trailing bits, so one value has one text.
pub(crate) fn from_base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Compact JSON with the members in the order the struct declares.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("structs of strings and numbers always serialise")
}

pub(crate) fn from_json<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    bytes_max: usize,
) -> Result<T, DecodeError> {
    if bytes.len() > bytes_max {
        return Err(DecodeError { what, problem: "it is longer than its format allows" });
    }
    serde_json::from_slice(bytes)
        .map_err(|_| DecodeError { what, problem: "it is not the JSON object its format gives" })
}

/// Fields of one JSON object, with errors that name the object.
pub(crate) struct Fields(pub &'static str);

impl Fields {
    pub(crate) fn error(&self, problem: &'static str) -> DecodeError {
        DecodeError { what: self.0, problem }
    }

    pub(crate) fn version(&self, found: u64) -> Result<(), DecodeError> {
        if found == 1 { Ok(()) } else { Err(self.error("its version is not one this program reads")) }
    }

    pub(crate) fn parse<T: std::str::FromStr>(
        &self,
        text: &str,
        problem: &'static str,
    ) -> Result<T, DecodeError> {
        text.parse().map_err(|_| self.error(problem))
    }

    pub(crate) fn time(&self, text: &str) -> Result<Timestamp, DecodeError> {
        self.parse(text, "a time in it is not RFC 3339")
    }

    pub(crate) fn bytes(&self, text: &str) -> Result<Vec<u8>, DecodeError> {
        from_base64url(text).ok_or_else(|| self.error("a value in it is not base64url without padding"))
    }
}

/// Whether two times are within `allowed` of each other.
pub(crate) fn within(one: Timestamp, other: Timestamp, allowed: std::time::Duration) -> bool {
    one.since(other) <= allowed && other.since(one) <= allowed
}
