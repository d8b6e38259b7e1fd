//! A deployment as it runs in production: `better-compute serve` processes in chosen roles over one PostgreSQL, and
//! simulated machines in a process of their own.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::{Client, ClientError};
use kit::{OsRng, SystemClock};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::TestDb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, MutexGuard};

use crate::program::{self, Done, Running};

mod balancer;
mod host;
mod namespace;
mod watch;

pub use balancer::{Balancer, Target};
pub use host::{Host, POOL};
pub use namespace::Namespace;
pub use watch::Written;

/// The name in every gateway's certificate, by whatever address it is reached.
pub const GATEWAY_NAME: &str = "gateway.e2e.test";
/// Debug builds on two busy cores.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Joining and the diagnosis of a few machines.
const FLEET_WITHIN: Duration = Duration::from_secs(90);

/// Several processes each: one at a time, so that time limits mean something.
static TURN: Mutex<()> = Mutex::const_new(());

pub struct Cloud {
    pub db: TestDb,
    dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// What one `serve` process is given.
pub struct Serve<'a> {
    pub name: &'a str,
    pub roles: &'a [&'a str],
    pub database_url: &'a str,
    pub gateway_url: Option<&'a str>,
    pub gateway_listen: SocketAddr,
    pub namespace: Option<&'a Namespace>,
}

