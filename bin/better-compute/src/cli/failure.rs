//! Why a command did not do what was asked: what is printed, and the exit code.

use std::fmt;

use api::MethodRow;
use client::{ClientError, Refusal};
use model::ErrorCode;
use serde_json::{Map, Value};

use super::text::{age, at, number, plain, printable, quoted, words};
use super::{Shell, request};

/// Where the code stands at the right, on terminals that are wide enough.
const CODE_COLUMN: usize = 66;
/// Details and groups beyond this say no more to a person.
const LINES_MAX: usize = 12;

pub mod exit {
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const NOT_FOUND: u8 = 3;
    pub const DENIED: u8 = 4;
    pub const CONFLICT: u8 = 5;
    pub const TIMED_OUT: u8 = 6;
}

#[derive(Debug)]
pub enum Failure {
    /// Nothing more to say.
    Quiet(u8),
    /// What was given cannot be sent.
    Usage { message: String, help: String },
    /// Something on this machine.
    Local { message: String, help: String },
    /// The server refused, or was not there.
    Call { error: ClientError, method: &'static MethodRow, request: Value },
    /// It settled otherwise than was asked for.
    Settled { message: String },
    /// It has not settled in time.
    TimedOut { message: String, help: String },
}

/// The first line alone, for whoever has a place of its own for it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Quiet(code) => write!(f, "exit code {code}"),
            Failure::Usage { message, .. }
            | Failure::Local { message, .. }
            | Failure::Settled { message }
            | Failure::TimedOut { message, .. } => f.write_str(message),
            Failure::Call { error, .. } => error.fmt(f),
        }
    }
}

impl Failure {
    pub fn usage(message: impl Into<String>) -> Self {
        Failure::Usage { message: message.into(), help: String::new() }
    }

    pub fn local(message: impl Into<String>) -> Self {
        Failure::Local { message: message.into(), help: String::new() }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Quiet(code) => *code,
            Failure::Usage { .. } => exit::USAGE,
            Failure::Local { .. } | Failure::Settled { .. } => exit::FAILED,
            Failure::TimedOut { .. } => exit::TIMED_OUT,
            Failure::Call { error, .. } => {
                error.refusal().map_or(exit::FAILED, |refusal| of_code(refusal.code()))
            }
        }
    }

    /// Says it on standard error and gives the exit code.
    pub fn print(&self, shell: &mut Shell) -> u8 {
        let lines = match self {
            Failure::Quiet(_) => Vec::new(),
            Failure::Usage { message, help } => plain_lines(message, "help", help),
            Failure::Local { message, help } => plain_lines(message, "try", help),
            Failure::TimedOut { message, help } => plain_lines(message, "go on", help),
            Failure::Settled { message } => plain_lines(message, "", ""),
            Failure::Call { error, method, request } => match error.refusal() {
                Some(refusal) => refused(refusal, method, request),
                None => plain_lines(&kit::chain(error), "check", "better-compute context show"),
            },
        };
        let colour = shell.colour_errors();
        for (index, line) in lines.iter().enumerate() {
            match (index, colour) {
                (0, true) => shell.note(&format!("\u{1b}[1;31merror:\u{1b}[0m {line}")),
                (0, false) => shell.note(&format!("error: {line}")),
                _ => shell.note(line),
            }
        }
        self.exit_code()
    }
}

const fn of_code(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::InvalidInput | ErrorCode::ConfirmationRequired => exit::USAGE,
        ErrorCode::NotFound => exit::NOT_FOUND,
        ErrorCode::Unauthenticated | ErrorCode::AccessDenied => exit::DENIED,
        ErrorCode::Conflict | ErrorCode::InvalidState => exit::CONFLICT,
        ErrorCode::InvalidConfig
        | ErrorCode::Unsupported
        | ErrorCode::QuotaExceeded
        | ErrorCode::CapacityUnavailable
        | ErrorCode::SpendLimitReached
        | ErrorCode::RateLimited
        | ErrorCode::ProviderError
        | ErrorCode::Unavailable
        | ErrorCode::Internal => exit::FAILED,
    }
}

fn plain_lines(message: &str, label: &str, help: &str) -> Vec<String> {
    let mut lines = vec![message.to_owned()];
    if !help.is_empty() {
        lines.push(line(label, help));
    }
    lines
}

fn line(label: &str, text: &str) -> String {
    format!("  {label:<9} {text}")
}

