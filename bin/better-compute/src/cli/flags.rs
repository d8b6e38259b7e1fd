//! Arguments of a method, from the shape of its request.

use api::{Field, MethodRow, Shape, request_shape};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, value_parser};

/// One field of a request as an argument.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Where it goes: `wait.timeoutMs`. Also its id in clap.
    pub path: String,
    /// Without dashes.
    pub long: String,
    pub positional: bool,
    pub required: bool,
    pub about: String,
    pub shape: Shape,
}

impl Flag {
    /// As usage and errors name a positional argument. What may be a name is no `ID`.
    pub fn value_name(&self) -> String {
        match &self.shape {
            Shape::Text { format: Some(format), .. } if self.path == "id" => {
                format.strip_suffix("-ref").unwrap_or("id").to_uppercase()
            }
            _ => self.long.to_uppercase(),
        }
    }
}

/// Fields that a command carries without its name: what it is about comes first.
fn positionals(method: &str) -> &'static [&'static str] {
    match method {
        "commands.create" => &["node", "kind"],
        "quotas.set" => &["resource", "amount"],
        "policies.get" | "policies.delete" => &["policy"],
        "sites.get" => &["site"],
        "secrets.get" | "secrets.delete" => &["secret"],
        "images.delete" => &["image"],
        "pools.get" | "pools.update" | "pools.delete" => &["pool"],
        "tenants.create" | "users.create" | "tokens.create" | "sites.create" | "pools.create"
        | "policies.put" | "secrets.put" | "flavors.create" | "images.create" => &["name"],
        "nodes.revokeSshCert" => &["serial"],
        _ if method.starts_with("nodes.") && !method.starts_with("nodes.list") => &["node"],
        _ => &["id"],
    }
}

/// The arguments of a method, positional ones first in their order.
pub fn flags(row: &MethodRow) -> Vec<Flag> {
    let Shape::Object { fields, .. } = request_shape(row) else { return Vec::new() };
    let mut flags = Vec::new();
    for field in &fields {
        // Waiting is one flag, the same for every method.
        if field.name != "wait" {
            add(row, field, None, &mut flags);
        }
    }
    let order = positionals(row.name);
    flags.sort_by_key(|flag| {
        let place = order.iter().position(|name| *name == flag.path).unwrap_or(order.len());
        (place, !flag.required, flag.path.clone())
    });
    flags
}

fn add(row: &MethodRow, field: &Field, above: Option<&str>, flags: &mut Vec<Flag>) {
    let path = above.map_or_else(|| field.name.clone(), |above| format!("{above}.{}", field.name));
    if let Shape::Object { fields, .. } = &field.shape {
        for inner in fields {
            add(row, inner, Some(&path), flags);
        }
        return;
    }
    // The first level of nesting is how the request is built, not what a person thinks of.
    let name = match path.split_once('.') {
        Some((_, inner)) => inner.split('.').map(api::flag).collect::<Vec<_>>().join("-"),
        None if path == "document" || is_secret(row, &path) => "file".to_owned(),
        None => api::flag(match path.as_str() {
            "labels" => "label",
            "sshKeys" => "sshKey",
            "gpus" if matches!(field.shape, Shape::List { .. }) => "gpu",
            other => other,
        }),
    };
    flags.push(Flag {
        positional: above.is_none() && positionals(row.name).contains(&path.as_str()),
        long: name,
        // The epoch of a restore is asked for together with the confirmation.
        required: field.required && above.is_none() && path != "epoch",
        about: field.about.clone(),
        shape: field.shape.clone(),
        path,
    });
}

/// A value that no argument may hold: every process of the machine can read those.
fn is_secret(row: &MethodRow, path: &str) -> bool {
    row.name == "secrets.put" && path == "value"
}

/// Whether a field is read from a file.
pub fn is_read(row: &MethodRow, path: &str) -> bool {
    is_secret(row, path) || path == "userData"
}

/// Whether the method can hold its answer until something settles.
pub fn waits(row: &MethodRow) -> bool {
    let Shape::Object { fields, .. } = request_shape(row) else { return false };
    fields.iter().any(|field| field.name == "wait")
}

/// A method's command.
pub fn command(row: &'static MethodRow) -> Command {
    let (_, verb) = row.cli();
    let mut command = Command::new(verb).about(row.summary.trim_end_matches('.'));
    for (index, flag) in flags(row).into_iter().enumerate() {
        command = command.arg(argument(row, &flag, index));
    }
    common(command, row)
}

