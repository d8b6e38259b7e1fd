//! The attributes a request is decided on.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::error::{ParseError, Problem, pointer_token, quote};
use crate::limits::{ATTRIBUTE_ELEMENTS_MAX, ATTRIBUTE_TEXT_BYTES_MAX, ATTRIBUTES_MAX};
use crate::{Number, attribute, instant};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    Str(Cow<'a, str>),
    Num(Number),
    Bool(bool),
    /// Microseconds since 1970-01-01T00:00:00Z.
    Time(i64),
    Ip(IpAddr),
    /// Elements must not be lists; a condition on one that is, is unknown.
    List(Vec<Value<'a>>),
    /// The same as absent.
    Null,
}

impl Value<'_> {
    /// Its time: its own, or that of its text in RFC 3339, since JSON has no other way to carry one.
    pub(crate) fn time(&self) -> Option<i64> {
        match self {
            Value::Time(micros) => Some(*micros),
            Value::Str(text) => instant::parse(text),
            Value::Num(_) | Value::Bool(_) | Value::Ip(_) | Value::List(_) | Value::Null => None,
        }
    }

    /// Its address: its own, or that of its text, since JSON has no other way to carry one.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Value::Ip(address) => Some(*address),
            Value::Str(text) => text.parse().ok(),
            Value::Num(_) | Value::Bool(_) | Value::Time(_) | Value::List(_) | Value::Null => None,
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Str(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Str(Cow::Owned(text))
    }
}

impl From<bool> for Value<'_> {
    fn from(bool: bool) -> Self {
        Value::Bool(bool)
    }
}

impl From<IpAddr> for Value<'_> {
    fn from(address: IpAddr) -> Self {
        Value::Ip(address)
    }
}

impl From<Number> for Value<'_> {
    fn from(number: Number) -> Self {
        Value::Num(number)
    }
}

impl From<i32> for Value<'_> {
    fn from(whole: i32) -> Self {
        Value::Num(whole.into())
    }
}

impl From<u32> for Value<'_> {
    fn from(whole: u32) -> Self {
        Value::Num(whole.into())
    }
}

impl From<i64> for Value<'_> {
    fn from(whole: i64) -> Self {
        Value::Num(whole.into())
    }
}

impl From<u64> for Value<'_> {
    fn from(whole: u64) -> Self {
        Value::Num(whole.into())
    }
}

impl<'a, V: Into<Value<'a>>> From<Option<V>> for Value<'a> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

impl<'a, V: Into<Value<'a>>> FromIterator<V> for Value<'a> {
    fn from_iter<I: IntoIterator<Item = V>>(elements: I) -> Self {
        Value::List(elements.into_iter().map(Into::into).collect())
    }
}

/// Attributes by full name (`resource.vcpu`). There are tens of them, so a sorted list is both the cheapest to build
/// and the quickest to search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// By print and then by name.
    sorted: Vec<Entry<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry<'a> {
    print: u64,
    name: Cow<'a, str>,
    value: Value<'a>,
}

impl<'a> Attributes<'a> {
    pub const fn new() -> Self {
        Self { sorted: Vec::new() }
    }

    pub fn with_capacity(count: usize) -> Self {
        Self { sorted: Vec::with_capacity(count) }
    }