impl<'a> Serve<'a> {
    pub fn new(name: &'a str, roles: &'a [&'a str], database_url: &'a str) -> Self {
        let gateway_listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { name, roles, database_url, gateway_url: None, gateway_listen, namespace: None }
    }
}

/// A `serve` process.
pub struct Server {
    pub running: Running,
    pub api: Option<String>,
    pub gateway: Option<SocketAddr>,
    pub ops: SocketAddr,
    pub log: PathBuf,
}

impl Server {
    /// What its listener for health and metrics answers, headers and all.
    pub async fn ops(&self, path: &str) -> anyhow::Result<String> {
        let mut socket = tokio::net::TcpStream::connect(self.ops).await?;
        socket.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// A `bcd sim` process.
pub struct Sim {
    pub running: Running,
    pub log: PathBuf,
    /// One folder for each machine, by its number.
    pub machines: PathBuf,
}

impl Sim {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Cloud {
    /// A migrated database, new keys and the first administrator; nothing runs yet.
    pub async fn new() -> anyhow::Result<Self> {
        let turn = TURN.lock().await;
        let cloud = Self {
            db: testkit::db().await,
            dir: tempfile::Builder::new().prefix("bc-e2e-").tempdir()?,
            _turn: turn,
        };
        let pki = cloud.pki();
        let pki = pki.to_str().context("a plain path")?;
        let names = ["--gateway-name", GATEWAY_NAME];
        cloud
            .run(&[&["pki", "init", "--dir", pki, "--trust-domain", "e2e.test"], &names[..]].concat())?
            .ok()?;
        let url = cloud.db.url.clone();
        let config = cloud.config(&Serve::new("admin", &[], &url))?;
        let config = config.to_str().context("a plain path")?;
        cloud.run(&["migrate", "--config", config])?.ok()?;
        let token = cloud.admin_token();
        let token = token.to_str().context("a plain path")?;
        cloud.run(&["init", "--config", config, "--token-file", token])?.ok()?;
        Ok(cloud)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn pki(&self) -> PathBuf {
        self.dir().join("pki")
    }

    pub fn admin_token(&self) -> PathBuf {
        self.dir().join("admin.token")
    }

    /// Runs `better-compute ARGS` with a home folder of this deployment.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<Done> {
        self.run_with(args, &[])
    }

    /// The same as the holder of a token.
    pub fn cli(&self, api: &Api, token_file: &Path, args: &[&str]) -> anyhow::Result<Done> {
        let token_file = token_file.to_str().context("a plain path")?;
        self.run_with(args, &[("BETTER_COMPUTE_URL", &api.url), ("BETTER_COMPUTE_TOKEN_FILE", token_file)])
    }

    fn run_with(&self, args: &[&str], vars: &[(&str, &str)]) -> anyhow::Result<Done> {
        let output = Command::new(program::path("better-compute")?)
            .args(args)
            .env("HOME", self.dir())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("BETTER_COMPUTE_CONFIG")
            .envs(vars.iter().copied())
            .stdin(Stdio::null())
            .output()?;
        Ok(output.into())
    }

    /// The database under another user, or by another way.
    pub fn url(&self, login: Option<(&str, &str)>, at: Option<SocketAddr>) -> anyhow::Result<String> {
        let rest = self.db.url.strip_prefix("postgres://").context("a URL of the database")?;
        let (owner, place) = rest.rsplit_once('@').context("a URL with a user")?;
        let user = login.map_or_else(|| owner.to_owned(), |(user, password)| format!("{user}:{password}"));
        Ok(match at {
            None => format!("postgres://{user}@{place}"),
            // Through a forwarder of the test, which the server takes for a local socket.
            Some(at) => format!("postgres://{user}@{at}/{}?sslmode=disable", self.db.name()),
        })
    }

    /// The server's own socket.
    pub fn database_socket(&self) -> anyhow::Result<PathBuf> {
        let rest = self.db.url.rsplit_once('@').context("a URL with a user")?.1;
        let folder = rest.split('/').next().unwrap_or_default().replace("%2F", "/").replace("%25", "%");
        Ok(Path::new(&folder).join(".s.PGSQL.5432"))
    }

    /// Writes a configuration and the files it names.
    pub fn config(&self, serve: &Serve<'_>) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(serve.name);
        kit::fs::create_dir(&dir, 0o700)?;
        let url_file = dir.join("url");
        kit::fs::write_atomic(&url_file, serve.database_url.as_bytes(), 0o600)?;
        let mut text = format!(
            "roles = {:?}\ndata_dir = {:?}\n[database]\nurl_file = {url_file:?}\n",
            serve.roles,
            dir.join("data")
        );
        if let Some(url) = serve.gateway_url {
            let file = dir.join("gateway-url");
            kit::fs::write_atomic(&file, url.as_bytes(), 0o600)?;
            text.push_str(&format!("gateway_url_file = {file:?}\n"));
        }
        text.push_str(&format!(
            "[pki]\ndir = {:?}\n[api]\nlisten = \"127.0.0.1:0\"\n[gateway]\nlisten = \"{}\"\n\
             [ops]\nlisten = \"127.0.0.1:0\"\n",
            self.pki(),
            serve.gateway_listen
        ));
        let path = dir.join("config.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Starts a process and waits until it takes work.
    pub fn serve(&self, serve: &Serve<'_>) -> anyhow::Result<Server> {
        let config = self.config(serve)?;
        let log = config.with_file_name("log");
        let file = File::create(&log)?;
        let program = program::path("better-compute")?;
        let mut command = match serve.namespace {
            Some(namespace) => namespace.command(&program),
            None => Command::new(program),
        };
        command
            .args(["serve", "--config"])
            .arg(&config)
            .env_remove("RUST_LOG")
            .stdout(file.try_clone()?)
            .stderr(file);
        let mut running = Running::start(serve.name, &mut command)?;
        let line = wait_line(&mut running, &log, " serving ")?;
        let field = |name: &str| {
            let (_, after) = line.split_once(&format!(" {name}=\""))?;
            Some(after.split_once('"')?.0.to_owned())
        };
        let gateway = field("gateway").map(|address| address.parse()).transpose()?;
        let ops = field("ops").context("it tells where its health is")?.parse()?;
        Ok(Server { running, api: field("api"), gateway, ops, log })
    }

    /// The administrator's client.
    pub fn api(&self, server: &Server) -> anyhow::Result<Api> {
        let url = server.api.clone().context("this process has no API")?;
        Api::new(url, &std::fs::read_to_string(self.admin_token())?)
    }

    /// Starts machines that dial `gateway`, and waits until they take work.
    pub async fn sim(&self, api: &Api, gateway: SocketAddr, nodes: u32) -> anyhow::Result<Sim> {
        api.ok("sites.create", json!({ "name": "e2e" })).await?;
        api.ok("pools.create", json!({ "name": "gpu", "class": "gpu" })).await?;
        let request = json!({ "site": "e2e", "pool": "gpu", "usesMax": nodes, "expiresInHours": 1 });
        let made = api.ok("joinTokens.create", request).await?;
        let token = made["secret"].as_str().context("the token's secret")?;
        let sim = self.start_sim(gateway, nodes, token)?;
        let wanted = usize::try_from(nodes)?;
        eventually(FLEET_WITHIN, "every machine is ready", async || {
            let listed = api.ok("nodes.list", json!({ "limit": 200 })).await?;
            let states: Vec<_> = items(&listed).iter().map(|node| node["state"].clone()).collect();
            let ready = states.iter().filter(|state| *state == "ready").count();
            Ok(if ready == wanted { Ok(()) } else { Err(format!("{states:?}")) })
        })
        .await?;
        Ok(sim)
    }

    /// Starts machines and waits only until they have joined.
    pub fn start_sim(&self, gateway: SocketAddr, nodes: u32, token: &str) -> anyhow::Result<Sim> {
        let pins: Value = serde_json::from_slice(&std::fs::read(self.pki().join("public/pins.json"))?)?;
        start_sim(&self.dir().join("machines"), gateway, GATEWAY_NAME, &pins, nodes, token)
    }
}

/// A `bcd sim` below `dir`, by the pins that `pki init` publishes.
pub fn start_sim(
    dir: &Path,
    gateway: SocketAddr,
    server_name: &str,
    pins: &Value,
    nodes: u32,
    token: &str,
) -> anyhow::Result<Sim> {
    kit::fs::create_dir(dir, 0o700)?;
    std::fs::write(dir.join("join-encryption.jwk"), pins["joinEncryptionJwk"].to_string())?;
    let config = dir.join("config.toml");
    let text = format!(
        "data_dir = {dir:?}\n[gateway]\nurl = \"https://{gateway}\"\nserver_name = {server_name:?}\n\
         serving_ca_pins = [{}]\njoin_signing_pins = [{}]\njoin_encryption_key_pin = {}\n",
        pins["servingCaPin"], pins["joinSigningPin"], pins["joinEncryptionPin"],
    );
    std::fs::write(&config, text)?;
    let log = dir.join("log");
    let file = File::create(&log)?;
    let mut command = Command::new(program::path("bcd")?);
    command
        .args(["sim", "--nodes", &nodes.to_string(), "--config"])
        .arg(&config)
        .env("BCD_JOIN_TOKEN", token)
        .env_remove("RUST_LOG")
        .stdout(file.try_clone()?)
        .stderr(file);
    let mut running = Running::start("bcd sim", &mut command)?;
    wait_line(&mut running, &log, " machines (seeds ")?;
    Ok(Sim { running, log, machines: dir.join("sim") })
}

/// Calls as the holder of one token.
#[derive(Clone)]
pub struct Api {
    pub url: String,
    client: Client,
}

impl Api {
    pub fn new(url: String, token: &str) -> anyhow::Result<Self> {
        let config = client::Config::new(&url).token(token.trim());
        let client = Client::new(config, Arc::new(SystemClock::new()), Arc::new(OsRng))?;
        Ok(Self { url, client })
    }

    /// `reservations.create`, and what comes of it.
    pub async fn call(&self, method: &str, body: Value) -> Result<Value, ClientError> {
        let row = api::find(method).unwrap_or_else(|| panic!("{method} is no method"));
        self.client.call_value(row, body).await
    }

    /// The same, and it has to succeed.
    pub async fn ok(&self, method: &str, body: Value) -> anyhow::Result<Value> {
        let done = self.call(method, body).await;
        done.map_err(|err| anyhow::anyhow!("{}", kit::chain(&err))).with_context(|| method.to_owned())
    }
}

/// The rows of a list.
pub fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Asks until the answer is yes, and says what it saw last when the time is over.
pub async fn eventually<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(seen) if started.elapsed() > within => {
                bail!("{what}: not within {within:?}; last seen: {seen}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn wait_line(running: &mut Running, log: &Path, wanted: &str) -> anyhow::Result<String> {
    let started = Instant::now();
    loop {
        let text = std::fs::read_to_string(log)?;
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        if let Some(line) = whole.lines().find(|line| line.contains(wanted)) {
            return Ok(line.to_owned());
        }
        if let Some(status) = running.has_ended()? {
            bail!("it ended ({status}) before it was ready:\n{text}");
        }
        if started.elapsed() > READY_WITHIN {
            bail!("not ready within {READY_WITHIN:?}:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
