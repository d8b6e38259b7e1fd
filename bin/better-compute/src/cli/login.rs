//! Keeps a token for a server.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use model::label::check_name;
use serde_json::json;

use super::context::{Context, Contexts, Target};
use super::text::at;
use super::{Failure, Shell};

const TOKEN_LEN_MAX: u64 = 4096;

pub fn command() -> Command {
    Command::new("login")
        .about("Keeps a token for a server, and makes it the current context")
        .arg(
            Arg::new("token-stdin")
                .long("token-stdin")
                .action(ArgAction::SetTrue)
                .required(true)
                .help("Reads the token from standard input: arguments can be read by every process"),
        )
        .arg(
            Arg::new("url")
                .long("url")
                .value_name("URL")
                .help("The server; that of the context when it is there already"),
        )
        .arg(
            Arg::new("name")
                .long("context")
                .value_name("NAME")
                .default_value("default")
                .help("What to call it"),
        )
        .arg(
            Arg::new("ca-file")
                .long("ca-file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("PEM file of the only authorities to trust"),
        )
        .arg(
            Arg::new("tenant")
                .long("tenant")
                .value_name("TENANT-ID")
                .help("Used wherever a tenant may be given"),
        )
        .arg(
            Arg::new("no-check")
                .long("no-check")
                .action(ArgAction::SetTrue)
                .help("Keeps the token without asking the server whose it is"),
        )
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("name").expect("it has a default").clone();
    check_name(&name).map_err(|err| Failure::usage(format!("--context: {err}")))?;
    let path = Contexts::path(shell)?;
    let mut contexts = Contexts::load(&path)?;
    let known = contexts.contexts.get(&name).cloned();
    let url = matches
        .get_one::<String>("url")
        .cloned()
        .or_else(|| shell.var("BETTER_COMPUTE_URL").map(str::to_owned))
        .or_else(|| known.as_ref().map(|known| known.url.clone()))
        .ok_or_else(|| Failure::usage("which server? give --url https://…"))?;
    // What was kept for another server says nothing about this one.
    let known = known.filter(|known| known.url == url);
    let ca_file = matches.get_one::<PathBuf>("ca-file").cloned().or_else(|| known.as_ref()?.ca_file.clone());
    let ca_file = match ca_file {
        Some(file) => Some(
            std::path::absolute(&file).map_err(|err| Failure::local(format!("{}: {err}", file.display())))?,
        ),
        None => None,
    };
    let tenant = matches.get_one::<String>("tenant").cloned().or_else(|| known.as_ref()?.tenant.clone());
    if let Some(tenant) = &tenant {
        tenant.parse::<model::TenantId>().map_err(|err| Failure::usage(format!("--tenant: {err}")))?;
    }
    let token = read_token(shell)?;
    let target = Target {
        url: url.clone(),
        token: Some(token.clone()),
        ca_file: ca_file.clone(),
        tenant: tenant.clone(),
    };
    let client = target.client(shell)?;
    if !matches.get_flag("no-check") {
        let row = api::find("tokens.whoami").expect("the table has it");
        let me = client.call_value(row, json!({})).await.map_err(|error| Failure::Call {
            error,
            method: row,
            request: json!({}),
        })?;
        shell.note(&format!("you are {} of {}", at(&me, "user.name"), at(&me, "user.tenant.name")));
    }
    let folder = path.parent().map(|folder| folder.join("tokens")).unwrap_or_else(|| PathBuf::from("tokens"));
    let token_file = folder.join(&name);
    kit::fs::create_dir(&folder, 0o700)
        .and_then(|()| kit::fs::write_atomic(&token_file, format!("{token}\n").as_bytes(), 0o600))
        .map_err(|err| Failure::local(kit::chain(&err)))?;
    let token_file = std::path::absolute(&token_file).unwrap_or(token_file);
    contexts
        .contexts
        .insert(name.clone(), Context { url: url.clone(), token_file: Some(token_file), ca_file, tenant });
    contexts.current = Some(name.clone());
    contexts.save(&path)?;
    shell.note(&format!("commands go to {url} ({name}) from now on"));
    Ok(0)
}

fn read_token(shell: &mut Shell) -> Result<String, Failure> {
    if shell.interactive() {
        shell.note("paste the token and press Enter:");
    }
    let mut line = String::new();
    (&mut shell.input)
        .take(TOKEN_LEN_MAX)
        .read_line(&mut line)
        .map_err(|err| Failure::local(format!("failed to read the token from standard input: {err}")))?;
    let token = line.trim();
    if !token.starts_with("bct_") || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::usage("standard input holds no token: one starts with bct_"));
    }
    Ok(token.to_owned())
}
