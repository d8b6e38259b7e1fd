//! `/proc/pressure/{cpu,memory,io}`: pressure stall information, in hundredths of a percent.

use wire::inventory::{Pressure, PressureLine};

use crate::text::thousandths;

/// The lines that are there and whole; a line that is not is absent.
pub fn parse(text: &str) -> Pressure {
    let mut pressure = Pressure::default();
    for text in text.lines() {
        let mut words = text.split_whitespace();
        match words.next() {
            Some("some") => pressure.some = line(words),
            Some("full") => pressure.full = line(words),
            _ => {}
        }
    }
    pressure
}

fn line<'a>(words: impl Iterator<Item = &'a str>) -> Option<PressureLine> {
    let (mut avg10, mut avg60, mut avg300, mut total) = (None, None, None, None);
    for word in words {
        let (key, value) = word.split_once('=')?;
        // 100.00 percent at most; a kernel that says more is not believed.
        let average = || thousandths(value).map(|milli| milli / 10).filter(|centi| *centi <= 10_000);
        match key {
            "avg10" => avg10 = average(),
            "avg60" => avg60 = average(),
            "avg300" => avg300 = average(),
            "total" => total = value.parse().ok(),
            _ => {}
        }
    }
    let centi = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    Some(PressureLine {
        avg10_centi_percent: centi(avg10)?,
        avg60_centi_percent: centi(avg60)?,
        avg300_centi_percent: centi(avg300)?,
        total_us: total?,
    })
}