fn refused(refusal: &Refusal, method: &MethodRow, request: &Value) -> Vec<String> {
    let problem = &refusal.problem;
    let message = printable(&problem.message);
    let mut lines = vec![format!("{message:<width$}  {}", printable(&problem.code), width = CODE_COLUMN - 7)];
    let steps = next_steps(refusal, method, request);
    // A step repeats the whole request; a detail of its name is the server's shorter guess at it.
    let is_step = |name: &str| steps.iter().any(|(label, _)| *label == name);
    let details: Map<String, Value> = problem
        .details
        .iter()
        .filter(|(name, _)| !is_step(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    lines.extend(detail_lines(&details));
    lines.extend(steps.iter().map(|(label, next)| line(label, next)));
    if matches!(refusal.code(), ErrorCode::Internal | ErrorCode::Unavailable | ErrorCode::ProviderError)
        && !problem.request_id.is_empty()
    {
        lines.push(line("request", &printable(&problem.request_id)));
    }
    lines
}

/// Groups of nodes and hints as what they are, everything else as it comes.
fn detail_lines(details: &Map<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in details {
        match (name.as_str(), value) {
            ("groups", Value::Array(groups)) => lines.extend(groups.iter().map(group_line)),
            ("hints", Value::Array(hints)) => {
                let hints: Vec<String> = hints.iter().map(plain).collect();
                if !hints.is_empty() {
                    lines.push(line("try", &hints.join(", or ")));
                }
            }
            ("pointer", value) => lines.push(line("field", plain(value).trim_start_matches('/'))),
            (_, Value::Null) => {}
            (name, value) => lines.push(line(&words(name), &plain(value))),
        }
    }
    lines.truncate(LINES_MAX);
    lines
}

/// `6 nodes   have 8 GPUs in all, 16 wanted on one node`.
pub fn group_line(group: &Value) -> String {
    let nodes = number(group, "nodes");
    let label = format!("{nodes} node{}", if nodes == 1 { "" } else { "s" });
    line(&label, &at(group, "reason"))
}

/// The next commands to run.
fn next_steps(refusal: &Refusal, method: &MethodRow, request: &Value) -> Vec<(&'static str, String)> {
    let (group, verb) = method.cli();
    let details = &refusal.problem.details;
    match refusal.code() {
        ErrorCode::Unauthenticated => vec![("login", "better-compute login --token-stdin".to_owned())],
        ErrorCode::AccessDenied => vec![("who am I", "better-compute tokens whoami".to_owned())],
        ErrorCode::NotFound => {
            let kind = details.get("kind").and_then(Value::as_str).unwrap_or_default();
            let listed = group_of(kind).unwrap_or(group);
            match api::METHODS.iter().any(|row| row.cli() == (listed.clone(), "list".to_owned())) {
                true => vec![("list", format!("better-compute {listed} list"))],
                false => vec![],
            }
        }
        ErrorCode::CapacityUnavailable if method.name == "reservations.create" => {
            let line = request::command_line(explain_row(), &claim_of(request));
            vec![("explain", line)]
        }
        ErrorCode::QuotaExceeded => vec![("quotas", "better-compute quotas list".to_owned())],
        ErrorCode::Conflict | ErrorCode::InvalidState => look(&group, request),
        ErrorCode::InvalidInput | ErrorCode::ConfirmationRequired => {
            vec![("help", format!("better-compute {group} {verb} --help"))]
        }
        ErrorCode::RateLimited | ErrorCode::Unavailable => {
            refusal.retry_after.map(|seconds| ("again", format!("in {}", age(seconds)))).into_iter().collect()
        }
        ErrorCode::CapacityUnavailable
        | ErrorCode::InvalidConfig
        | ErrorCode::Unsupported
        | ErrorCode::SpendLimitReached
        | ErrorCode::ProviderError
        | ErrorCode::Internal => {
            vec![("about", api::docs_path(refusal.code()))]
        }
    }
}

fn explain_row() -> &'static MethodRow {
    api::find("reservations.explain").expect("it is in the table")
}

/// What of a reservation's request is its claim.
fn claim_of(request: &Value) -> Value {
    let known: Vec<String> = super::flags::flags(explain_row()).into_iter().map(|flag| flag.path).collect();
    let fields = request.as_object().into_iter().flatten();
    Value::Object(
        fields
            .filter(|(name, _)| known.contains(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

/// `join token` to `join-tokens`.
fn group_of(kind: &str) -> Option<String> {
    let plural = match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    };
    let kebab = plural.replace(' ', "-");
    api::GROUPS.iter().map(|group| api::kebab(group.name)).find(|group| *group == kebab)
}

fn look(group: &str, request: &Value) -> Vec<(&'static str, String)> {
    let subject =
        ["id", "node", "pool", "policy", "site"].iter().find_map(|name| request.get(name)?.as_str());
    let gets = api::METHODS.iter().any(|row| row.cli() == (group.to_owned(), "get".to_owned()));
    match subject {
        Some(subject) if gets => vec![("look", format!("better-compute {group} get {}", quoted(subject)))],
        _ => vec![],
    }
}
