//! One line of the report: a figure, the bound it approaches, and what it is held to.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{Run, median, short};

/// Names a file to which each figure is appended as one line of JSON, beside being printed. `cargo xtask bench --all` sets it.
pub const FIGURES_FILE: &str = "BC_BENCH_FIGURES";

/// A measured figure. Made by [`Figure::of`] or [`Figure::rate`], then told more, then [`Figure::say`]:
///
/// ```ignore
/// Figure::rate("journal appends, 1 writer", "/s", &runs)
///     .beside("append 128 bytes + fdatasync", median(&raw))
///     .ratio_at_least(0.6, 0.95)
///     .say()?;
/// Figure::of("memory of a session", 23.4, "KiB").beside("bare TLS", 11.0).at_most(40.0, 24.0).say()?;
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    /// As printed right behind the value: `/s`, `KiB`, `ms`, `%`.
    pub unit: String,
    /// What it is read beside, measured in the same run.
    pub bound: Option<Bound>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// The worst stretch of the run, in the figure's own unit.
    pub slowest: Option<f64>,
    /// What it is held to; none for a figure that is only context.
    pub held: Option<Held>,
    /// What else a reader needs: how many fsyncs were counted, which part of the time is whose.
    pub note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bound {
    pub what: String,
    /// In the figure's unit.
    pub value: f64,
}

/// The gate has to be met; the goal is where it should end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Held {
    /// The ratio to the bound is held to it, and not the value.
    pub by_ratio: bool,
    pub better: Better,
    pub gate: f64,
    pub goal: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Better {
    More,
    Less,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Goal,
    Gate,
    Missed,
    /// It is held to nothing.
    Context,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Goal => "goal met",
            Verdict::Gate => "gate met",
            Verdict::Missed => "MISSED",
            Verdict::Context => "",
        }
    }
}

