//! A command of the API, from its arguments to its answer.

use std::time::Duration;

use api::{Group, METHODS, MethodRow};
use clap::{ArgMatches, Command};
use client::Client;
use serde_json::Value;

use super::follow::Settled;
use super::output::Output;
use super::text::{age, at, number};
use super::{Failure, Shell, confirm, context, events, flags, follow, import, request, ssh_cert};

/// `--all` ends here: more is an export, for which programs use the API.
const ALL_ITEMS_MAX: usize = 10_000;
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// A group with a command for each of its methods.
pub fn group(group: &Group) -> Command {
    let mut command = Command::new(api::kebab(group.name))
        .about(group.about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(METHODS.iter().filter(|row| row.parts().0 == group.name).map(own_or_made));
    if group.name == "events" {
        command = command.subcommand(events::command());
    }
    command
}

/// From the shape of its request, unless it has more to do than to send one.
fn own_or_made(row: &'static MethodRow) -> Command {
    match row.name {
        "images.import" => import::command(row),
        "nodes.issueSshCert" => ssh_cert::command(row),
        _ => flags::command(row),
    }
}

/// Runs `better-compute <group> <verb>`.
pub async fn run(group: &str, matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let (verb, matches) = matches.subcommand().expect("clap requires a subcommand");
    if (group, verb) == ("events", "stream") {
        return events::run(matches, shell).await;
    }
    let row = METHODS
        .iter()
        .find(|row| row.cli() == (group.to_owned(), verb.to_owned()))
        .expect("commands are made from the table");
    if row.name == "images.import" {
        return import::run(row, matches, shell).await;
    }
    if row.name == "nodes.issueSshCert" {
        return ssh_cert::run(row, matches, shell).await;
    }
    let output = Output::of(matches)?;
    let given = |name: &str| matches.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false);
    let mut wanted = request::build(row, matches, shell)?;
    let target = context::resolve(matches.get_one::<String>("context").map(String::as_str), shell)?;
    add_tenant(row, &mut wanted, target.tenant.as_deref());
    // Before anything is sent; what only the confirmation adds may still be missing.
    if row.name != "system.confirmRestore" {
        wanted = request::check(row, wanted)?;
    }
    let client = target.client(shell)?;
    let wanted = confirm::confirm(row, wanted, given("yes"), &client, shell).await?;
    let wanted = request::check(row, wanted)?;
    if given("watch") {
        return watch(row, &wanted, &output, &client, shell).await;
    }
    if given("all") {
        let answer = all(row, wanted, &client).await?;
        return answered(row, &answer, &output, shell);
    }
    let patience = given("wait")
        .then(|| Duration::from_secs(matches.get_one::<u64>("wait-timeout").copied().unwrap_or_default()));
    let answer = send(row, &wanted, &client).await?;
    match (patience, follow::of(row.name)) {
        (Some(patience), Some(follow)) if wanted.get("dryRun") != Some(&Value::Bool(true)) => {
            let (answer, settled) = follow::until_settled(&follow, &client, answer, patience, shell).await?;
            answered(row, &answer, &output, shell)?;
            match settled {
                Settled::Otherwise => Err(Failure::Settled { message: follow::standing(&answer) }),
                Settled::AsAsked | Settled::NotYet => Ok(0),
            }
        }
        _ => answered(row, &answer, &output, shell),
    }
}

/// The tenant of the context, where a method takes one and none was given.
pub(super) fn add_tenant(row: &MethodRow, request: &mut Value, tenant: Option<&str>) {
    let takes = flags::flags(row).iter().any(|flag| flag.path == "tenant");
    if let (true, Some(tenant), Value::Object(map)) = (takes, tenant, request) {
        map.entry("tenant").or_insert_with(|| tenant.into());
    }
}

pub(super) async fn send(
    row: &'static MethodRow,
    request: &Value,
    client: &Client,
) -> Result<Value, Failure> {
    client.call_value(row, request.clone()).await.map_err(|error| Failure::Call {
        error,
        method: row,
        request: request.clone(),
    })
}

/// Every page of a list as one.
async fn all(row: &'static MethodRow, mut request: Value, client: &Client) -> Result<Value, Failure> {
    request["limit"] = 200.into();
    let mut items = Vec::new();
    loop {
        let mut page = send(row, &request, client).await?;
        if let Some(more) = page.get_mut("items").and_then(Value::as_array_mut) {
            items.append(more);
        }
        match page.get("cursor").filter(|cursor| !cursor.is_null()) {
            Some(_) if items.len() >= ALL_ITEMS_MAX => {
                return Err(Failure::local(format!(
                    "more than {ALL_ITEMS_MAX} entries: narrow the list, or page with --cursor"
                )));
            }
            Some(cursor) => request["cursor"] = cursor.clone(),
            None => return Ok(serde_json::json!({ "items": items })),
        }
    }
}

pub(super) fn answered(
    row: &MethodRow,
    answer: &Value,
    output: &Output,
    shell: &mut Shell,
) -> Result<u8, Failure> {
    if output.for_people() && answer.get("secret").is_some_and(Value::is_string) {
        return secret(answer, shell);
    }
    let text = output.render(row, answer, shell)?;
    let empty = answer.get("items").and_then(Value::as_array).is_some_and(Vec::is_empty);
    if output.for_people() && empty {
        shell.note("none");
        return Ok(0);
    }
    shell.out(&text)?;
    if output.for_people() && answer.get("cursor").is_some_and(Value::is_string) {
        shell.note(&format!("there is more: --cursor {}, or --all", at(answer, "cursor")));
    }
    Ok(0)
}

/// The secret alone on standard output, so that it goes into a file as it is.
fn secret(answer: &Value, shell: &mut Shell) -> Result<u8, Failure> {
    let made = ["token", "joinToken"].iter().find_map(|name| answer.get(name)).unwrap_or(&Value::Null);
    shell.note(&format!(
        "{} lasts {}. Its secret is told this once:",
        at(made, "id"),
        age(number(made, "expiresInSeconds"))
    ));
    shell.out(&format!("{}\n", at(answer, "secret")))?;
    Ok(0)
}

/// Shows it again and again: on a terminal in place, elsewhere when it has changed.
async fn watch(
    row: &'static MethodRow,
    request: &Value,
    output: &Output,
    client: &Client,
    shell: &mut Shell,
) -> Result<u8, Failure> {
    let mut last = String::new();
    loop {
        let text = output.render(row, &send(row, request, client).await?, shell)?;
        if shell.output_is_terminal {
            shell.out(&format!("\u{1b}[H\u{1b}[2J{text}"))?;
        } else if text != last {
            shell.out(&text)?;
        }
        last = text;
        shell.clock.sleep(WATCH_EVERY).await;
    }
}
