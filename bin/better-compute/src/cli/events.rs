//! `events stream`: a line for each event as it happens.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use client::EventFilter;
use serde_json::json;

use super::output::Output;
use super::text::{at, short};
use super::{Failure, Shell, context};

pub fn command() -> Command {
    Command::new("stream")
        .about("Prints events as they happen, one a line, until it is interrupted")
        .arg(
            Arg::new("type")
                .long("type")
                .value_name("TEXT")
                .help("A type, or the beginning of one up to a dot"),
        )
        .arg(Arg::new("subject").long("subject").value_name("TEXT").help("reservation/rsv_…, exactly"))
        .arg(Arg::new("tenant").long("tenant").value_name("TENANT-ID").help("Only this tenant's"))
        .arg(
            Arg::new("after")
                .long("after")
                .value_name("SEQ")
                .value_parser(value_parser!(u64))
                .help("Begins after this one instead of now"),
        )
        .arg(
            Arg::new("count")
                .long("count")
                .value_name("N")
                .value_parser(value_parser!(u64).range(1..))
                .conflicts_with("follow")
                .help("Ends after so many"),
        )
        .arg(
            Arg::new("follow")
                .long("follow")
                .short('f')
                .action(ArgAction::SetTrue)
                .help("Goes on for ever, as it does anyway"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_parser(["table", "json"])
                .default_value("table")
                .help("json writes one object a line"),
        )
        .arg(
            Arg::new("query")
                .long("query")
                .value_name("JMESPATH")
                .help("Writes only what this picks of each event"),
        )
        .arg(
            Arg::new("context")
                .long("context")
                .value_name("NAME")
                .help("Uses this context, not the current one"),
        )
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let filter = EventFilter { tenant: text("tenant"), kind: text("type"), subject: text("subject") };
    let row = api::find("events.list").expect("the table has it");
    // The stream's filters are those of the list; what is wrong with them is found before it begins.
    let mut asked = json!({});
    for (name, value) in [("tenant", &filter.tenant), ("type", &filter.kind), ("subject", &filter.subject)] {
        if let Some(value) = value {
            asked[name] = value.clone().into();
        }
    }
    let asked = super::request::check(row, asked)?;
    let output = Output::of(matches)?;
    let client = context::resolve(text("context").as_deref(), shell)?.client(shell)?;
    let mut events = client.events(filter, matches.get_one::<u64>("after").copied());
    let mut left = matches.get_one::<u64>("count").copied();
    while left != Some(0) {
        let event = events.next_event().await.map_err(|error| Failure::Call {
            error,
            method: row,
            request: asked.clone(),
        })?;
        let event = serde_json::to_value(&event)
            .map_err(|err| Failure::local(format!("failed to write an event: {err}")))?;
        let line = if output.for_people() {
            format!(
                "{}  {:<24} {:<40} {}\n",
                at(&event, "time"),
                at(&event, "type"),
                at(&event, "subject"),
                short(&at(&event, "data"), 200)
            )
        } else {
            let text = output.render(row, &event, shell)?;
            // One object a line, so that a program reads it line by line.
            serde_json::from_str::<serde_json::Value>(&text)
                .map_or(text.clone(), |value| format!("{value}\n"))
        };
        shell.out(&line)?;
        left = left.map(|left| left - 1);
    }
    Ok(0)
}
