//! Numbers as people read them.

use serde_json::Value;

/// One unit is enough to act on: `2s`, `4m`, `14h`, `3d`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m", seconds / 60),
        3_600..=172_799 => format!("{}h", seconds / 3_600),
        172_800..=63_071_999 => format!("{}d", seconds / 86_400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

/// What is free of what there is, in one unit: `1.9/2.0T`, `96/128G`.
pub fn gib_pair(free: u64, total: u64) -> String {
    if total >= 1024 {
        let tib = |gib: u64| gib as f64 / 1024.0;
        format!("{:.1}/{:.1}T", tib(free), tib(total))
    } else {
        format!("{free}/{total}G")
    }
}

/// `NVIDIA H100 80GB HBM3` is an H100 wherever there is little room.
pub fn model(full: &str) -> String {
    let full = full.strip_prefix("NVIDIA ").unwrap_or(full);
    let mut words = Vec::new();
    for word in full.split(' ') {
        let word = word.split('-').next().unwrap_or(word);
        words.push(word);
        if word.bytes().any(|byte| byte.is_ascii_digit()) {
            break;
        }
    }
    words.join(" ")
}

/// A value at a dotted path, as plain text; empty when it is not there.
pub fn at(value: &Value, path: &str) -> String {
    plain(get(value, path))
}

pub fn get<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, part| &value[part])
}

pub fn number(value: &Value, path: &str) -> u64 {
    get(value, path).as_u64().unwrap_or(0)
}

pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => printable(&value.to_string()),
    }
}

/// Text of others must not steer the terminal: control characters are shown, not sent.
pub fn printable(text: &str) -> String {
    match text.chars().any(char::is_control) {
        false => text.to_owned(),
        true => text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect(),
    }
}

/// A long id or hash, short enough to read: the beginning is enough to find it by.
pub fn short(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// `createdAt` to `created at`.
pub fn words(camel: &str) -> String {
    let camel = camel.replace("GiB", " (GiB)").replace("MiB", " (MiB)").replace("1Gi", " (1 GiB)");
    let mut out = String::new();
    for (index, letter) in camel.char_indices() {
        let inside = camel[..index].contains('(');
        if letter.is_ascii_uppercase() && index > 0 && !inside {
            out.push(' ');
        }
        out.push(if inside { letter } else { letter.to_ascii_lowercase() });
    }
    out
}

/// A word of a command line, quoted where a shell would take it apart.
pub fn quoted(word: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(&byte);
    match !word.is_empty() && word.bytes().all(safe) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_600, "1h"),
            (90_000, "25h"),
            (259_200, "3d"),
            (70_000_000, "2y"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn models_are_short() {
        let cases = [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("H100", "H100"),
        ];
        for (full, text) in cases {
            assert_eq!(model(full), text);
        }
    }

    #[test]
    fn words_come_apart_and_units_stay() {
        for (camel, text) in [
            ("createdAt", "created at"),
            ("memoryGiB", "memory (GiB)"),
            ("memoryMiB", "memory (MiB)"),
            ("hugepages1Gi", "hugepages (1 GiB)"),
        ] {
            assert_eq!(words(camel), text);
        }
    }

    #[test]
    fn text_of_others_does_not_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
    }
}
