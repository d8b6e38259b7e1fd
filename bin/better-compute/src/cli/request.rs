//! A request from what was given: the file, then the flags over it, then `--set` over both.

use std::io::Read;
use std::path::Path;

use api::{Idempotency, MethodRow, Shape};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::ArgMatches;
use clap::parser::ValueSource;
use serde_json::{Map, Value};

use super::flags::{self, Flag, flags};
use super::{Failure, Shell};

/// As much as the server takes.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// What begins a reference to a secret.
const REFERENCE: &str = "secret://";

/// Builds the request; it is not checked yet.
pub fn build(row: &MethodRow, matches: &ArgMatches, shell: &mut Shell) -> Result<Value, Failure> {
    let mut request = match matches.get_one::<String>("request") {
        Some(file) => object(&read(file, shell)?, &format!("--request {file}"))?,
        None => Map::new(),
    };
    for flag in flags(row) {
        if matches.value_source(&flag.path) == Some(ValueSource::CommandLine)
            && let Some(value) = match flags::is_read(row, &flag.path) {
                true => told(&flag, matches, &mut request, shell)?,
                false => value(&flag, matches, shell)?,
            }
        {
            insert(&mut request, &flag.path, value);
        }
    }
    for text in matches.get_many::<String>("set").into_iter().flatten() {
        for (name, value) in object(text, "--set")? {
            let is_reference = value.as_str().is_some_and(|text| text.starts_with(REFERENCE));
            if flags::is_read(row, &name) && !is_reference {
                return Err(Failure::usage(format!(
                    "--set: {name} is no argument, which every process of the machine can read: give a file"
                )));
            }
            request.insert(name, value);
        }
    }
    if row.idempotency == Idempotency::Key && !request.contains_key("idempotencyKey") {
        // So that a connection that breaks is no reason to create it twice.
        let key = format!("cli-{}", uuid::Builder::from_random_bytes(shell.rng.bytes()).into_uuid().simple());
        request.insert("idempotencyKey".to_owned(), key.into());
    }
    Ok(Value::Object(request))
}

/// Checks it as the server will, and says it in terms of the command line.
pub fn check(row: &MethodRow, request: Value) -> Result<Value, Failure> {
    (row.parse)(request).map_err(|invalid| {
        let path = invalid.pointer.trim_start_matches('/').replace('/', ".");
        let flag = flags(row)
            .into_iter()
            .find(|flag| path == flag.path || path.starts_with(&format!("{}.", flag.path)));
        let message = match flag {
            Some(flag) if flag.positional => format!("{}: {}", flag.value_name(), invalid.message),
            Some(flag) => format!("--{}: {}", flag.long, invalid.message),
            None if path.is_empty() => invalid.message,
            None => format!("{path}: {}", invalid.message),
        };
        let (group, verb) = row.cli();
        Failure::Usage { message, help: format!("better-compute {group} {verb} --help") }
    })
}

/// The command line that makes this request again, less what belongs to one call alone.
pub fn command_line(row: &MethodRow, request: &Value) -> String {
    let (group, verb) = row.cli();
    let mut line = format!("better-compute {group} {verb}");
    for flag in flags(row) {
        let value = request.pointer(&format!("/{}", flag.path.replace('.', "/"))).unwrap_or(&Value::Null);
        let texts: Vec<String> = match value {
            Value::Null => continue,
            _ if matches!(flag.path.as_str(), "idempotencyKey" | "dryRun" | "confirm" | "document") => {
                continue;
            }
            Value::Object(map) => {
                map.iter().map(|(key, value)| format!("{key}={}", super::text::plain(value))).collect()
            }
            Value::Array(items) => items.iter().map(super::text::plain).collect(),
            _ => vec![super::text::plain(value)],
        };
        for text in texts {
            // What is read from a file is shown to nobody.
            let hidden = flags::is_read(row, &flag.path) && !text.starts_with(REFERENCE);
            let text = if hidden { "FILE".to_owned() } else { text };
            match (&flag.shape, flag.positional) {
                (Shape::Bool, _) if text == "true" => line.push_str(&format!(" --{}", flag.long)),
                (Shape::Bool, _) => line.push_str(&format!(" --{}=false", flag.long)),
                (_, true) => line.push_str(&format!(" {}", super::text::quoted(&text))),
                (_, false) => line.push_str(&format!(" --{} {}", flag.long, super::text::quoted(&text))),
            }
        }
    }
    line
}

