//! `daemon install-script`: a shell script that installs bcd on a machine. It holds pins and addresses, and no secret.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use serde_json::{Value, json};

use super::text::at;
use super::{Failure, Shell, context};

const SCRIPT: &str = include_str!("install.sh");
const UNIT: &str = include_str!("bcd.service");

pub fn command() -> Command {
    let pin = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("SHA256").value_parser(hex).action(ArgAction::Append).help(help)
    };
    let script = Command::new("install-script")
        .about("Prints a shell script that installs bcd on a machine and joins it")
        .after_help(
            "Gateway, pins and join key come from the server of the current context unless --gateway is given.\n\
             The script takes the join token from a file or standard input:\n  \
             better-compute daemon install-script --binary ./bcd > install-bcd.sh\n  \
             sudo sh install-bcd.sh --token-file TOKEN-FILE",
        )
        .arg(Arg::new("binary").long("binary").value_name("PATH").value_parser(path).help("The bcd program, on the machine"))
        .arg(Arg::new("url").long("url").value_name("URL").value_parser(https).requires("sha256").help("Where to download bcd"))
        .group(ArgGroup::new("program").args(["binary", "url"]).required(true))
        .arg(Arg::new("sha256").long("sha256").value_name("HEX").value_parser(hex).help("What the program must hash to"))
        .arg(
            Arg::new("gateway")
                .long("gateway")
                .value_name("URL")
                .value_parser(https)
                .requires_all(["serving-ca-pin", "join-signing-pin", "join-encryption-pin"])
                .help("https://host:port of the gateway"),
        )
        .arg(Arg::new("server-name").long("server-name").value_name("NAME").value_parser(host).help("The name in the gateway's certificate, when it is reached by another"))
        .arg(pin("serving-ca-pin", "Pin of the authority of the gateway's certificate; may be repeated"))
        .arg(pin("join-signing-pin", "Pin of the key that signs join answers; may be repeated"))
        .arg(
            Arg::new("join-encryption-pin")
                .long("join-encryption-pin")
                .value_name("SHA256")
                .value_parser(hex)
                .help("Pin of the key that join tokens are sealed to"),
        )
        .arg(Arg::new("join-key").long("join-key").value_name("FILE").help("That key as a JWK; without it bcd asks --server for it"))
        .arg(Arg::new("server").long("server").value_name("URL").value_parser(https).help("Where bcd finds /.well-known/better-compute"))
        .arg(Arg::new("site").long("site").value_name("NAME").value_parser(name).help("Shown on the machine; its join token decides"))
        .arg(Arg::new("role").long("role").value_parser(["node", "site"]).default_value("node").help("What the machine is"))
        .arg(Arg::new("context").long("context").value_name("NAME").help("Asks the server of this context"));
    Command::new("daemon")
        .about("The daemon of a machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(script)
}

// What goes into the script is of characters that mean nothing to a shell.

fn hex(text: &str) -> Result<String, String> {
    let fits =
        text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if fits { Ok(text.to_owned()) } else { Err("expected 64 characters of 0-9 and a-f".to_owned()) }
}

fn https(text: &str) -> Result<String, String> {
    let plain =
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!&()*+,;=%".contains(&byte));
    let host = text.strip_prefix("https://").unwrap_or_default();
    match plain && !host.is_empty() && !host.starts_with('/') && text.len() <= 2048 {
        true => Ok(text.to_owned()),
        false => Err("expected an https:// URL".to_owned()),
    }
}

fn host(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte));
    if plain && !text.is_empty() && text.len() <= 253 {
        Ok(text.to_owned())
    } else {
        Err("expected a host name".to_owned())
    }
}

fn name(text: &str) -> Result<String, String> {
    model::label::check_name(text).map(|()| text.to_owned()).map_err(|err| err.to_string())
}

