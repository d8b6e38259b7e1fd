//! RFC 3339 times, read without allocating: a decision may meet one in an attribute.

/// Microseconds since 1970-01-01T00:00:00Z of an RFC 3339 time with an offset, such as `2026-03-01T12:00:00Z`.
///
/// Strict where the standard leaves room: upper-case `T` and `Z`, no leap second, at most microseconds.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let (date_time, rest) = bytes.split_at_checked("0000-00-00T00:00:00".len())?;
    for (at, mark) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')] {
        if date_time[at] != mark {
            return None;
        }
    }
    let year = digits(&date_time[0..4])?;
    let month = digits(&date_time[5..7]).filter(|month| (1..=12).contains(month))?;
    let day = digits(&date_time[8..10]).filter(|day| (1..=days_in(year, month)).contains(day))?;
    let hour = digits(&date_time[11..13]).filter(|hour| *hour < 24)?;
    let minute = digits(&date_time[14..16]).filter(|minute| *minute < 60)?;
    let second = digits(&date_time[17..19]).filter(|second| *second < 60)?;
    let (micros, zone) = fraction(rest)?;
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((seconds - offset_seconds(zone)?) * 1_000_000 + micros)
}

/// The optional `.digits`, in microseconds, and what follows. Digits beyond the sixth must be zero.
fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(after) = rest.strip_prefix(b".") else {
        return Some((0, rest));
    };
    let count = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (places, zone) = after.split_at(count);
    let (kept, dropped) = places.split_at(count.min(6));
    if count == 0 || count > 9 || dropped.iter().any(|digit| *digit != b'0') {
        return None;
    }
    Some((digits(kept)? * 10i64.pow(6 - kept.len() as u32), zone))
}

fn offset_seconds(zone: &[u8]) -> Option<i64> {
    match zone {
        b"Z" => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = digits(&[*h1, *h2]).filter(|hours| *hours < 24)?;
            let minutes = digits(&[*m1, *m2]).filter(|minutes| *minutes < 60)?;
            let seconds = hours * 3_600 + minutes * 60;
            Some(if *sign == b'+' { seconds } else { -seconds })
        }
        _ => None,
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, for years 0 to 9999.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    // Counting years from March puts the leap day last, so months before it have fixed lengths.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests;