impl Figure {
    pub fn of(name: impl Into<String>, value: f64, unit: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value,
            unit: unit.into(),
            bound: None,
            p50_ns: None,
            p99_ns: None,
            slowest: None,
            held: None,
            note: None,
        }
    }

    /// The median of the runs' rates; the times are of all their samples, the slowest stretch that of any of them.
    pub fn rate(name: impl Into<String>, unit: impl Into<String>, runs: &[Run]) -> Self {
        let lasted = runs.iter().map(|run| run.lasted).sum();
        let all = Run::new("all", lasted, runs.iter().flat_map(|run| run.samples.clone()).collect());
        let slowest = runs.iter().map(Run::slowest).min_by(f64::total_cmp);
        let figure = Self::of(name, median(runs), unit).times(all.percentile(50), all.percentile(99));
        Self { slowest, ..figure }
    }

    pub fn times(self, p50: Duration, p99: Duration) -> Self {
        let nanos = |took: Duration| u64::try_from(took.as_nanos()).ok();
        Self { p50_ns: nanos(p50), p99_ns: nanos(p99), ..self }
    }

    pub fn slowest(self, value: f64) -> Self {
        Self { slowest: Some(value), ..self }
    }

    /// `value` is in the figure's unit.
    pub fn beside(self, what: impl Into<String>, value: f64) -> Self {
        Self { bound: Some(Bound { what: what.into(), value }), ..self }
    }

    pub fn at_least(self, gate: f64, goal: f64) -> Self {
        Self { held: Some(Held { by_ratio: false, better: Better::More, gate, goal }), ..self }
    }

    pub fn at_most(self, gate: f64, goal: f64) -> Self {
        Self { held: Some(Held { by_ratio: false, better: Better::Less, gate, goal }), ..self }
    }

    /// Of the value to its bound.
    pub fn ratio_at_least(self, gate: f64, goal: f64) -> Self {
        Self { held: Some(Held { by_ratio: true, better: Better::More, gate, goal }), ..self }
    }

    /// Of the value to its bound.
    pub fn ratio_at_most(self, gate: f64, goal: f64) -> Self {
        Self { held: Some(Held { by_ratio: true, better: Better::Less, gate, goal }), ..self }
    }

    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// To the bound; none without one, or when it is zero.
    pub fn ratio(&self) -> Option<f64> {
        self.bound.as_ref().map(|bound| self.value / bound.value).filter(|ratio| ratio.is_finite())
    }

    /// A ratio that could not be taken has missed what it is held to.
    pub fn verdict(&self) -> Verdict {
        let Some(Held { by_ratio, better, gate, goal }) = self.held else { return Verdict::Context };
        let Some(found) = (if by_ratio { self.ratio() } else { Some(self.value) }) else {
            return Verdict::Missed;
        };
        let meets = |mark: f64| match better {
            Better::More => found >= mark,
            Better::Less => found <= mark,
        };
        match (meets(gate), meets(goal)) {
            (true, true) => Verdict::Goal,
            (true, false) => Verdict::Gate,
            (false, _) => Verdict::Missed,
        }
    }

    /// Prints it, and appends it to the report's file when there is one.
    pub fn say(&self) -> anyhow::Result<()> {
        println!("{self}");
        let Some(path) = std::env::var_os(FIGURES_FILE) else { return Ok(()) };
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
        file.write_all(&line).with_context(|| format!("append a figure to {path:?}"))
    }

    /// What [`Figure::say`] wrote, one figure a line.
    pub fn read_all(text: &str) -> anyhow::Result<Vec<Figure>> {
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("read the figure {line:?}")))
            .collect()
    }

    /// The cells of its line in the report, under [`COLUMNS`].
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let time = |nanos: Option<u64>| nanos.map(|nanos| short(Duration::from_nanos(nanos)));
        let mark = |mark: fn(&Held) -> f64| self.held.as_ref().map(|held| held.shown(mark(held), &self.unit));
        [
            self.name.clone(),
            with_unit(self.value, &self.unit),
            self.bound
                .as_ref()
                .map(|bound| format!("{}: {}", bound.what, with_unit(bound.value, &self.unit)))
                .unwrap_or_default(),
            self.ratio().map(digits).unwrap_or_default(),
            time(self.p50_ns).unwrap_or_default(),
            time(self.p99_ns).unwrap_or_default(),
            self.slowest.map(|slowest| with_unit(slowest, &self.unit)).unwrap_or_default(),
            mark(|held| held.gate).unwrap_or_default(),
            mark(|held| held.goal).unwrap_or_default(),
            self.verdict().name().to_owned(),
            self.note.clone().unwrap_or_default(),
        ]
    }
}

/// Of the report's table.
pub const COLUMNS: [&str; 11] =
    ["figure", "value", "bound", "ratio", "p50", "p99", "slowest", "gate", "goal", "verdict", "note"];

impl Held {
    fn shown(&self, mark: f64, unit: &str) -> String {
        let sign = match self.better {
            Better::More => "≥",
            Better::Less => "≤",
        };
        match self.by_ratio {
            true => format!("{sign} {} of the bound", digits(mark)),
            false => format!("{sign} {}", with_unit(mark, unit)),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.cells();
        write!(f, "figure  {}: {}", cells[0], cells[1])?;
        for (name, cell) in COLUMNS.iter().zip(&cells).skip(2).filter(|(_, cell)| !cell.is_empty()) {
            write!(f, " | {name} {cell}")?;
        }
        Ok(())
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    let space = if unit.starts_with('/') || unit.is_empty() { "" } else { " " };
    format!("{}{space}{unit}", digits(value))
}

/// Three digits or so; thousands in full.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => {
            let whole = format!("{:.0}", value.abs());
            let mut text = String::new();
            for (at, digit) in whole.chars().enumerate() {
                if at > 0 && (whole.len() - at).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            if value < 0.0 { format!("-{text}") } else { text }
        }
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 0.1 || size == 0.0 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.4}")),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