fn argument(row: &MethodRow, flag: &Flag, index: usize) -> Arg {
    let mut arg = Arg::new(flag.path.clone()).help(help(row, flag));
    if flag.positional {
        arg = arg.index(index + 1).value_name(flag.value_name());
    } else {
        arg = arg.long(flag.long.clone());
    }
    if flag.required {
        arg = arg.required_unless_present_any(["set", "request"]);
    }
    match &flag.shape {
        Shape::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(value_parser!(bool))
            .value_name("BOOL")
            .hide_possible_values(true),
        Shape::Integer { min, max } => {
            let low = min.and_then(|min| u64::try_from(min).ok()).unwrap_or(0);
            let high = max.and_then(|max| u64::try_from(max).ok()).unwrap_or(u64::MAX);
            arg.value_parser(value_parser!(u64).range(low..=high)).value_name(if flag.positional {
                "AMOUNT"
            } else {
                "N"
            })
        }
        Shape::Words(words) => arg.value_parser(PossibleValuesParser::new(words)),
        Shape::List { .. } => arg.action(ArgAction::Append).value_delimiter(','),
        Shape::Map { values } if **values == Shape::Any => arg.value_name("FILE"),
        Shape::Map { .. } => arg.action(ArgAction::Append).value_name("KEY=VALUE"),
        Shape::Text { format, .. } => match (flag.positional, format.as_deref()) {
            (false, Some("date-time")) => arg.value_name("TIME"),
            (false, Some(format)) => arg.value_name(format.to_uppercase()),
            (false, None) if is_read(row, &flag.path) => arg.value_name("FILE"),
            (false, None) => arg.value_name("TEXT"),
            (true, _) => arg,
        },
        Shape::Object { .. } | Shape::Any => arg,
    }
}

fn help(row: &MethodRow, flag: &Flag) -> String {
    if flag.path == "document" {
        return "JSON file of the policy, or - for standard input".to_owned();
    }
    if flag.path == "confirm" {
        return "What is meant, by its name (or id): asked for on a terminal; --yes gives it".to_owned();
    }
    if flag.path == "sshKeys" {
        return "File of OpenSSH public keys, one a line, or a key itself".to_owned();
    }
    if is_secret(row, &flag.path) {
        return "File of the value, or - for standard input".to_owned();
    }
    if flag.path == "userData" {
        return "File of what the guest is told at its first boot, as cloud-init takes it; or secret://NAME"
            .to_owned();
    }
    if flag.path == "labels" {
        return "Sets a label; KEY- takes one away".to_owned();
    }
    let about = flag.about.trim_end_matches('.').to_owned();
    match (about.is_empty(), &flag.shape) {
        (true, Shape::Text { format: Some(format), .. }) if format == "date-time" => {
            "A time, like 2026-03-01T12:00:00Z".to_owned()
        }
        (true, _) => super::text::words(flag.path.rsplit('.').next().unwrap_or(row.name)),
        (false, _) => about,
    }
}

/// What every command of the API takes.
fn common(command: Command, row: &MethodRow) -> Command {
    let mut command = command
        .next_help_heading("Output")
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_parser(["table", "wide", "json", "yaml"])
                .default_value("table")
                .help("How the answer is written"),
        )
        .arg(
            Arg::new("query")
                .long("query")
                .value_name("JMESPATH")
                .help("Writes only what this picks, as JSON unless yaml is asked for: items[].name"),
        )
        .next_help_heading("Request")
        .arg(
            Arg::new("context")
                .long("context")
                .value_name("NAME")
                .help("Uses this context, not the current one"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("JSON")
                .action(ArgAction::Append)
                .help("Fields of the request as a JSON object, over those of other flags"),
        )
        .arg(
            Arg::new("request")
                .long("request")
                .value_name("FILE")
                .help("The request as a JSON file, or - for standard input; flags go over it"),
        );
    if row.idempotency == api::Idempotency::Read {
        command = command.arg(
            Arg::new("watch")
                .long("watch")
                .short('w')
                .action(ArgAction::SetTrue)
                .help("Shows it again every 2 seconds"),
        );
    } else {
        command = command
            .arg(Arg::new("yes").long("yes").short('y').action(ArgAction::SetTrue).help("Does not ask"));
    }
    if row.parts().1.starts_with("list") {
        command = command.arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .conflicts_with("cursor")
                .help("Every page"),
        );
    }
    if waits(row) || super::follow::of(row.name).is_some() {
        command = command
            .arg(Arg::new("wait").long("wait").action(ArgAction::SetTrue).help("Waits until it has settled"))
            .arg(
                Arg::new("wait-timeout")
                    .long("wait-timeout")
                    .value_name("SECONDS")
                    .value_parser(value_parser!(u64).range(1..=86_400))
                    .default_value("600")
                    .help("Gives up waiting after this, with exit code 6"),
            );
    }
    command
}
