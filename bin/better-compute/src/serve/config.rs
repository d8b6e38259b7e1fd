//! The configuration of `serve`: strict TOML, each key documented where it is declared.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kernel::CallLimits;
use serde::Deserialize;
use server::{OpsConfig, ServerConfig};
use store::{Secret, StoreConfig};

use super::database;
use crate::plane::Roles;

const FILE_BYTES_MAX: u64 = 256 * 1024;
const URL_BYTES_MAX: u64 = 4096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeConfig {
    /// Some of `api`, `gateway`, `worker`, `scheduler`; all when not given.
    #[serde(default)]
    roles: Vec<String>,
    /// Where the record of the database is kept, by which a restored backup is found out. Default /var/lib/better-compute.
    data_dir: Option<PathBuf>,
    database: DatabaseTable,
    pub pki: PkiTable,
    #[serde(default)]
    api: ApiTable,
    #[serde(default)]
    gateway: GatewayTable,
    ops: Option<OpsTable>,
    #[serde(default)]
    log: LogTable,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatabaseTable {
    /// A file that holds `postgres://user:password@host/database`, readable by its owner alone. Not read by a process that
    /// has only the gateway role.
    url_file: Option<PathBuf>,
    /// The same for the gateway's half, as a user that is a member of `bc_gateway`. The first one, dropped to that role, when
    /// not given; but a process that has only the gateway role needs it.
    gateway_url_file: Option<PathBuf>,
    /// Connections at most.
    pool_size: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PkiTable {
    /// The folder that `pki init` made.
    pub dir: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiTable {
    /// Default 127.0.0.1:8080. An address that is not loopback needs a certificate or trusted proxies.
    listen: Option<SocketAddr>,
    /// PEM, read again when it changes.
    tls_certificates: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    /// Networks whose `X-Forwarded-For` is believed.
    #[serde(default)]
    trusted_proxies: Vec<String>,
    /// Networks that may read `/metrics`, beside this machine.
    #[serde(default)]
    metrics_from: Vec<String>,
    /// Calls a second of one token, and how many may come at once. Default 500 and 2000.
    calls_per_second: Option<u32>,
    calls_burst: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayTable {
    /// Default 0.0.0.0:8443.
    listen: Option<SocketAddr>,
    /// What machines dial, like https://gw.example.com:8443.
    url: Option<String>,
    /// What reaches this very gateway, where `url` leads to one of several: ends of a tunnel have to meet at the same one.
    own_url: Option<String>,
}

/// `/healthz`, `/readyz` and `/metrics` by plain HTTP on an address of their own, in whatever roles the process has. A process
/// with the API has them there too.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OpsTable {
    listen: SocketAddr,
    /// Networks that may read `/metrics`, beside this machine.
    #[serde(default)]
    metrics_from: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogTable {
    /// error, warn, info or debug. Default info.
    level: Option<String>,
    /// text or json. Default text.
    format: Option<LogFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogFormat {
    Text,
    Json,
}

pub fn load(path: &Path) -> anyhow::Result<ServeConfig> {
    let bytes = kit::fs::read_bounded(path, FILE_BYTES_MAX)?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?;
    toml::from_str(&text).map_err(|err| anyhow::anyhow!("{}: {}", path.display(), err.to_string().trim_end()))
}

impl ServeConfig {
    pub fn roles(&self) -> anyhow::Result<Roles> {
        if self.roles.is_empty() {
            return Ok(Roles::ALL);
        }
        let mut roles = Roles { api: false, gateway: false, worker: false, scheduler: false };
        for role in &self.roles {
            match role.as_str() {
                "api" => roles.api = true,
                "gateway" => roles.gateway = true,
                "worker" => roles.worker = true,
                "scheduler" => roles.scheduler = true,
                other => bail!("roles: {other:?} is no role: api, gateway, worker or scheduler"),
            }
        }
        Ok(roles)
    }

    pub fn database(&self) -> anyhow::Result<StoreConfig> {
        let file = self.database.url_file.as_ref().context("database.url_file is not given")?;
        let mut config = database(read_url(file)?, "better-compute");
        if let Some(pool_size) = self.database.pool_size {
            config.pool_size = pool_size;
        }
        Ok(config)
    }

    /// A process that is a gateway alone may be taken over by whoever reaches it from the network: what could do more than a
    /// gateway may is not within its reach. A login that merely drops its rights takes them up again.
    pub fn gateway_database(&self) -> anyhow::Result<StoreConfig> {
        let table = &self.database;
        let file = match (&table.gateway_url_file, &table.url_file) {
            (Some(file), _) => file,
            (None, Some(file)) if self.roles()? != Roles::GATEWAY => file,
            (None, _) => bail!(
                "database.gateway_url_file is not given: a process with only the gateway role uses a database user of its own, \
                 made with: CREATE ROLE gw LOGIN PASSWORD '…' IN ROLE bc_gateway"
            ),
        };
        Ok(database(read_url(file)?, "better-compute-gateway"))
    }

    pub fn data_dir(&self) -> anyhow::Result<PathBuf> {
        let dir = self.data_dir.clone().unwrap_or_else(|| PathBuf::from("/var/lib/better-compute"));
        kit::fs::create_dir(&dir, 0o700)?;
        Ok(dir)
    }

    pub fn api(&self) -> anyhow::Result<ServerConfig> {
        let listen = self.api.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080)));
        let mut config = ServerConfig::new(listen);
        match (&self.api.tls_certificates, &self.api.tls_key) {
            (Some(certificates), Some(key)) => config = config.with_tls(certificates, key),
            (None, None) => {}
            _ => bail!("api: tls_certificates and tls_key go together"),
        }
        config.trusted_proxies = networks("api.trusted_proxies", &self.api.trusted_proxies)?;
        config.metrics_from = networks("api.metrics_from", &self.api.metrics_from)?;
        Ok(config)
    }

    pub fn ops(&self) -> anyhow::Result<Option<OpsConfig>> {
        let Some(ops) = &self.ops else { return Ok(None) };
        let metrics_from = networks("ops.metrics_from", &ops.metrics_from)?;
        Ok(Some(OpsConfig { listen: ops.listen, metrics_from }))
    }

    pub fn gateway_listen(&self) -> SocketAddr {
        self.gateway.listen.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 8443)))
    }

    pub fn gateway_url(&self) -> Option<String> {
        self.gateway.url.clone()
    }

    pub fn gateway_own_url(&self) -> Option<String> {
        self.gateway.own_url.clone()
    }

    pub fn limits(&self) -> CallLimits {
        let mut limits = CallLimits::default();
        limits.calls.per_second = self.api.calls_per_second.unwrap_or(limits.calls.per_second).max(1);
        limits.calls.burst = self.api.calls_burst.unwrap_or(limits.calls.burst).max(1);
        limits
    }

    pub fn log_json(&self) -> bool {
        self.log.format == Some(LogFormat::Json)
    }

    pub fn log_level(&self) -> &str {
        self.log.level.as_deref().unwrap_or("info")
    }
}

