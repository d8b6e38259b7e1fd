//! `better-compute dev`: everything on this machine, with simulated nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use kit::{Clock, OsRng, Supervisor, SystemClock};
use serde::Serialize;
use server::ServerConfig;
use sha2::{Digest, Sha256};
use store::Store;
use store::embedded::{Embedded, EmbeddedConfig};
use zeroize::Zeroizing;

use crate::cli::{Context as CliContext, Contexts, Shell};
use crate::keys::KeyFolder;
use crate::plane::{self, PlaneConfig, Roles};

mod folder;
mod nodes;
mod screen;

use folder::Folder;
use screen::Screen;

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_GATEWAY_PORT: u16 = 8443;
const ADMIN_TOKEN_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
const STOP_PATIENCE: Duration = Duration::from_secs(15);
const CONTEXT: &str = "dev";

#[derive(Args)]
pub struct DevArgs {
    /// Forget everything at exit.
    #[arg(long)]
    memory: bool,
    /// How many simulated GPU nodes to run.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=200))]
    sim: u32,
    /// Seed of the first simulated machine; the next ones count up from it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Where everything is kept.
    #[arg(long, value_name = "DIR", default_value = ".better-compute/dev", conflicts_with = "memory")]
    data_dir: PathBuf,
    /// Where the API listens: a loopback address.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
    /// Also join this very machine as a node with its real inventory, which runs virtual machines where libvirt answers.
    #[arg(long)]
    host: bool,
    /// With --host: the libvirt that runs instances. The system's when not given, where it answers.
    #[arg(long, value_name = "URI", requires = "host")]
    libvirt: Option<String>,
    /// With --host: the network in which that libvirt is, when it is not the host's own, like /run/netns/name.
    #[arg(long, value_name = "PATH", requires = "host")]
    network_namespace: Option<PathBuf>,
    /// Write addresses, the CLI's config path and pool ids here as JSON when ready. Holds no secret.
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
}

/// What a script needs to go on.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ready {
    api: String,
    gateway: String,
    cli_config: PathBuf,
    cli_context: &'static str,
    data_dir: PathBuf,
    pools: std::collections::BTreeMap<String, String>,
    nodes: Vec<String>,
    pid: u32,
}

pub async fn run(args: DevArgs) -> anyhow::Result<ExitCode> {
    if !args.listen.ip().is_loopback() {
        bail!(
            "--listen {} is not a loopback address; dev has an administrator's token lying about and listens to this machine alone",
            args.listen
        );
    }
    let folder = Folder::open(&args)?;
    let supervisor = Supervisor::new();
    let mut screen = Screen::new();
    let outcome = serve(&args, &folder, &supervisor, &mut screen).await;
    screen.clear();
    // Agents and sessions first, the database last.
    let clean = supervisor.shutdown(STOP_PATIENCE).await;
    let database = outcome?;
    database.stop().await.context("stop the database")?;
    if let Some(why) = supervisor.fatal() {
        bail!("{why}");
    }
    if clean {
        eprintln!(
            "stopped{}",
            if args.memory { ", and forgotten" } else { "; run it again to find everything as it was" }
        );
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    args: &DevArgs,
    folder: &Folder,
    supervisor: &Supervisor,
    screen: &mut Screen,
) -> anyhow::Result<Embedded> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let database = start_database(args, folder, screen).await?;
    let done = run_on(&database, args, folder, supervisor, screen, &clock).await;
    match done {
        Ok(()) => Ok(database),
        Err(err) => {
            supervisor.shutdown(STOP_PATIENCE).await;
            let _ = database.stop().await;
            Err(err)
        }
    }
}

async fn start_database(args: &DevArgs, folder: &Folder, screen: &mut Screen) -> anyhow::Result<Embedded> {
    let watch = SystemClock::new();
    let config = match args.memory {
        true => EmbeddedConfig::memory(),
        false => EmbeddedConfig::durable(database_dir(&folder.path)?),
    };
    let database = Embedded::start(config).await?;
    let seconds = watch.monotonic().as_secs_f64();
    screen.step(
        "PostgreSQL",
        &format!("private cluster in {} (started in {seconds:.1} s)", shown(database.dir())),
    );
    Ok(database)
}

