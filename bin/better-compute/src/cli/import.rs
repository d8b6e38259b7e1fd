//! `images import FILE`: announces an image and sends its file, from where an earlier try broke off.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::MethodRow;
use bytes::Bytes;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use client::{Client, ClientError, ContentBytes};
use futures::StreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::output::Output;
use super::{Failure, Shell, api_command, context, flags, request};

const GROUP: &str = "images";
const PIECE_BYTES: usize = 256 * 1024;
/// Broken connections in a row, with nothing that came in between, after which it ends.
const BREAKS_MAX: u32 = 5;
const BREAK_PAUSE: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// What the file itself says need not be given.
const FROM_THE_FILE: [&str; 4] = ["sha256", "sizeBytes", "name", "format"];

pub fn command(row: &'static MethodRow) -> Command {
    let mut command = flags::command(row)
        .about("Sends a file to the control plane's own store, from which hosts fetch it")
        .arg(
            Arg::new("file")
                .index(1)
                .required(true)
                .value_name("FILE")
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(PathBuf))
                .help("A disk image: qcow2, raw or iso"),
        );
    for name in FROM_THE_FILE {
        command = command.mut_arg(name, |arg| {
            // The file is always given.
            let arg = arg.required_unless_present("file");
            match name {
                "name" => arg.long("name").help("Unique in its tenant: the file's own when not given"),
                "format" => arg.help("What the file says it is when not given"),
                _ => arg.hide(true),
            }
        });
    }
    command
}

pub async fn run(row: &'static MethodRow, matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires it");
    let output = Output::of(matches)?;
    let mut wanted = request::build(row, matches, shell)?;
    let target = context::resolve(matches.get_one::<String>("context").map(String::as_str), shell)?;
    api_command::add_tenant(row, &mut wanted, target.tenant.as_deref());
    let (sha256, size) = digest(path)?;
    wanted["sha256"] = sha256.clone().into();
    wanted["sizeBytes"] = size.into();
    if wanted.get("format").is_none() {
        wanted["format"] = format_of(path)?.into();
    }
    if wanted.get("name").is_none() {
        wanted["name"] = name_of(path)?.into();
    }
    let wanted = request::check(row, wanted)?;
    let client = target.client(shell)?;
    let image = announced(row, &wanted, &client).await?;
    let id = image["id"].as_str().unwrap_or_default().to_owned();
    let image = match image["state"].as_str() {
        Some("ready") => image,
        _ => send(row, &wanted, &client, &id, path, size, shell).await?,
    };
    api_command::answered(row, &image, &output, shell)
}

/// The image, also when an earlier try announced it: one of the same name with the same bytes.
async fn announced(row: &'static MethodRow, wanted: &Value, client: &Client) -> Result<Value, Failure> {
    let failure = match api_command::send(row, wanted, client).await {
        Ok(image) => return Ok(image),
        Err(failure) => failure,
    };
    let is_conflict = matches!(&failure, Failure::Call { error, .. }
        if error.refusal().is_some_and(|refusal| refusal.problem.code == "CONFLICT"));
    if !is_conflict {
        return Err(failure);
    }
    let list = api::find("images.list").expect("the table has it");
    let mut asked = json!({ "limit": 200 });
    if let Some(tenant) = wanted.get("tenant") {
        asked["tenant"] = tenant.clone();
    }
    let images = api_command::send(list, &asked, client).await?;
    let same = |image: &&Value| {
        ["name", "sha256", "format", "sizeBytes"].iter().all(|field| image.get(field) == wanted.get(field))
    };
    images["items"].as_array().and_then(|items| items.iter().find(same)).cloned().ok_or(failure)
}

/// Sends what is missing, over as many connections as it takes. Gives the image.
async fn send(
    row: &'static MethodRow,
    wanted: &Value,
    client: &Client,
    id: &str,
    path: &Path,
    size: u64,
    shell: &mut Shell,
) -> Result<Value, Failure> {
    let (mut offset, mut breaks) = (0, 0);
    loop {
        shell.note(&format!("sending {} of {} MiB", (size - offset) / MIB, size.div_ceil(MIB)));
        let bytes = bytes_of(path, offset)?;
        let error = match client.put_content(GROUP, id, offset, size - offset, bytes).await {
            Ok(answer) if answer["image"]["state"] == "ready" => return Ok(answer["image"].clone()),
            Ok(answer) => {
                offset = answer["receivedBytes"].as_u64().unwrap_or(offset);
                continue;
            }
            Err(error) => error,
        };
        match goes_on(&error) {
            Some(Some(at)) if at != offset => (offset, breaks) = (at.min(size), 0),
            Some(_) if breaks < BREAKS_MAX => {
                breaks += 1;
                shell.clock.sleep(BREAK_PAUSE * (1 << breaks)).await;
            }
            Some(_) | None => {
                return Err(Failure::Call { error, method: row, request: wanted.clone() });
            }
        }
    }
}

/// Whether another try may help, and where it would go on, when the server said so.
fn goes_on(error: &ClientError) -> Option<Option<u64>> {
    match error {
        ClientError::Connect { .. } | ClientError::Timeout { .. } | ClientError::Broken { .. } => Some(None),
        error => {
            let problem = &error.refusal()?.problem;
            match problem.code.as_str() {
                "CONFLICT" => Some(problem.details.get("receivedBytes").and_then(Value::as_u64)),
                "UNAVAILABLE" | "RATE_LIMITED" => Some(None),
                _ => None,
            }
        }
    }
}

fn unreadable(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |err| Failure::local(format!("failed to read {path}: {err}"))
}

/// The file's SHA-256 and its length.
fn digest(path: &Path) -> Result<(String, u64), Failure> {
    let mut file = File::open(path).map_err(unreadable(path))?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut buffer).map_err(unreadable(path))? {
            0 if size == 0 => return Err(Failure::usage(format!("{} is empty", path.display()))),
            0 => return Ok((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), size)),
            read => {
                hash.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// What the file says it is: a qcow2 header, an ISO 9660 volume, or nothing that could be told from a disk.
fn format_of(path: &Path) -> Result<&'static str, Failure> {
    let mut file = File::open(path).map_err(unreadable(path))?;
    let mut begin = vec![0; 32_774];
    let mut read = 0;
    while read < begin.len() {
        match file.read(&mut begin[read..]).map_err(unreadable(path))? {
            0 => break,
            more => read += more,
        }
    }
    Ok(match () {
        () if begin.starts_with(b"QFI\xfb") => "qcow2",
        () if &begin[32_769..] == b"CD001" => "iso",
        () => "raw",
    })
}

fn name_of(path: &Path) -> Result<String, Failure> {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    match name.is_empty() {
        true => Err(Failure::usage("give the image a name: --name NAME")),
        false => Ok(name),
    }
}

/// The file from some byte on, in pieces.
fn bytes_of(path: &Path, offset: u64) -> Result<ContentBytes, Failure> {
    let mut file = File::open(path).map_err(unreadable(path))?;
    file.seek(SeekFrom::Start(offset)).map_err(unreadable(path))?;
    let pieces = futures::stream::try_unfold(file, |mut file| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; PIECE_BYTES];
            let read = file.read(&mut buffer)?;
            buffer.truncate(read);
            Ok::<_, std::io::Error>((file, Bytes::from(buffer)))
        });
        let (file, piece) = read.await.map_err(std::io::Error::other)??;
        Ok::<_, std::io::Error>((!piece.is_empty()).then_some((piece, file)))
    });
    Ok(pieces.boxed())
}
