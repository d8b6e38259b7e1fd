//! An answer, written as was asked.

use api::MethodRow;
use clap::ArgMatches;
use serde_json::Value;

use super::{Failure, Shell, columns, detail, table};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Table,
    Wide,
    Json,
    Yaml,
}

pub struct Output {
    format: Format,
    query: Option<jmespath::Expression<'static>>,
}

impl Output {
    /// A query that does not parse is found before anything is sent.
    pub fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let format = match matches.get_one::<String>("output").map(String::as_str) {
            Some("wide") => Format::Wide,
            Some("json") => Format::Json,
            Some("yaml") => Format::Yaml,
            _ => Format::Table,
        };
        let query = match matches.get_one::<String>("query") {
            Some(text) => Some(
                jmespath::compile(text)
                    .map_err(|err| Failure::usage(format!("--query: {}", err.to_string().trim_end())))?,
            ),
            None => None,
        };
        Ok(Self { format, query })
    }

    /// Whether people read it, who then get hints on standard error.
    pub fn for_people(&self) -> bool {
        self.query.is_none() && matches!(self.format, Format::Table | Format::Wide)
    }

    /// The answer as text, with its last newline.
    pub fn render(&self, row: &MethodRow, answer: &Value, shell: &Shell) -> Result<String, Failure> {
        if let Some(query) = &self.query {
            let picked = query
                .search(answer.clone())
                .map_err(|err| Failure::usage(format!("--query: {}", err.to_string().trim_end())))?;
            let picked = serde_json::to_value(&*picked)
                .map_err(|err| Failure::local(format!("failed to write what --query picked: {err}")))?;
            return if self.format == Format::Yaml { yaml(&picked) } else { Ok(json(&picked)) };
        }
        match self.format {
            Format::Json => Ok(json(answer)),
            Format::Yaml => yaml(answer),
            Format::Table | Format::Wide => Ok(self.for_reading(row, answer, shell)),
        }
    }

    fn for_reading(&self, row: &MethodRow, answer: &Value, shell: &Shell) -> String {
        let wide = self.format == Format::Wide;
        if row.name == "reservations.explain" {
            return detail::explanation(answer);
        }
        match (answer.get("items").and_then(Value::as_array), columns::of(row.name)) {
            (Some(items), Some(columns)) => table::render(columns, items, wide, shell),
            _ => detail::render(answer, shell.clock.now()),
        }
    }
}

fn json(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("a JSON value can be written");
    text.push('\n');
    text
}

fn yaml(value: &Value) -> Result<String, Failure> {
    serde_norway::to_string(value).map_err(|err| Failure::local(format!("failed to write YAML: {err}")))
}
