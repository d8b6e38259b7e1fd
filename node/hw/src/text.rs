//! Small parsers shared by the readers.

use wire::inventory::{TEXT_BYTES_MAX, Unread};

use crate::root::{ReadError, Root};

/// A text a device gave, made fit for an inventory: one line, no control characters, bounded.
pub fn clean(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len().min(TEXT_BYTES_MAX));
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        for c in word.chars() {
            if out.len() + c.len_utf8() > TEXT_BYTES_MAX {
                return Some(out);
            }
            out.push(c);
        }
    }
    let end = out.trim_end().len();
    out.truncate(end);
    (!out.is_empty()).then_some(out)
}

/// A decimal number with up to three digits after the point, in thousandths: `68.57` is 68570. No floating point, so
/// equal texts are equal numbers everywhere.
pub fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(whole) || !plain(fraction) {
        return None;
    }
    let mut milli = 0;
    for at in 0..3 {
        milli = milli * 10 + u64::from(fraction.as_bytes().get(at).map_or(0, |digit| digit - b'0'));
    }
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(milli)
}

/// Collects what a section could not read.
#[derive(Default)]
pub struct Notes {
    unread: Vec<Unread>,
}

/// How many faults one section names; the rest would say the same again.
const UNREAD_MAX: usize = 64;

impl Notes {
    pub fn add(&mut self, what: impl Into<String>, why: impl ToString) {
        let note = Unread {
            what: clean(&what.into()).unwrap_or_default(),
            why: clean(&why.to_string()).unwrap_or_default(),
        };
        if self.unread.len() < UNREAD_MAX && !self.unread.contains(&note) {
            self.unread.push(note);
        }
    }

    /// Takes over what another pass noted.
    pub fn extend(&mut self, unread: Vec<Unread>) {
        unread.into_iter().for_each(|note| self.add(note.what, note.why));
    }

    /// The value, or nothing with a note.
    pub fn take<T>(&mut self, what: impl Into<String>, read: Result<Option<T>, ReadError>) -> Option<T> {
        read.unwrap_or_else(|error| {
            self.add(what, error);
            None
        })
    }

    /// A cleaned text from a file.
    pub fn text(&mut self, root: &Root, what: impl Into<String>, path: &str) -> Option<String> {
        let text = root.text(path);
        self.take(what, text).and_then(|text| clean(&text))
    }

    /// A whole number from a file; a file with anything else is noted.
    pub fn number<T: std::str::FromStr>(&mut self, root: &Root, what: &str, path: &str) -> Option<T> {
        let text = root.text(path);
        let text = self.take(what, text)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.add(what, "not a number");
        }
        number
    }

    pub fn finish(mut self) -> Vec<Unread> {
        self.unread.sort_unstable();
        self.unread
    }

    /// Cuts a list to its bound and says so.
    pub fn bound<T>(&mut self, what: &str, items: &mut Vec<T>, max: usize) {
        if items.len() > max {
            items.truncate(max);
            self.add(what, format!("more than {max}, the rest left out"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_one_bounded_line() {
        assert_eq!(clean("  SAMSUNG\t MZQL2 \x1b[2J\n").as_deref(), Some("SAMSUNG MZQL2 [2J"));
        assert_eq!(clean(" \0 \n"), None);
        assert!(clean(&"é".repeat(4096)).unwrap().len() <= TEXT_BYTES_MAX);
        assert!(clean(&"a ".repeat(4096)).unwrap().len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(thousandths("68.57"), Some(68_570));
        assert_eq!(thousandths("700.00"), Some(700_000));
        assert_eq!(thousandths("7"), Some(7_000));
        assert_eq!(thousandths("0.0019"), Some(1));
        for bad in ["", ".5", "5.", "-1", "1.2.3", "1e3", "N/A", "99999999999999999999"] {
            assert_eq!(thousandths(bad), None, "{bad}");
        }
    }
}
