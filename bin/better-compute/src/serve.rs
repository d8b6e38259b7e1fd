//! The production commands: `serve`, `migrate`, `init`, `pki` and `doctor`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use kit::{Clock, OsRng, Rng, Supervisor, SystemClock};
use store::{Secret, Store, StoreConfig};
use tracing_subscriber::EnvFilter;

mod config;
mod doctor;

use config::ServeConfig;

use crate::keys::KeyFolder;
use crate::plane::{self, PlaneConfig, Roles};

const CONFIG_PATH: &str = "/etc/better-compute/config.toml";
const STOP_PATIENCE: Duration = Duration::from_secs(30);
const ADMIN_TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

pub fn commands() -> Vec<Command> {
    let config = || {
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .default_value(CONFIG_PATH)
            .value_parser(value_parser!(PathBuf))
            .help("The configuration")
    };
    let dir = || {
        Arg::new("dir")
            .long("dir")
            .value_name("DIR")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("The folder of the keys")
    };
    vec![
        Command::new("serve")
            .about("Runs the control plane in the roles that its configuration names")
            .arg(config()),
        Command::new("migrate").about("Brings the database's schema up to this program").arg(config()),
        Command::new("init")
            .about("Makes the first administrator, whose token is written to a file")
            .arg(config())
            .arg(
                Arg::new("token-file")
                    .long("token-file")
                    .value_name("FILE")
                    .required(true)
                    .value_parser(value_parser!(PathBuf))
                    .help("Where the token goes; the file must not exist"),
            ),
        Command::new("doctor")
            .about("Checks the configuration, the keys and the database, and says what to mend")
            .arg(config()),
        Command::new("pki")
            .about("Makes and shows a deployment's keys")
            .subcommand_required(true)
            .subcommand(
                Command::new("init")
                    .about("Makes every key and certificate of a new deployment")
                    .arg(dir())
                    .arg(
                        Arg::new("trust-domain")
                            .long("trust-domain")
                            .value_name("DOMAIN")
                            .required(true)
                            .help("The domain in the machines' SPIFFE ids"),
                    )
                    .arg(
                        Arg::new("gateway-name")
                            .long("gateway-name")
                            .value_name("NAME")
                            .required(true)
                            .num_args(1..)
                            .help("DNS names and addresses of the gateways; machines check the first"),
                    ),
            )
            .subcommand(Command::new("pins").about("Prints the pins that machines join with").arg(dir()))
            .subcommand(
                Command::new("ssh-ca")
                    .about("Shows the key that signs SSH certificates for nodes, and makes it when there is none")
                    .after_help(
                        "After a replacement, restart the control plane. Nodes trust the key before for as long as a\n\
                         certificate of it is good: where it is in wrong hands, revoke those too (nodes revoke-ssh-cert).",
                    )
                    .arg(dir())
                    .arg(
                        Arg::new("replace")
                            .long("replace")
                            .action(ArgAction::SetTrue)
                            .help("Makes another in its place"),
                    ),
            )
            .subcommand(
                Command::new("add-secrets-key")
                    .about("Adds a key to those that secrets are kept by: the first one, or the next, which keeps from then on")
                    .arg(dir()),
            ),
    ]
}

pub async fn run(name: &str, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if name == "pki" {
        return pki(matches);
    }
    let path: &PathBuf = matches.get_one("config").expect("it has a default");
    if name == "doctor" {
        return doctor::run(path).await;
    }
    let config = config::load(path)?;
    logs_as(config.log_level(), config.log_json());
    match name {
        "serve" => serve(config).await,
        "migrate" => {
            let store = Store::open(config.database()?).await?;
            store::migrate::run(&store).await?;
            println!("the schema is at version {}", store::migrate::embedded().len());
            Ok(ExitCode::SUCCESS)
        }
        "init" => {
            let token_file: &PathBuf = matches.get_one("token-file").expect("clap requires it");
            init(&config, token_file).await
        }
        other => anyhow::bail!("no command {other:?}"),
    }
}