    /// Sets an attribute; the last value given to a name stands. What comes from a caller must therefore be put in
    /// before what the server knows, or under names the server chose.
    pub fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) {
        let (name, value) = (name.into(), value.into());
        let print = print(&name);
        let key = (print, name.as_ref());
        match self.sorted.binary_search_by(|entry| (entry.print, entry.name.as_ref()).cmp(&key)) {
            Ok(at) => self.sorted[at].value = value,
            Err(at) => self.sorted.insert(at, Entry { print, name, value }),
        }
    }

    /// [`Attributes::set`], for building in one expression.
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) -> Self {
        self.set(name, value);
        self
    }

    /// The value set for the name. [`Value::Null`] is returned as it was set, though policies take it for absent.
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        let print = print(name);
        // The search compares numbers only; names are read where the number is right, which is nearly always once.
        let from = self.sorted.partition_point(|entry| entry.print < print);
        let same_print = self.sorted[from..].iter().take_while(|entry| entry.print == print);
        same_print.filter(|entry| entry.name == name).map(|entry| &entry.value).next()
    }

    /// In the order they are kept in, which is the same for the same names but not alphabetical.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.sorted.iter().map(|entry| (entry.name.as_ref(), &entry.value))
    }

    /// Reads `{"resource.vcpu": 8, "principal.groups": ["ops"], "request.sourceIp": "10.0.0.1"}`, as a simulation
    /// is given it. Names are held to the same rules as in policies, and sizes to [`crate::limits`]. Text stays
    /// text, except that `request.time` and `request.sourceIp` must be a time and an address.
    ///
    /// # Errors
    /// A [`ParseError`] with a JSON pointer into `json`.
    pub fn from_json(json: &serde_json::Value) -> Result<Attributes<'static>, ParseError> {
        let at_root = |problem| ParseError { pointer: String::new(), problem };
        let Some(object) = json.as_object() else {
            return Err(at_root(Problem::WrongType {
                expected: "an object of attributes",
                found: json_type(json),
            }));
        };
        if object.len() > ATTRIBUTES_MAX {
            let (count, count_max) = (object.len(), ATTRIBUTES_MAX);
            return Err(at_root(Problem::TooMany { what: "attributes", count, count_max }));
        }
        let mut attributes = Attributes::with_capacity(object.len());
        for (name, json) in object {
            let value = attribute::check(name)
                .and_then(|()| read(name, json))
                .map_err(|problem| ParseError { pointer: format!("/{}", pointer_token(name)), problem })?;
            attributes.set(name.clone(), value);
        }
        Ok(attributes)
    }
}

/// A number that tells most names apart without reading them: names share their beginnings, so it is made of the last
/// bytes and the length. Names with the same print are told apart by their text.
fn print(name: &str) -> u64 {
    let tail = name.as_bytes().last_chunk().map_or(0, |tail| u64::from_le_bytes(*tail));
    tail ^ name.len() as u64
}

fn read(name: &str, json: &serde_json::Value) -> Result<Value<'static>, Problem> {
    let value = match json {
        serde_json::Value::Array(elements) if elements.len() > ATTRIBUTE_ELEMENTS_MAX => {
            return Err(Problem::TooMany {
                what: "elements",
                count: elements.len(),
                count_max: ATTRIBUTE_ELEMENTS_MAX,
            });
        }
        serde_json::Value::Array(elements) => {
            Value::List(elements.iter().map(read_element).collect::<Result<_, _>>()?)
        }
        single => read_element(single)?,
    };
    let malformed = |what, expected: &str| Problem::Malformed {
        what,
        given: quote(&json.to_string()),
        expected: expected.to_owned(),
    };
    match (name, value) {
        (_, Value::Null) => Ok(Value::Null),
        (attribute::TIME, value) => value
            .time()
            .map(Value::Time)
            .ok_or_else(|| malformed("time", "RFC 3339, like 2026-03-01T12:00:00Z")),
        (attribute::SOURCE_IP, value) => {
            value.address().map(Value::Ip).ok_or_else(|| malformed("address", "an IPv4 or IPv6 address"))
        }
        (_, value) => Ok(value),
    }
}

fn read_element(json: &serde_json::Value) -> Result<Value<'static>, Problem> {
    Ok(match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(bool) => Value::Bool(*bool),
        serde_json::Value::Number(number) => {
            let exact = (number.as_i64().map(Number::from))
                .or_else(|| number.as_u64().map(Number::from))
                .or_else(|| number.as_f64().and_then(|float| Number::try_from(float).ok()));
            Value::Num(exact.ok_or_else(|| Problem::Malformed {
                what: "number",
                given: quote(&number.to_string()),
                expected: "a decimal with at most 9 places".to_owned(),
            })?)
        }
        serde_json::Value::String(text) if text.len() > ATTRIBUTE_TEXT_BYTES_MAX => {
            return Err(Problem::TooLong { bytes: text.len(), bytes_max: ATTRIBUTE_TEXT_BYTES_MAX });
        }
        serde_json::Value::String(text) => Value::Str(Cow::Owned(text.clone())),
        serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
            return Err(Problem::WrongType {
                expected: "a text, number, true, false, null or a list of them",
                found: json_type(json),
            });
        }
    })
}

fn json_type(json: &serde_json::Value) -> &'static str {
    match json {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "boolean",
        serde_json::Value::Number(_) => "number",
        serde_json::Value::String(_) => "text",
        serde_json::Value::Array(_) => "list",
        serde_json::Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
