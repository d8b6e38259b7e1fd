//! `nodes ssh-cert NODE`: has a key certified, puts the certificate beside it, and says how to log in.

use std::path::{Path, PathBuf};

use api::MethodRow;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use serde_json::Value;

use super::output::Output;
use super::text::at;
use super::{Failure, Shell, api_command, context, flags, request};

const READABLE: u32 = 0o644;

pub fn command(row: &'static MethodRow) -> Command {
    flags::command(row)
        .visible_alias("ssh-cert")
        .mut_arg("publicKey", |arg| {
            arg.long("key")
                .value_name("FILE")
                .value_hint(ValueHint::FilePath)
                .help("OpenSSH public key file, like ~/.ssh/id_ed25519.pub, or a key itself")
        })
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(PathBuf))
                .help("Where the certificate goes. Beside the key when not given, where ssh finds it"),
        )
        .after_help(
            "The policy of the node's pool names the accounts: sshAccounts, or --ssh-accounts of pools update.\n\
             Then: better-compute nodes ssh-cert gpu-7 --account root --key ~/.ssh/id_ed25519.pub --reason 'disk full'",
        )
}

pub async fn run(row: &'static MethodRow, matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let output = Output::of(matches)?;
    let mut wanted = request::build(row, matches, shell)?;
    let given = wanted.get("publicKey").and_then(Value::as_str).map(str::to_owned);
    if let Some(given) = &given {
        wanted["publicKey"] = request::ssh_key(given, shell)?.into();
    }
    let wanted = request::check(row, wanted)?;
    let target = context::resolve(matches.get_one::<String>("context").map(String::as_str), shell)?;
    let client = target.client(shell)?;
    let key = given.map(PathBuf::from).filter(|path| path.is_file());
    let out = matches.get_one::<PathBuf>("out").cloned().or_else(|| key.as_deref().and_then(beside));
    let answer = api_command::send(row, &wanted, &client).await?;
    let certificate = answer["certificate"].as_str().unwrap_or_default();
    if let Some(out) = &out {
        write(out, certificate)?;
    }
    if !output.for_people() {
        return api_command::answered(row, &answer, &output, shell);
    }
    let Some(out) = &out else {
        shell.out(&format!("{certificate}\n"))?;
        return Ok(0);
    };
    let (serial, until) = (at(&answer["cert"], "serial"), at(&answer["cert"], "validBefore"));
    shell.note(&format!("the certificate is in {}, serial {serial}, good until {until}", out.display()));
    shell.out(&format!("{}\n", login(&answer, key.as_deref(), out)))?;
    Ok(0)
}

/// Where ssh looks for the certificate of a key: `id_ed25519-cert.pub` for `id_ed25519.pub`.
fn beside(key: &Path) -> Option<PathBuf> {
    let stem = key.file_name()?.to_str()?.strip_suffix(".pub")?;
    Some(key.with_file_name(format!("{stem}-cert.pub")))
}

pub fn write(out: &Path, certificate: &str) -> Result<(), Failure> {
    let line = format!("{certificate}\n");
    kit::fs::write_atomic(out, line.as_bytes(), READABLE)
        .map_err(|err| Failure::local(format!("failed to write {}: {}", out.display(), kit::chain(&err))))
}

/// The line that logs in with it.
fn login(answer: &Value, key: Option<&Path>, out: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
    let mut line = "ssh".to_owned();
    let private =
        key.filter(|key| key.extension().is_some_and(|end| end == "pub")).map(|key| key.with_extension(""));
    if let Some(private) = &private {
        line.push_str(&format!(" -i {}", quoted(private)));
    }
    if key.and_then(beside).as_deref() != Some(out) {
        line.push_str(&format!(" -o CertificateFile={}", quoted(out)));
    }
    format!("{line} {}@{}", at(&answer["cert"], "account"), at(answer, "hostname"))
}
