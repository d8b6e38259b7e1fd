//! Tables: one line for each thing, no wider than the terminal.

use comfy_table::{Cell, Color, ContentArrangement, Row, Table, presets};
use serde_json::Value;

use super::Shell;

pub struct Column {
    pub head: &'static str,
    /// Only with `--output wide`.
    pub wide: bool,
    pub cell: fn(&Value) -> String,
}

/// The lines of a table. Wide ones are as wide as they need, so that nothing is cut.
pub fn render(columns: &[Column], items: &[Value], wide: bool, shell: &Shell) -> String {
    let columns: Vec<&Column> = columns.iter().filter(|column| wide || !column.wide).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_truncation_indicator("…").force_no_tty();
    if shell.output_is_terminal && !wide {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(shell.width).unwrap_or(u16::MAX));
    }
    if shell.colour() {
        table.enforce_styling();
    }
    table.set_header(columns.iter().map(|column| column.head).collect::<Vec<_>>());
    for item in items {
        let mut row = Row::new();
        row.max_height(1);
        for column in &columns {
            let text = (column.cell)(item);
            let cell = Cell::new(&text);
            row.add_cell(match colour(column.head, &text) {
                Some(colour) if shell.colour() => cell.fg(colour),
                _ => cell,
            });
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn colour(head: &str, text: &str) -> Option<Color> {
    if !matches!(head, "STATE" | "DECISION" | "OUTCOME") {
        return None;
    }
    Some(match text {
        "ready" | "active" | "succeeded" | "allowed" | "ok" | "issued" => Color::Green,
        "failed" | "lost" | "revoked" | "unreachable" | "rejected" | "denied" => Color::Red,
        "released" | "removed" | "expired" | "used" | "cancelled" => Color::DarkGrey,
        _ => Color::Yellow,
    })
}