/// For what runs as another user when the data folder is below one that such may not pass, like /root.
const APART: &str = "/var/lib/better-compute-dev";

fn is_passable(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let passable = |path: &Path| std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o001 != 0);
    dir.ancestors().all(passable)
}

/// In the data folder; as root under a folder that other users may not pass, in a place of the system's.
fn database_dir(data_dir: &Path) -> anyhow::Result<PathBuf> {
    if !rustix::process::geteuid().is_root() || is_passable(data_dir) {
        return Ok(data_dir.join("pg"));
    }
    let name: String = data_dir.to_string_lossy().trim_matches('/').replace('/', "-");
    kit::fs::create_dir(Path::new(APART), 0o711)?;
    Ok(Path::new(APART).join(name))
}

/// Where virtual machines' files are when it is not in the data folder: QEMU's user has to pass, and their consoles' sockets
/// want a short path.
fn instances_dir(data_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    const SHORT: usize = 48;
    if is_passable(data_dir) && data_dir.as_os_str().len() <= SHORT {
        return Ok(None);
    }
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(data_dir.as_os_str().as_encoded_bytes()));
    kit::fs::create_dir(Path::new(APART), 0o711)?;
    Ok(Some(Path::new(APART).join(format!("vm-{a:02x}{b:02x}{c:02x}{d:02x}"))))
}

async fn run_on(
    database: &Embedded,
    args: &DevArgs,
    folder: &Folder,
    supervisor: &Supervisor,
    screen: &mut Screen,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let rng: Arc<dyn kit::Rng> = Arc::new(OsRng);
    let store = Store::open(database.store_config(Embedded::DATABASE)).await?;
    store::migrate::run(&store).await?;
    screen.step("migrations", &format!("{} known, all applied", store::migrate::embedded().len()));

    let keys_dir = folder.path.join("pki");
    let keys = match KeyFolder::exists(&keys_dir) {
        true => KeyFolder::open(&keys_dir)?,
        false => {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
            KeyFolder::create(&keys_dir, "dev.better-compute.internal", &names, &**clock, &*rng)?
        }
    };
    keys.make_ssh_ca(false)?;
    if keys.secrets_ring()?.is_none() {
        // Of before there were secrets; nobody else has this folder.
        keys.add_secrets_key(&*rng)?;
    }
    screen.step("keys", &format!("in {}", shown(&keys_dir)));

    let gateway_port = if args.listen.to_string() == DEFAULT_LISTEN { DEFAULT_GATEWAY_PORT } else { 0 };
    let gateway_config = database.store_config(Embedded::DATABASE);
    let pins = keys.public_pins()?;
    let plane = plane::start(
        PlaneConfig {
            roles: Roles::ALL,
            store: store.clone(),
            gateway_store: Store::open(plane::gateway_store(gateway_config)).await?,
            keys: KeyFolder::open(&keys_dir)?,
            record_dir: folder.path.clone(),
            images_dir: folder.path.join(plane::IMAGES_FOLDER),
            api: ServerConfig::new(args.listen),
            limits: kernel::CallLimits::default(),
            ops: None,
            gateway_listen: SocketAddr::new(args.listen.ip(), gateway_port),
            gateway_url: None,
            gateway_own_url: None,
            clock: clock.clone(),
            rng: rng.clone(),
        },
        supervisor,
    )
    .await
    .map_err(taken_port)?;
    let (Some(api), Some(gateway)) = (plane.api, plane.gateway) else {
        bail!("the control plane runs without an API or a gateway");
    };
    screen.step("gateway", &format!("{gateway}, TLS 1.3, pin {}…", &pins.serving_ca_pin[..8]));

    let token_file = admin_token(&store, &folder.path, &*rng).await?;
    let cli_config = store_context(&api, &token_file)?;
    let client = nodes::admin_client(&api, &token_file, clock.clone(), rng.clone())?;
    let site = nodes::prepare(&client, args.host).await?;
    let fleet =
        nodes::start(args, &folder.path, gateway, &keys, &client, &site, supervisor, clock, &rng).await?;
    let names = nodes::wait_ready(&client, &fleet, screen).await?;
    screen.step("nodes", &fleet.describe());

    screen.ready(&api, CONTEXT, args.memory);
    if let Some(path) = &args.ready_file {
        let ready = Ready {
            api: api.clone(),
            gateway: gateway.to_string(),
            cli_config,
            cli_context: CONTEXT,
            data_dir: folder.path.clone(),
            pools: site.pools.clone(),
            nodes: names,
            pid: std::process::id(),
        };
        let json = serde_json::to_vec_pretty(&ready)?;
        kit::fs::write_atomic(&std::path::absolute(path)?, &json, 0o644)?;
    }
    summary(&client, database, supervisor, screen).await
}