async fn serve(config: ServeConfig) -> anyhow::Result<ExitCode> {
    let supervisor = Supervisor::new();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng: Arc<dyn Rng> = Arc::new(OsRng);
    let roles = config.roles()?;
    let gateway_store = Store::open(plane::gateway_store(config.gateway_database()?)).await?;
    let store = match roles == Roles::GATEWAY {
        true => gateway_store.clone(),
        false => Store::open(config.database()?).await?,
    };
    store::migrate::check(&store)
        .await
        .context("the database's schema is not this program's; run: better-compute migrate")?;
    let plane = plane::start(
        PlaneConfig {
            roles,
            gateway_store,
            store,
            keys: KeyFolder::open(&config.pki.dir)?,
            record_dir: config.data_dir()?,
            images_dir: config.data_dir()?.join(plane::IMAGES_FOLDER),
            api: config.api()?,
            limits: config.limits(),
            ops: config.ops()?,
            gateway_listen: config.gateway_listen(),
            gateway_url: config.gateway_url(),
            gateway_own_url: config.gateway_own_url(),
            clock,
            rng,
        },
        &supervisor,
    )
    .await?;
    let text = |address: Option<std::net::SocketAddr>| address.map(|address| address.to_string());
    tracing::info!(api = plane.api, gateway = text(plane.gateway), ops = text(plane.ops), "serving");
    // Both arms are cancel-safe: the signal stays pending, the token stays cancelled.
    tokio::select! {
        name = kit::signal::stop_signal() => tracing::info!(signal = name?, "stopping"),
        () = supervisor.token().cancelled_owned() => {}
    }
    supervisor.shutdown(STOP_PATIENCE).await;
    match supervisor.fatal() {
        Some(why) => anyhow::bail!("{why}"),
        None => Ok(ExitCode::SUCCESS),
    }
}

async fn init(config: &ServeConfig, token_file: &Path) -> anyhow::Result<ExitCode> {
    if token_file.exists() {
        anyhow::bail!("{} exists; nothing was changed", token_file.display());
    }
    let store = Store::open(config.database()?).await?;
    store::migrate::check(&store)
        .await
        .context("the database's schema is not this program's; run: better-compute migrate")?;
    let made =
        iam::bootstrap(&store, &OsRng, &pki::OsEntropy, ADMIN_TOKEN_LIFETIME).await.map_err(plane::fault)?;
    let Some(made) = made else {
        anyhow::bail!("there is an administrator already");
    };
    kit::fs::create_exclusive(token_file, made.secret.as_bytes(), 0o600)?;
    println!(
        "made tenant {} and user {}; the token is in {} and expires {}",
        made.tenant_id,
        made.user_id,
        token_file.display(),
        made.expires_at
    );
    Ok(ExitCode::SUCCESS)
}

fn pki(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (name, matches) = matches.subcommand().context("clap requires a subcommand")?;
    let dir: &PathBuf = matches.get_one("dir").expect("clap requires it");
    let folder = match name {
        "ssh-ca" => {
            let key = KeyFolder::open(dir)?.make_ssh_ca(matches.get_flag("replace"))?;
            println!("{}", key.line());
            return Ok(ExitCode::SUCCESS);
        }
        "add-secrets-key" => {
            let id = KeyFolder::open(dir)?.add_secrets_key(&OsRng)?;
            eprintln!("added {id} in {}", dir.join("worker").display());
            eprintln!(
                "  next  copy the file secrets.kek to every server with worker keys, and start them again"
            );
            return Ok(ExitCode::SUCCESS);
        }
        "init" => {
            let domain: &String = matches.get_one("trust-domain").expect("clap requires it");
            let names: Vec<String> =
                matches.get_many("gateway-name").into_iter().flatten().cloned().collect();
            let folder = KeyFolder::create(dir, domain, &names, &SystemClock::new(), &OsRng)?;
            eprintln!("made the keys of {} in {}", folder.deployment.deployment_id, dir.display());
            eprintln!(
                "  next  move {} off this server: it is needed only to certify worker keys and gateways",
                dir.join("root").display()
            );
            folder
        }
        _ => KeyFolder::open(dir)?,
    };
    let pins = folder.public_pins()?;
    println!("serving-ca-pin       {}", pins.serving_ca_pin);
    println!("join-signing-pin     {}", pins.join_signing_pin);
    println!("join-encryption-pin  {}", pins.join_encryption_pin);
    Ok(ExitCode::SUCCESS)
}

/// Structured logs on standard error, for people; `RUST_LOG` decides when it is set.
pub fn logs(level: &str) {
    logs_as(level, false);
}

fn logs_as(level: &str, json: bool) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},h2=warn,hyper=warn,tokio_postgres=warn")));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match json {
        true => builder.json().flatten_event(true).try_init(),
        false => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_target(false)
            .try_init(),
    };
}

/// A database by a URL that is a secret, since it may hold a password.
pub(crate) fn database(url: Secret, application_name: &str) -> StoreConfig {
    let mut config = StoreConfig::new(url);
    config.application_name = application_name.to_owned();
    config
}
