//! `bcd join`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::config::{Config, DATA_DIR};
use agent::join::{
    JoinParts, Joined, Pins, TokenSource, discard, fetch, join, joined_before, read_token, reset,
    stored_encryption_key, write_config,
};
use agent::transport::GrpcLink;
use anyhow::{Context, bail};
use clap::Args;
use kit::{Clock, OsRng, Supervisor, SystemClock};
use model::Role;
use pki::Pin;
use pki::seal::EncryptionKey;

use super::ConfigFlag;
use crate::machine;

#[derive(Args)]
pub struct JoinArgs {
    #[command(flatten)]
    config: ConfigFlag,
    /// Read the token from this file, which is deleted once the join has succeeded.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// node or site.
    #[arg(long, default_value = "node", value_parser = role)]
    role: Role,
    /// Without a configuration: read the gateway from this control plane's well-known document. Needs all three pins.
    #[arg(long, value_name = "URL", requires_all = ["serving_ca_pin", "join_signing_pin", "join_encryption_pin"])]
    server: Option<String>,
    /// SHA-256 of the serving CA's key, 64 hexadecimal characters.
    #[arg(long, value_name = "PIN")]
    serving_ca_pin: Option<Pin>,
    /// SHA-256 of the join-signing key.
    #[arg(long, value_name = "PIN")]
    join_signing_pin: Option<Pin>,
    /// SHA-256 of the join-encryption key.
    #[arg(long, value_name = "PIN")]
    join_encryption_pin: Option<Pin>,
    /// Where the identity is kept when there is no configuration yet.
    #[arg(long, value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// How long to wait for a person's approval, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Put the identity aside, so that this machine can join again. Needs --yes.
    #[arg(long, requires = "yes")]
    reset: bool,
    /// Do what --reset says.
    #[arg(long)]
    yes: bool,
}

fn role(text: &str) -> Result<Role, String> {
    match Role::parse(text) {
        Some(role @ (Role::Node | Role::Site)) => Ok(role),
        _ => Err("it is node or site".into()),
    }
}

/// What a join needs to know of the other side.
struct Target {
    config: Config,
    encryption_key: EncryptionKey,
    /// The configuration came from the well-known document and is to be written.
    fresh: bool,
}

pub async fn run(args: JoinArgs) -> anyhow::Result<ExitCode> {
    let clock = Arc::new(SystemClock::new());
    if args.reset {
        return put_aside(&args, clock.now());
    }
    let target = target(&args).await?;
    let config = &target.config;
    if let Some(identity) = joined_before(&config.data_dir, args.role)? {
        println!(
            "this machine has joined as {} (site {}, role {})",
            identity.node_id,
            identity.site_id,
            identity.role.name()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let source = source(&args);
    let token = read_token(&source, &mut std::io::stdin().lock())?;
    let parts = JoinParts {
        role: args.role,
        hostname: machine::hostname(),
        agent_version: crate::VERSION.to_owned(),
        hardware_key: machine::hardware_key(Path::new("/")),
        data_dir: config.data_dir.clone(),
        join_signing_pins: config.join_signing_pins.clone(),
        encryption_key: target.encryption_key.clone(),
        encryption_key_pin: config.join_encryption_key_pin,
        timeout: Duration::from_secs(args.timeout),
        link: Arc::new(GrpcLink::new(
            config.gateway.clone(),
            config.serving_ca_pins.clone(),
            clock.clone(),
            Supervisor::new(),
        )),
        clock,
        rng: Arc::new(OsRng),
    };
    let joined = join(&parts, &token).await?;
    if target.fresh {
        write_config(&args.config.config, config, &target.encryption_key)?;
    }
    if let TokenSource::File(path) = &source {
        discard(path)?;
    }
    let (Joined::Now(identity) | Joined::Already(identity)) = joined;
    println!("joined as {} (site {}, role {})", identity.node_id, identity.site_id, identity.role.name());
    println!("  next  systemctl enable --now bcd, or: bcd node --config {}", args.config.config.display());
    Ok(ExitCode::SUCCESS)
}

fn source(args: &JoinArgs) -> TokenSource {
    if let Some(path) = &args.token_file {
        return TokenSource::File(path.clone());
    }
    match std::env::var("BCD_JOIN_TOKEN") {
        Ok(token) => TokenSource::Environment(token),
        Err(_) => {
            if std::io::stdin().is_terminal() {
                eprintln!("paste the join token, then press Enter and Ctrl-D");
            }
            TokenSource::Stdin
        }
    }
}

async fn target(args: &JoinArgs) -> anyhow::Result<Target> {
    let path = &args.config.config;
    let config_dir = path.parent().unwrap_or(Path::new("."));
    if path.exists() {
        let config = agent::config::load(path)?;
        check_flags(args, &config)?;
        if let Some(encryption_key) = stored_encryption_key(config_dir)? {
            return Ok(Target { config, encryption_key, fresh: false });
        }
        let Some(server) = &args.server else {
            bail!("there is no join-encryption.jwk beside {}; give --server and the pins", path.display());
        };
        let pins = Pins {
            serving_ca: config.serving_ca_pins.clone(),
            join_signing: config.join_signing_pins.clone(),
            join_encryption: config.join_encryption_key_pin,
        };
        let known = fetch(&client()?, server, &pins, config.data_dir.clone()).await?;
        return Ok(Target { config, encryption_key: known.encryption_key, fresh: false });
    }
    let (Some(server), Some(serving), Some(signing), Some(encryption)) =
        (&args.server, args.serving_ca_pin, args.join_signing_pin, args.join_encryption_pin)
    else {
        bail!(
            "there is no configuration at {}; write one, or give --server with --serving-ca-pin, --join-signing-pin and --join-encryption-pin",
            path.display()
        );
    };
    let pins = Pins { serving_ca: vec![serving], join_signing: vec![signing], join_encryption: encryption };
    let known = fetch(&client()?, server, &pins, args.data_dir.clone()).await?;
    Ok(Target { config: known.config, encryption_key: known.encryption_key, fresh: true })
}

/// Pins given beside a configuration must be the configuration's.
fn check_flags(args: &JoinArgs, config: &Config) -> anyhow::Result<()> {
    let given = [
        (args.serving_ca_pin, config.serving_ca_pins.as_slice(), "--serving-ca-pin"),
        (args.join_signing_pin, config.join_signing_pins.as_slice(), "--join-signing-pin"),
        (
            args.join_encryption_pin,
            std::slice::from_ref(&config.join_encryption_key_pin),
            "--join-encryption-pin",
        ),
    ];
    for (pin, known, flag) in given {
        if pin.is_some_and(|pin| !known.contains(&pin)) {
            bail!("{flag} is another pin than {} holds", args.config.config.display());
        }
    }
    Ok(())
}

/// The document is believed for its pins, not for the connection it came over, so any certificate will do for carrying it.
fn client() -> anyhow::Result<reqwest::Client> {
    reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().context("set up the HTTP client")
}

fn put_aside(args: &JoinArgs, now: model::Timestamp) -> anyhow::Result<ExitCode> {
    let (data_dir, socket) = match agent::config::load(&args.config.config) {
        Ok(config) => (config.data_dir, config.socket_path),
        Err(_) => (args.data_dir.clone(), PathBuf::from(agent::config::SOCKET_PATH)),
    };
    let moved = reset(&data_dir, &socket, now)?;
    if moved.is_empty() {
        println!("there is no identity in {}; nothing to put aside", data_dir.display());
    }
    for path in &moved {
        println!("put aside {}", path.display());
    }
    println!("  next  bcd join");
    Ok(ExitCode::SUCCESS)
}
