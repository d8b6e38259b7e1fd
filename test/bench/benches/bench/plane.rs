//! A control plane in a process of its own over a private PostgreSQL that fsyncs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use client::{Client, Config};
use kit::{OsRng, SystemClock};
use serde_json::{Value, json};
use store::embedded::{Embedded, EmbeddedConfig, Size};

use crate::program::{self, Running};
use crate::statements::{self, Counts};

const GATEWAY_NAME: &str = "gateway.bench.test";
/// More than any benchmark makes in a second: what is measured is not the limit of one user.
const CALLS: u32 = 100_000;
const READY_WITHIN: Duration = Duration::from_secs(60);

pub struct Plane {
    pub server: Running,
    pub api: String,
    /// Where a gateway listens, when it has that role.
    pub gateway: String,
    pub pki: PathBuf,
    admin_token: String,
    // Last: the server ends before its database.
    pub database: Embedded,
}

fn database_config(dir: &Path) -> EmbeddedConfig {
    EmbeddedConfig { size: Size::Large, ..EmbeddedConfig::durable(dir.join("pg")) }
}

impl Plane {
    /// Makes keys, a database and the first administrator below `dir`, and starts `serve` in these roles.
    pub fn start(dir: &Path, roles: &[&str]) -> anyhow::Result<Self> {
        Self::over(Embedded::start_blocking(&database_config(dir))?, dir, roles)
    }

    /// The same over a database that counts what it is asked, which costs it something.
    pub fn start_counting(dir: &Path, roles: &[&str]) -> anyhow::Result<Self> {
        Self::over(statements::start(&database_config(dir), Counts::Nested)?, dir, roles)
    }

    fn over(database: Embedded, dir: &Path, roles: &[&str]) -> anyhow::Result<Self> {
        let pki = dir.join("pki");
        let better_compute = program::path("better-compute")?;
        let command = |args: &[&str]| {
            let mut command = Command::new(&better_compute);
            command.args(args).env("HOME", dir).env_remove("RUST_LOG");
            command
        };
        let keys = ["pki", "init", "--trust-domain", "bench.test", "--gateway-name", GATEWAY_NAME, "--dir"];
        program::done(command(&keys).arg(&pki))?;
        let config = configure(dir, &pki, &database, roles)?;
        program::done(command(&["migrate", "--config"]).arg(&config))?;
        let token = dir.join("admin.token");
        program::done(command(&["init", "--config"]).arg(&config).arg("--token-file").arg(&token))?;
        let mut server =
            Running::start(command(&["serve", "--config"]).arg(&config), &dir.join("serve.log"))?;
        let line = server.line(" serving ", READY_WITHIN)?;
        let field = |name: &str| {
            let (_, after) = line.split_once(&format!(" {name}=\""))?;
            Some(after.split_once('"')?.0.to_owned())
        };
        Ok(Self {
            api: field("api").context("the server says where its API is")?,
            gateway: field("gateway").unwrap_or_default(),
            admin_token: std::fs::read_to_string(token)?.trim().to_owned(),
            server,
            pki,
            database,
        })
    }

    pub fn admin(&self) -> anyhow::Result<Api> {
        Api::new(&self.api, &self.admin_token)
    }

    /// Clients with a token and a connection each: one token may make only so many calls a second.
    pub async fn clients(&self, count: usize) -> anyhow::Result<Vec<Api>> {
        let admin = self.admin()?;
        let mut clients = Vec::with_capacity(count);
        for at in 0..count {
            let request = json!({ "name": format!("bench-{at}"), "expiresInHours": 24 });
            let made = admin.ok("tokens.create", request).await?;
            clients.push(Api::new(&self.api, made["secret"].as_str().context("a token's secret")?)?);
        }
        Ok(clients)
    }

    /// What a daemon is configured with to join through the gateway.
    pub fn daemon_config(&self, dir: &Path) -> anyhow::Result<PathBuf> {
        let pins: Value = serde_json::from_slice(&std::fs::read(self.pki.join("public/pins.json"))?)?;
        kit::fs::create_dir(dir, 0o700)?;
        std::fs::write(dir.join("join-encryption.jwk"), pins["joinEncryptionJwk"].to_string())?;
        let text = format!(
            "data_dir = {:?}\nsocket_path = {:?}\n[gateway]\nurl = \"https://{}\"\nserver_name = {GATEWAY_NAME:?}\n\
             serving_ca_pins = [{}]\njoin_signing_pins = [{}]\njoin_encryption_key_pin = {}\n",
            dir.join("data"),
            dir.join("bcd.sock"),
            self.gateway,
            pins["servingCaPin"],
            pins["joinSigningPin"],
            pins["joinEncryptionPin"],
        );
        let config = dir.join("config.toml");
        std::fs::write(&config, text)?;
        Ok(config)
    }
}

fn configure(dir: &Path, pki: &Path, database: &Embedded, roles: &[&str]) -> anyhow::Result<PathBuf> {
    let url = dir.join("database.url");
    kit::fs::write_atomic(&url, database.url(Embedded::DATABASE).reveal().as_bytes(), 0o600)?;
    let config = dir.join("config.toml");
    let text = format!(
        "roles = {roles:?}\ndata_dir = {:?}\n[database]\nurl_file = {url:?}\n[pki]\ndir = {pki:?}\n\
         [api]\nlisten = \"127.0.0.1:0\"\ncalls_per_second = {CALLS}\ncalls_burst = {CALLS}\n[gateway]\nlisten = \"127.0.0.1:0\"\n",
        dir.join("record"),
    );
    std::fs::write(&config, text)?;
    Ok(config)
}

/// Calls under one token over one connection.
#[derive(Clone)]
pub struct Api(Client);

impl Api {
    pub fn new(url: &str, token: &str) -> anyhow::Result<Self> {
        let config = Config::new(url).token(token);
        Ok(Self(Client::new(config, Arc::new(SystemClock::new()), Arc::new(OsRng))?))
    }

    pub async fn ok(&self, method: &str, body: Value) -> anyhow::Result<Value> {
        let row = api::find(method).with_context(|| format!("{method} is no method"))?;
        let done = self.0.call_value(row, body).await;
        done.map_err(|err| anyhow::anyhow!("{method}: {}", kit::chain(&err)))
    }
}
