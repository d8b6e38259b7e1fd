//! Canonical JSON: one byte string per value, so that equal facts have equal hashes on every build.
//!
//! Object keys are sorted by their bytes, there is no white space, and there are no floating point numbers (their text
//! differs between writers). For the values it accepts the output is that of RFC 8785.

use serde::Serialize;
use serde_json::Value;

/// Encodes a value whose types hold no floating point numbers and no maps with keys other than texts.
///
/// # Panics
/// When the type breaks that rule: a fault of the type, found by its first test.
pub fn to_vec<T: Serialize>(value: &T) -> Vec<u8> {
    let value = serde_json::to_value(value).expect("inventory types are structs, lists, texts and integers");
    let mut out = Vec::with_capacity(1024);
    write(&value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => {
            assert!(!number.is_f64(), "canonical JSON holds no floating point numbers");
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            // Sorted here, because whether the map keeps its order depends on a feature another crate may turn on.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|left, right| left.0.cmp(right.0));
            out.push(b'{');
            for (at, (key, field)) in fields.into_iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(key, out);
                out.push(b':');
                write(field, out);
            }
            out.push(b'}');
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("writing a text to memory does not fail");
}