/// Until somebody stops it: a line on a terminal that says how things stand.
async fn summary(
    client: &client::Client,
    database: &Embedded,
    supervisor: &Supervisor,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let stop = kit::signal::stop_signal();
    let fatal = supervisor.token();
    tokio::pin!(stop);
    loop {
        // Every arm is cancel-safe: the signal stays pending, the rest is asked again.
        tokio::select! {
            name = &mut stop => {
                screen.clear();
                eprintln!("{}, stopping", name?);
                return Ok(());
            }
            () = fatal.cancelled() => return Ok(()),
            said = database.ended() => bail!("the database ended by itself: {said}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                if screen.is_live() {
                    screen.live(&nodes::summary(client).await);
                }
            }
        }
    }
}

/// The administrator's token, in a file of the data folder that only its owner can read.
async fn admin_token(store: &Store, dir: &Path, rng: &dyn kit::Rng) -> anyhow::Result<PathBuf> {
    let path = dir.join("admin.token");
    let made =
        iam::bootstrap(store, rng, &pki::OsEntropy, ADMIN_TOKEN_LIFETIME).await.map_err(plane::fault)?;
    let secret: Zeroizing<String> = match made {
        Some(made) => made.secret,
        None if path.exists() => return Ok(path),
        // The database knows an administrator whose token file is gone: whoever can read the database may have another.
        None => {
            let made = iam::bootstrap::admin_token(store, rng, &pki::OsEntropy, ADMIN_TOKEN_LIFETIME)
                .await
                .map_err(plane::fault)?;
            made.secret
        }
    };
    kit::fs::remove_if_present(&path)?;
    kit::fs::create_exclusive(&path, secret.as_bytes(), 0o600)?;
    Ok(path)
}

/// Makes the CLI talk to this control plane until another context is chosen.
fn store_context(api: &str, token_file: &Path) -> anyhow::Result<PathBuf> {
    let shell = Shell::of_process();
    let failed = |failure: crate::cli::Failure| anyhow::anyhow!("{failure}");
    let path = Contexts::path(&shell).map_err(failed)?;
    let mut contexts = Contexts::load(&path).map_err(failed)?;
    let context = CliContext {
        url: api.to_owned(),
        token_file: Some(token_file.to_owned()),
        ca_file: None,
        tenant: None,
    };
    contexts.contexts.insert(CONTEXT.to_owned(), context);
    contexts.current = Some(CONTEXT.to_owned());
    contexts.save(&path).map_err(failed)?;
    Ok(path)
}

fn taken_port(err: anyhow::Error) -> anyhow::Error {
    let taken = err.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::AddrInUse)
    });
    match taken {
        true => {
            err.context("another program listens there; stop it, or give --listen 127.0.0.1:0 for free ports")
        }
        false => err,
    }
}

/// A path as a person would write it from here.
fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}
