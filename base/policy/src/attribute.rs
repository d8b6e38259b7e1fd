//! Names of attributes: `resource.*`, `principal.*` and the closed set of `request.*`.

use crate::error::{Problem, nearest, quote};
use crate::limits::ATTRIBUTE_BYTES_MAX;
use crate::operator::Kind;

/// The request's attributes. A new one is a line here; the kernel sets all of them on every request.
pub const REQUEST: &[&str] = &[DELEGATED, SOURCE_IP, TIME];

/// Whether the caller acts for somebody else: [`crate::Value::Bool`].
pub const DELEGATED: &str = "request.delegated";
/// The caller's address, as the server trusts it: [`crate::Value::Ip`].
pub const SOURCE_IP: &str = "request.sourceIp";
/// The server's time of the request: [`crate::Value::Time`].
pub const TIME: &str = "request.time";

const NAMESPACES: [&str; 3] = ["principal", "request", "resource"];

/// The type of an attribute whose type is fixed.
pub(crate) fn kind(name: &str) -> Option<Kind> {
    match name {
        DELEGATED => Some(Kind::Bool),
        SOURCE_IP => Some(Kind::Net),
        TIME => Some(Kind::Time),
        _ => None,
    }
}

/// A name is a namespace, a dot and a rest of letters, digits and `_ . / -` that starts with a letter or digit.
pub(crate) fn check(name: &str) -> Result<(), Problem> {
    if name.len() > ATTRIBUTE_BYTES_MAX {
        return Err(Problem::TooLong { bytes: name.len(), bytes_max: ATTRIBUTE_BYTES_MAX });
    }
    let unknown = |meant| Problem::UnknownName { what: "attribute", given: quote(name), meant };
    let Some((namespace, rest)) = name.split_once('.') else {
        return Err(unknown(nearest(name, REQUEST)));
    };
    if !NAMESPACES.contains(&namespace) {
        return Err(unknown(
            nearest(namespace, NAMESPACES).map(|namespace| format!("{namespace}.{}", quote(rest))),
        ));
    }
    if namespace == "request" && !REQUEST.contains(&name) {
        return Err(unknown(nearest(name, REQUEST)));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
    if !rest.starts_with(|first: char| first.is_ascii_alphanumeric()) || !rest.bytes().all(plain) {
        return Err(Problem::Malformed {
            what: "attribute",
            given: quote(name),
            expected: "a name such as \"resource.vcpu\" of letters, digits and _ . / -".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