fn value(flag: &Flag, matches: &ArgMatches, shell: &mut Shell) -> Result<Option<Value>, Failure> {
    let texts = || matches.get_many::<String>(&flag.path).into_iter().flatten().cloned();
    Ok(match &flag.shape {
        Shape::Bool => matches.get_one::<bool>(&flag.path).copied().map(Value::from),
        Shape::Integer { .. } => matches.get_one::<u64>(&flag.path).copied().map(Value::from),
        Shape::List { .. } if flag.path == "sshKeys" => {
            let texts: Vec<String> = texts().collect();
            let mut keys = Vec::new();
            for text in texts {
                keys.extend(ssh_keys(&flag.long, &text, shell)?);
            }
            Some(keys.into())
        }
        Shape::List { items, .. } => {
            let number = matches!(**items, Shape::Integer { .. });
            Some(
                texts()
                    .map(|text| {
                        if number {
                            text.parse::<u64>().map_or(text.into(), Value::from)
                        } else {
                            text.into()
                        }
                    })
                    .collect(),
            )
        }
        Shape::Map { values } if **values == Shape::Any => {
            let file = texts().next().unwrap_or_default();
            Some(Value::Object(object(&read(&file, shell)?, &format!("--{} {file}", flag.long))?))
        }
        Shape::Map { .. } => Some(Value::Object(pairs(flag, texts())?)),
        Shape::Text { .. } | Shape::Words(_) | Shape::Object { .. } | Shape::Any => {
            texts().next().map(Value::from)
        }
    })
}

/// What is kept secret, from its file. Bytes that are no text go as base64, where that can be said.
fn told(
    flag: &Flag,
    matches: &ArgMatches,
    request: &mut Map<String, Value>,
    shell: &mut Shell,
) -> Result<Option<Value>, Failure> {
    let Some(given) = matches.get_one::<String>(&flag.path) else { return Ok(None) };
    if flag.path == "userData" && given.starts_with(REFERENCE) {
        return Ok(Some(given.clone().into()));
    }
    match String::from_utf8(read_bytes(given, shell)?) {
        Ok(text) => Ok(Some(text.into())),
        Err(_) if flag.path == "userData" => Err(Failure::usage(format!(
            "{given}: it is no text. Keep it first: better-compute secrets put NAME --file {given}; then give --user-data {REFERENCE}NAME"
        ))),
        Err(bytes) => {
            request.insert("encoding".to_owned(), "base64".into());
            Ok(Some(BASE64_STANDARD.encode(bytes.as_bytes()).into()))
        }
    }
}

/// The keys of a file, or the one that was given. A private key does not leave this machine.
fn ssh_keys(flag: &str, given: &str, shell: &mut Shell) -> Result<Vec<String>, Failure> {
    // A key has its kind and itself, with a blank in between.
    let text = match given.split_once(' ') {
        Some((kind, _)) if kind.contains("ssh-") || kind.starts_with("ecdsa-") => given.to_owned(),
        Some(_) | None => read(given, shell)?,
    };
    if text.contains("PRIVATE KEY") {
        let message =
            format!("--{flag}: {given} is a private key: give the public one, the file that ends in .pub");
        return Err(Failure::usage(message));
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// The one key of a file, or the one that was given.
pub fn ssh_key(given: &str, shell: &mut Shell) -> Result<String, Failure> {
    let mut keys = ssh_keys("key", given, shell)?;
    match (keys.pop(), keys.is_empty()) {
        (Some(key), true) => Ok(key),
        _ => Err(Failure::usage(format!("--key: {given} holds no public key, or several"))),
    }
}

/// `KEY=VALUE`; for labels also `KEY-`, which takes one away.
fn pairs(flag: &Flag, texts: impl Iterator<Item = String>) -> Result<Map<String, Value>, Failure> {
    let mut map = Map::new();
    for text in texts {
        match (text.split_once('='), text.strip_suffix('-')) {
            (Some((key, value)), _) => map.insert(key.to_owned(), value.into()),
            (None, Some(key)) if flag.path == "labels" => map.insert(key.to_owned(), Value::Null),
            (None, _) => {
                return Err(Failure::usage(format!("--{}: {text:?} is not KEY=VALUE", flag.long)));
            }
        };
    }
    Ok(map)
}

fn insert(request: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            request.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = request.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn object(text: &str, what: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Failure::usage(format!("{what} is not a JSON object"))),
        Err(err) => Err(Failure::usage(format!("{what} is not JSON: {err}"))),
    }
}

fn read(file: &str, shell: &mut Shell) -> Result<String, Failure> {
    String::from_utf8(read_bytes(file, shell)?)
        .map_err(|_| Failure::usage(format!("{file}: it is not UTF-8")))
}

fn read_bytes(file: &str, shell: &mut Shell) -> Result<Vec<u8>, Failure> {
    let bytes = if file == "-" {
        let mut bytes = Vec::new();
        (&mut shell.input)
            .take(REQUEST_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|err| Failure::local(format!("failed to read standard input: {err}")))?;
        bytes
    } else {
        kit::fs::read_bounded(Path::new(file), REQUEST_BYTES_MAX)
            .map_err(|err| Failure::usage(kit::chain(&err)))?
    };
    if bytes.len() as u64 > REQUEST_BYTES_MAX {
        return Err(Failure::usage(format!("{file}: more than {REQUEST_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