fn networks(key: &str, texts: &[String]) -> anyhow::Result<Vec<server::Cidr>> {
    texts.iter().map(|text| text.parse().with_context(|| format!("{key}: {text:?}"))).collect()
}

fn read_url(path: &Path) -> anyhow::Result<Secret> {
    kit::fs::check_private(path)?;
    let bytes = kit::fs::read_bounded(path, URL_BYTES_MAX)?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(Secret::new(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::ServeConfig;

    #[test]
    fn a_misspelt_key_is_refused_by_name() {
        let text = "[database]\nurl_fle = \"x\"\n[pki]\ndir = \"y\"\n";
        let err = toml::from_str::<ServeConfig>(text).unwrap_err().to_string();
        assert!(err.contains("url_fle"), "{err}");
        assert!(err.contains("url_file"), "{err}");
    }

    #[test]
    fn a_gateway_alone_is_not_given_the_owners_login() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            kit::fs::create_exclusive(&path, format!("postgres://{name}@localhost/x").as_bytes(), 0o600)
                .unwrap();
            path
        };
        let (owner, gateway) = (file("owner"), file("gw"));
        let config = |roles: &str, database: String| -> ServeConfig {
            toml::from_str(&format!("roles = [{roles}]\n[database]\n{database}\n[pki]\ndir = \"y\"\n"))
                .unwrap()
        };
        let of_owner = format!("url_file = {owner:?}");
        let alone = config("\"gateway\"", of_owner.clone());
        assert!(alone.gateway_database().unwrap_err().to_string().contains("gateway_url_file"));
        assert!(config("\"gateway\", \"api\"", of_owner).gateway_database().is_ok());
        let own = config("\"gateway\"", format!("gateway_url_file = {gateway:?}"));
        assert!(own.gateway_database().is_ok());
    }

    #[test]
    fn an_unknown_role_is_refused() {
        let text = "roles = [\"apy\"]\n[database]\nurl_file = \"x\"\n[pki]\ndir = \"y\"\n";
        let config: ServeConfig = toml::from_str(text).unwrap();
        assert!(config.roles().unwrap_err().to_string().contains("apy"));
    }
}