fn path(text: &str) -> Result<String, String> {
    match text.is_empty() || text.len() > 4096 || text.contains(['\n', '\0']) {
        true => Err("expected the path of a file".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// What a machine must know to join.
#[derive(Debug, Default)]
struct Facts {
    gateway: String,
    server_name: Option<String>,
    serving_ca_pins: Vec<String>,
    join_signing_pins: Vec<String>,
    join_encryption_pin: String,
    join_key: Option<String>,
    server: Option<String>,
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let (_, matches) = matches.subcommand().expect("clap requires a subcommand");
    let mut facts = match matches.get_one::<String>("gateway") {
        Some(gateway) => given(gateway, matches)?,
        None => asked(matches, shell).await?,
    };
    let one = |name: &str| matches.get_one::<String>(name).cloned();
    facts.server = one("server").or(facts.server);
    if facts.join_key.is_none() && facts.server.is_none() {
        return Err(Failure::usage(
            "bcd needs the join key: give --join-key FILE, or --server URL where it finds it",
        ));
    }
    let script = script(
        &facts,
        one("binary").as_deref(),
        one("url").as_deref(),
        one("sha256").as_deref(),
        one("site").as_deref(),
        &one("role").expect("it has a default"),
    );
    shell.out(&script)?;
    Ok(0)
}

fn given(gateway: &str, matches: &ArgMatches) -> Result<Facts, Failure> {
    let many = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect();
    let join_key = match matches.get_one::<String>("join-key") {
        Some(file) => {
            let bytes = kit::fs::read_bounded(std::path::Path::new(file), 16 * 1024)
                .map_err(|err| Failure::usage(kit::chain(&err)))?;
            Some(jwk(&String::from_utf8_lossy(&bytes))?)
        }
        None => None,
    };
    Ok(Facts {
        gateway: gateway.to_owned(),
        server_name: matches.get_one::<String>("server-name").cloned(),
        serving_ca_pins: many("serving-ca-pin"),
        join_signing_pins: many("join-signing-pin"),
        join_encryption_pin: matches.get_one::<String>("join-encryption-pin").cloned().unwrap_or_default(),
        join_key,
        server: None,
    })
}

/// From `system.info`. What the server says is held to the same characters as what a person gives.
async fn asked(matches: &ArgMatches, shell: &mut Shell) -> Result<Facts, Failure> {
    let target = context::resolve(matches.get_one::<String>("context").map(String::as_str), shell)?;
    let row = api::find("system.info").expect("the table has it");
    let info = target.client(shell)?.call_value(row, json!({})).await.map_err(|error| Failure::Call {
        error,
        method: row,
        request: json!({}),
    })?;
    let join = info.get("join").filter(|join| join.is_object()).ok_or_else(|| Failure::Local {
        message: "the server publishes no gateway".to_owned(),
        help: "give --gateway and the pins".to_owned(),
    })?;
    let strange =
        |what: &'static str| move |err: String| Failure::local(format!("the server's {what}: {err}"));
    let pins = |name: &'static str| hex(&at(join, name)).map(|pin| vec![pin]).map_err(strange(name));
    let key = at(join, "joinEncryptionKey");
    let name = at(join, "serverName");
    Ok(Facts {
        gateway: https(&at(join, "gatewayUrl")).map_err(strange("gatewayUrl"))?,
        server_name: if name.is_empty() { None } else { Some(host(&name).map_err(strange("serverName"))?) },
        serving_ca_pins: pins("servingCaPin")?,
        join_signing_pins: pins("joinSigningPin")?,
        join_encryption_pin: hex(&at(join, "joinEncryptionPin")).map_err(strange("joinEncryptionPin"))?,
        join_key: if key.is_empty() { None } else { Some(jwk(&key)?) },
        // Only https: bcd takes the key from nowhere else.
        server: https(&target.url).ok(),
    })
}

/// A public JWK, written again in one line of its own making.
fn jwk(text: &str) -> Result<String, Failure> {
    let bad = || Failure::usage("the join key is not a public JWK");
    let key: Value = serde_json::from_str(text.trim()).map_err(|_| bad())?;
    let map = key.as_object().ok_or_else(bad)?;
    let plain = |value: &Value| {
        value.as_str().is_some_and(|text| {
            text.len() <= 512
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_+./=".contains(&byte))
        })
    };
    if !map.contains_key("kty") || map.contains_key("d") || !map.values().all(plain) {
        return Err(bad());
    }
    Ok(key.to_string())
}

/// The script. Pure.
fn script(
    facts: &Facts,
    binary: Option<&str>,
    url: Option<&str>,
    sha256: Option<&str>,
    site: Option<&str>,
    role: &str,
) -> String {
    let join_key = match &facts.join_key {
        Some(key) => {
            format!("    put 0644 \"$CONFIG_DIR/join-encryption.jwk\" <<'END_OF_KEY'\n{key}\nEND_OF_KEY")
        }
        None => String::new(),
    };
    // A site agent serves DHCP and TFTP.
    let more = if role == "site" { " CAP_NET_BIND_SERVICE CAP_NET_RAW" } else { "" };
    let unit = UNIT.trim_end().replace("@ROLE_CAPABILITIES@", more).replace("@ROLE@", role);
    let word = |text: Option<&str>| single_quoted(text.unwrap_or_default());
    let first = |pins: &[String]| word(pins.first().map(String::as_str));
    SCRIPT
        .replace("@BINARY@", &word(binary))
        .replace("@URL@", &word(url))
        .replace("@SHA256@", &word(sha256))
        // With the key at hand there is nothing to ask for.
        .replace("@SERVER@", &word(facts.server.as_deref().filter(|_| facts.join_key.is_none())))
        .replace("@SERVING_CA_PIN@", &first(&facts.serving_ca_pins))
        .replace("@JOIN_SIGNING_PIN@", &first(&facts.join_signing_pins))
        .replace("@JOIN_ENCRYPTION_PIN@", &word(Some(&facts.join_encryption_pin)))
        .replace("@ROLE@", &word(Some(role)))
        .replace("@CONFIG@", config(facts, site).trim_end())
        .replace("@JOIN_KEY@\n", &if join_key.is_empty() { join_key } else { join_key + "\n" })
        .replace("@UNIT_FILE@", &unit)
}

fn config(facts: &Facts, site: Option<&str>) -> String {
    let list = |pins: &[String]| {
        format!("[{}]", pins.iter().map(|pin| format!("\"{pin}\"")).collect::<Vec<_>>().join(", "))
    };
    let mut text = String::new();
    if let Some(site) = site {
        text.push_str(&format!("site = \"{site}\"\n"));
    }
    text.push_str(&format!("\n[gateway]\nurl = \"{}\"\n", facts.gateway));
    if let Some(name) = &facts.server_name {
        text.push_str(&format!("server_name = \"{name}\"\n"));
    }
    text.push_str(&format!(
        "serving_ca_pins = {}\njoin_signing_pins = {}\njoin_encryption_key_pin = \"{}\"\n",
        list(&facts.serving_ca_pins),
        list(&facts.join_signing_pins),
        facts.join_encryption_pin
    ));
    text.trim_start().to_owned()
}

fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests;
