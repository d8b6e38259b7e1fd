//! A run to be: how large the world is, and what happens to it when. As text, one thing a line.

use std::fmt;

use super::action::{self, Action};

/// Nodes and gateways of a world, at most.
pub const NODES_MAX: usize = 4;
pub const GATEWAYS_MAX: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// For what happens by chance.
    pub seed: u64,
    pub nodes: usize,
    pub gateways: usize,
    /// By their time in milliseconds.
    pub lines: Vec<(u64, Action)>,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}\nnodes {}\ngateways {}", self.seed, self.nodes, self.gateways)?;
        for (at, action) in &self.lines {
            writeln!(f, "at {at} {action}")?;
        }
        Ok(())
    }
}

impl Scenario {
    /// Reads a scenario; `#` begins a comment. The error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut scenario = Self { seed: 0, nodes: 1, gateways: 1, lines: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                scenario.line(line).map_err(|err| format!("line {}: {err}", number + 1))?;
            }
        }
        scenario.lines.sort_by_key(|(at, _)| *at);
        Ok(scenario)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').ok_or("it is one word")?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        let count = |text: &str, max: usize| match number(text).map(usize::try_from) {
            Ok(Ok(count)) if (1..=max).contains(&count) => Ok(count),
            _ => Err(format!("{text:?} is not from 1 to {max}")),
        };
        match word {
            "seed" => self.seed = number(rest)?,
            "nodes" => self.nodes = count(rest, NODES_MAX)?,
            "gateways" => self.gateways = count(rest, GATEWAYS_MAX)?,
            "at" => {
                let (at, action) = rest.split_once(' ').ok_or("nothing happens at that time")?;
                self.lines.push((number(at)?, action::parse(action)?));
            }
            other => return Err(format!("{other:?} is none of seed, nodes, gateways, at")),
        }
        Ok(())
    }
}
