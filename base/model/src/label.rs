//! Names and labels, by Kubernetes' rules.

/// Labels under this prefix are written by the system alone.
pub const SYSTEM_PREFIX: &str = "bc.dev/";
/// What a node's daemon advertised in its Hello: `bc.dev/cap.devices.limits=1`.
pub const CAPABILITY_PREFIX: &str = "bc.dev/cap.";

pub const NAME_LEN_MAX: usize = 63;
const PREFIX_LEN_MAX: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error(
        "name {0:?} must be 1 to 63 characters of a-z, 0-9 and '-', starting and ending with a letter or digit"
    )]
    Name(String),
    #[error(
        "label key {0:?} must be [prefix/]name with a DNS prefix and a name of letters, digits, '-', '_', '.'"
    )]
    Key(String),
    #[error(
        "label value {0:?} must be up to 63 letters, digits, '-', '_', '.', starting and ending alphanumeric"
    )]
    Value(String),
    #[error("label key {0:?} belongs to the system: keys under bc.dev/ cannot be set")]
    Reserved(String),
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A resource's name: a DNS label (RFC 1123).
pub fn check_name(text: &str) -> Result<(), LabelError> {
    let bytes = text.as_bytes();
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fits = !bytes.is_empty()
        && bytes.len() <= NAME_LEN_MAX
        && bytes.iter().all(|b| edge(b) || *b == b'-')
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge);
    if fits { Ok(()) } else { Err(LabelError::Name(shown(text))) }
}

fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_LEN_MAX
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && bytes[0].is_ascii_alphanumeric()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= PREFIX_LEN_MAX && text.split('.').all(|part| check_name(part).is_ok())
}

/// A label a person may set.
pub fn check_label(key: &str, value: &str) -> Result<(), LabelError> {
    let fits = match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified(name),
        None => is_qualified(key),
    };
    if !fits {
        return Err(LabelError::Key(shown(key)));
    }
    if key.starts_with(SYSTEM_PREFIX) {
        return Err(LabelError::Reserved(shown(key)));
    }
    if value.is_empty() || is_qualified(value) { Ok(()) } else { Err(LabelError::Value(shown(value))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "gpu", "gpu-1", "0x", &"a".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "a b", "é", &"a".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_follow_kubernetes() {
        for (key, value) in [("tier", "gold"), ("example.com/tier", ""), ("a.b-c_d", "v1.2_3")] {
            assert_eq!(check_label(key, value), Ok(()), "{key}={value}");
        }
        for (key, value) in [("", "x"), ("/x", "x"), ("a/b/c", "x"), ("tier", "-x"), ("-tier", "x")] {
            assert!(check_label(key, value).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn the_systems_labels_cannot_be_set() {
        assert!(matches!(check_label("bc.dev/cap.devices.limits", "1"), Err(LabelError::Reserved(_))));
    }
}
