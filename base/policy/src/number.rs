//! Exact decimals.

use std::fmt;
use std::str::FromStr;

/// A decimal number with nine places, exact, between about -1.7e29 and 1.7e29.
///
/// Fixed point rather than floating point, because a bound such as `0.1` must mean one tenth on both sides of the
/// comparison, every `i64` and `u64` must keep its value, and there must be no value without an order (NaN).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    /// Billionths.
    nanos: i128,
}

/// A text or a float is not exactly a [`Number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "read a number: it must be a plain decimal with at most {} places and 29 digits before the point",
    Number::PLACES
)]
pub struct NumberError;

impl Number {
    /// Decimal places.
    pub const PLACES: usize = 9;
    const ONE: i128 = 1_000_000_000;
    /// A decimal of this many significant digits survives the way through an `f64` unchanged.
    const FLOAT_DIGITS_MAX: usize = 15;

    /// `nanos` billionths: `from_nanos(1_500_000_000)` is 1.5.
    pub const fn from_nanos(nanos: i128) -> Self {
        Self { nanos }
    }

    /// The number in billionths.
    pub const fn nanos(self) -> i128 {
        self.nanos
    }
}

impl From<i64> for Number {
    fn from(whole: i64) -> Self {
        Self { nanos: i128::from(whole) * Self::ONE }
    }
}

impl From<u64> for Number {
    fn from(whole: u64) -> Self {
        Self { nanos: i128::from(whole) * Self::ONE }
    }
}

impl From<i32> for Number {
    fn from(whole: i32) -> Self {
        Self::from(i64::from(whole))
    }
}

impl From<u32> for Number {
    fn from(whole: u32) -> Self {
        Self::from(u64::from(whole))
    }
}

/// The decimal that the float was written as: `0.1f64` is one tenth. Refuses floats that carry more than 15
/// significant digits, since the decimal they came from can no longer be told.
impl TryFrom<f64> for Number {
    type Error = NumberError;

    fn try_from(float: f64) -> Result<Self, NumberError> {
        if !float.is_finite() {
            return Err(NumberError);
        }
        // The shortest decimal that reads back as this float, never with an exponent.
        let text = float.to_string();
        let digits = || text.bytes().filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0');
        let trailing = if text.contains('.') {
            0
        } else {
            text.bytes().rev().take_while(|digit| *digit == b'0').count()
        };
        if digits().count().saturating_sub(trailing) > Self::FLOAT_DIGITS_MAX {
            return Err(NumberError);
        }
        text.parse()
    }
}

/// JSON's grammar without the exponent: `-?(0|[1-9][0-9]*)(\.[0-9]{1,9})?`.
impl FromStr for Number {
    type Err = NumberError;

    fn from_str(text: &str) -> Result<Self, NumberError> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (whole, places) = match digits.split_once('.') {
            Some((whole, places)) => (whole, Some(places)),
            None => (digits, None),
        };
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || (whole.len() > 1 && whole.starts_with('0')) {
            return Err(NumberError);
        }
        if places.is_some_and(|places| !is_digits(places) || places.len() > Self::PLACES) {
            return Err(NumberError);
        }
        let places = places.unwrap_or("");
        let padding = std::iter::repeat_n(b'0', Self::PLACES - places.len());
        let mut nanos: i128 = 0;
        for digit in whole.bytes().chain(places.bytes()).chain(padding) {
            nanos = nanos
                .checked_mul(10)
                .and_then(|nanos| nanos.checked_add(i128::from(digit - b'0')))
                .ok_or(NumberError)?;
        }
        Ok(Self { nanos: if negative { -nanos } else { nanos } })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) =
            (self.nanos.unsigned_abs() / Self::ONE as u128, self.nanos.unsigned_abs() % Self::ONE as u128);
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        if part == 0 {
            return write!(f, "{whole}");
        }
        let places = format!("{part:09}");
        write!(f, "{whole}.{}", places.trim_end_matches('0'))
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
