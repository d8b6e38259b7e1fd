//! The values in `nvidia-smi`'s output: texts that may say in many ways that there is none.

use crate::text::{clean, thousandths};

/// What the driver writes in place of a value.
const NOTHING: &[&str] = &[
    "n/a",
    "none",
    "err!",
    "unknown error",
    "gpu is lost",
    "not supported",
    "not found",
    "insufficient permissions",
    "requested functionality has been deprecated",
    "function not found",
    "invalid argument",
    "gpu requires reset",
];

pub fn is_lost(text: &str) -> bool {
    text.to_ascii_lowercase().contains("gpu is lost")
}

pub fn needs_reset(text: &str) -> bool {
    text.to_ascii_lowercase().contains("gpu requires reset")
}

/// Whether the driver failed to read the value, and not just has none.
pub fn is_error(text: &str) -> bool {
    let text = text.trim().trim_matches(['[', ']']).to_ascii_lowercase();
    matches!(text.as_str(), "err!" | "unknown error" | "gpu requires reset" | "gpu is lost")
}

/// A value, or `None` for an empty one and for every way of saying so.
pub fn text(raw: &str) -> Option<String> {
    let trimmed = raw.trim();
    let bare = trimmed.trim_matches(['[', ']']).to_ascii_lowercase();
    if NOTHING.contains(&bare.as_str()) || bare.starts_with("unknown error") {
        return None;
    }
    clean(trimmed)
}

/// A whole number with its unit, or with none where `unit` is empty: `345 MHz`.
pub fn number<T: std::str::FromStr>(raw: &str, unit: &str) -> Option<T> {
    let value = text(raw)?;
    value.strip_suffix(unit)?.trim_end().parse().ok()
}

/// `81559 MiB` in bytes.
pub fn mib(raw: &str) -> Option<u64> {
    number::<u64>(raw, "MiB")?.checked_mul(1 << 20)
}

/// `68.57 W` in milliwatts.
pub fn milliwatts(raw: &str) -> Option<u64> {
    thousandths(text(raw)?.strip_suffix("W")?.trim_end())
}

/// `Enabled` or `Disabled`, `Yes` or `No`, `True` or `False`.
pub fn flag(raw: &str) -> Option<bool> {
    match text(raw)?.to_ascii_lowercase().as_str() {
        "enabled" | "yes" | "true" => Some(true),
        "disabled" | "no" | "false" => Some(false),
        _ => None,
    }
}

/// A device's UUID with its prefix (`GPU-` or `MIG-`), lowercase, if it is a whole one.
pub fn uuid(raw: &str, prefix: &str) -> Option<String> {
    let digits = raw.trim().strip_prefix(prefix)?;
    let lengths = digits.split('-').map(str::len);
    let shaped =
        lengths.eq([8, 4, 4, 4, 12]) && digits.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    shaped.then(|| format!("{prefix}{}", digits.to_ascii_lowercase()))
}

/// A GPU's UUID, like `GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001`.
pub fn gpu_uuid(raw: &str) -> Option<String> {
    uuid(raw, "GPU-")
}
