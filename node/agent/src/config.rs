//! `/etc/bcd/config.toml`. Strict: a key nobody knows is an error that names the nearest one, since a setting that is
//! silently ignored is worse than a daemon that does not start.

use std::path::{Path, PathBuf};

use kit::fs::{self, FsError};
use pki::Pin;
use serde::Deserialize;

use crate::journal::{EVENTS_MAX, FILE_BYTES_MAX, FILE_BYTES_MIN, JOURNAL_FILE, Limits};
use crate::transport::Address;

mod network;

pub use network::Network;

pub const CONFIG_PATH: &str = "/etc/bcd/config.toml";
pub const DATA_DIR: &str = "/var/lib/bcd";
pub const SOCKET_PATH: &str = "/run/bcd/bcd.sock";

/// As README and the quickstart have it.
const NAT_BRIDGE: &str = "vmnat0";

/// A hand-written file of a few dozen lines.
const CONFIG_BYTES_MAX: u64 = 256 * 1024;
/// More than any rotation has at once.
const PINS_MAX: usize = 64;
/// Gateways of a deployment.
const TUNNEL_HOSTS_MAX: usize = 64;
/// More than anybody has mirrors.
const IMAGE_NETWORKS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the configuration")]
    File(#[from] FsError),
    #[error("read the configuration {path:?}: {problem}")]
    Toml { path: PathBuf, problem: String },
    #[error("read the configuration {path:?}: unknown key {key:?}{}", nearest.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default())]
    UnknownKey { path: PathBuf, key: String, nearest: Option<&'static str> },
    #[error("read the configuration {path:?}: {key} {problem}")]
    Value { path: PathBuf, key: &'static str, problem: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
}

impl LogLevel {
    pub const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

/// What guests run on: the better of both, hardware virtualization, or emulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InstancesAccel {
    #[default]
    Auto,
    Kvm,
    Tcg,
}

/// The configuration, with everything in it valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub gateway: Address,
    /// Of other gateways, where tunnels may be dialled beside its own.
    pub tunnel_hosts: Vec<String>,
    pub serving_ca_pins: Vec<Pin>,
    pub join_signing_pins: Vec<Pin>,
    pub join_encryption_key_pin: Pin,
    /// Shown by `bcd doctor`; the token and the certificate decide the site.
    pub site: Option<String>,
    pub data_dir: PathBuf,
    pub socket_path: PathBuf,
    pub journal_file_bytes_max: u64,
    pub journal_events_max: usize,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    pub instances: InstancesConfig,
}

/// How this host runs instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstancesConfig {
    pub accel: InstancesAccel,
    /// None for a host that makes no bridge for its instances.
    pub nat_bridge: Option<String>,
    /// Where instances' files are; none for a folder of the daemon's data. Short, and open to QEMU's own user.
    pub dir: Option<PathBuf>,
    /// None for the system's.
    pub libvirt_uri: Option<String>,
    /// None for the host's own network.
    pub network_namespace: Option<PathBuf>,
    /// Networks that are not the internet's and have images.
    pub image_networks: Vec<Network>,
}

impl InstancesConfig {
    /// As a host with no configuration has it.
    pub fn usual() -> Self {
        Self { nat_bridge: Some(NAT_BRIDGE.to_owned()), ..Self::default() }
    }
}

impl Config {
    pub fn limits(&self) -> Limits {
        Limits::for_file(self.journal_file_bytes_max, self.journal_events_max)
    }

    pub fn journal_path(&self) -> PathBuf {
        self.data_dir.join(JOURNAL_FILE)
    }
}

/// Every key there is, with its meaning. The one list that parsing, suggestions and the documentation share.
pub const KEYS: &[(&str, &str)] = &[
    ("data_dir", "Where the identity and the journal live. Default /var/lib/bcd."),
    ("socket_path", "The root-only socket of bcd status. Default /run/bcd/bcd.sock."),
    ("site", "A name for this machine's site, for people."),
    ("gateway.url", "https://host or https://host:port of the gateway. Required."),
    (
        "gateway.server_name",
        "The name in the gateway's certificate, when it is reached by another, such as an address.",
    ),
    (
        "gateway.serving_ca_pins",
        "SHA-256 pins (64 lowercase hexadecimal characters) of the serving CA's keys. Required.",
    ),
    (
        "gateway.tunnel_hosts",
        "Names or addresses of other gateways, where tunnels may lead beside gateway.url: needed for those that are not beside \
         its name, like gw-2.example.com beside gw-1.example.com. Default none.",
    ),
    ("gateway.join_signing_pins", "Pins of the keys that sign join answers and trust bundles. Required."),
    ("gateway.join_encryption_key_pin", "Pin of the key that join tokens are sealed to. Required."),
    ("journal.max_bytes", "Size of the journal's file: 33554432 to 67108864 bytes. Default 67108864."),
    ("journal.max_events", "Events kept unacknowledged: 100 to 10000. Default 10000."),
    ("log.format", "text or json. Default text."),
    ("log.level", "error, warn, info or debug. Default info."),
    (
        "instances.accel",
        "What guests run on: auto, kvm or tcg. Default auto, which is kvm where it was seen to boot a kernel.",
    ),
    (
        "instances.nat_bridge",
        "A bridge that the daemon makes when instances are to be on it, and by which they reach the world as this host. \
         Empty for none. Default vmnat0.",
    ),
    (
        "instances.dir",
        "Where instances' files are: a short path that other users may pass. Default libvirt, in the data folder.",
    ),
    ("instances.libvirt_uri", "The libvirt that runs instances. Default qemu:///system."),
    (
        "instances.network_namespace",
        "A file like /run/netns/name: the network in which that libvirt and its bridges are, when it is not the host's own.",
    ),
    (
        "instances.image_networks",
        "Private networks that images are fetched from, like [\"10.0.0.0/8\"], beside the internet; an address of this host only \
         as itself, like 10.0.0.7/32. Default none.",
    ),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    data_dir: Option<PathBuf>,
    socket_path: Option<PathBuf>,
    site: Option<String>,
    gateway: GatewayTable,
    journal: JournalTable,
    log: LogTable,
    instances: InstancesTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GatewayTable {
    url: Option<String>,
    server_name: Option<String>,
    tunnel_hosts: Vec<String>,
    serving_ca_pins: Vec<String>,
    join_signing_pins: Vec<String>,
    join_encryption_key_pin: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JournalTable {
    max_bytes: Option<u64>,
    max_events: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LogTable {
    format: Option<String>,
    level: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InstancesTable {
    accel: Option<String>,
    dir: Option<PathBuf>,
    nat_bridge: Option<String>,
    libvirt_uri: Option<String>,
    network_namespace: Option<PathBuf>,
    image_networks: Vec<String>,
}

/// Reads and checks the file at `path`.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let bytes = fs::read_bounded(path, CONFIG_BYTES_MAX)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| ConfigError::Toml { path: path.to_owned(), problem: "it is not UTF-8".into() })?;
    parse(&text, path)
}

/// Checks `text`; `path` is for messages.
pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let toml_error = |err: toml::de::Error| ConfigError::Toml {
        path: path.to_owned(),
        problem: err.to_string().trim_end().to_owned(),
    };
    let table: toml::Table = toml::from_str(text).map_err(toml_error)?;
    check_keys(&table, path)?;
    let file: File = toml::from_str(text).map_err(toml_error)?;
    let check = Check { path };
    let url = file.gateway.url.as_deref().ok_or_else(|| check.value("gateway.url", "is required"))?;
    let mut gateway = parse_url(url).map_err(|problem| check.value("gateway.url", problem))?;
    if let Some(name) = file.gateway.server_name {
        if name.is_empty() || name.len() > 253 {
            return Err(check.value("gateway.server_name", "is 1 to 253 characters"));
        }
        gateway.server_name = name;
    }
    let named =
        |host: &String| parse_url(&format!("https://{host}")).is_ok_and(|parsed| parsed.host == *host);
    if file.gateway.tunnel_hosts.len() > TUNNEL_HOSTS_MAX || !file.gateway.tunnel_hosts.iter().all(named) {
        return Err(check.value("gateway.tunnel_hosts", "is a list of at most 64 names or IPv4 addresses"));
    }
    let join_encryption = file.gateway.join_encryption_key_pin.unwrap_or_default();
    Ok(Config {
        gateway,
        tunnel_hosts: file.gateway.tunnel_hosts,
        serving_ca_pins: check.pins("gateway.serving_ca_pins", &file.gateway.serving_ca_pins)?,
        join_signing_pins: check.pins("gateway.join_signing_pins", &file.gateway.join_signing_pins)?,
        join_encryption_key_pin: check.pin("gateway.join_encryption_key_pin", &join_encryption)?,
        site: file.site,
        data_dir: check.absolute("data_dir", file.data_dir, DATA_DIR)?,
        socket_path: check.absolute("socket_path", file.socket_path, SOCKET_PATH)?,
        journal_file_bytes_max: check.within(
            "journal.max_bytes",
            file.journal.max_bytes.unwrap_or(FILE_BYTES_MAX),
            FILE_BYTES_MIN..=FILE_BYTES_MAX,
        )?,
        journal_events_max: check.within(
            "journal.max_events",
            file.journal.max_events.unwrap_or(EVENTS_MAX),
            100..=EVENTS_MAX,
        )?,
        log_format: match file.log.format.as_deref() {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(_) => return Err(check.value("log.format", "is text or json")),
        },
        log_level: match file.log.level.as_deref() {
            Some("error") => LogLevel::Error,
            Some("warn") => LogLevel::Warn,
            None | Some("info") => LogLevel::Info,
            Some("debug") => LogLevel::Debug,
            Some(_) => return Err(check.value("log.level", "is error, warn, info or debug")),
        },
        instances: instances(&check, file.instances)?,
    })
}

fn instances(check: &Check<'_>, table: InstancesTable) -> Result<InstancesConfig, ConfigError> {
    let InstancesTable { accel, dir, nat_bridge, libvirt_uri, network_namespace, image_networks } = table;
    let accel = match accel.as_deref() {
        None | Some("auto") => InstancesAccel::Auto,
        Some("kvm") => InstancesAccel::Kvm,
        Some("tcg") => InstancesAccel::Tcg,
        Some(_) => return Err(check.value("instances.accel", "is auto, kvm or tcg")),
    };
    let nat_bridge = match nat_bridge.unwrap_or_else(|| NAT_BRIDGE.to_owned()) {
        name if name.is_empty() => None,
        name if name.len() <= 15 && !name.starts_with("bc") => Some(name),
        _ => {
            let problem = "is at most 15 characters, and begins with anything but \"bc\"";
            return Err(check.value("instances.nat_bridge", problem));
        }
    };
    for (key, path) in [("instances.network_namespace", &network_namespace), ("instances.dir", &dir)] {
        if path.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(check.value(key, "is an absolute path"));
        }
    }
    let networks = "instances.image_networks";
    if image_networks.len() > IMAGE_NETWORKS_MAX {
        return Err(check.value(networks, format!("is a list of at most {IMAGE_NETWORKS_MAX} networks")));
    }
    let image_networks = image_networks.iter().map(|text| text.parse());
    let image_networks =
        image_networks.collect::<Result<_, _>>().map_err(|err| check.value(networks, err))?;
    Ok(InstancesConfig { accel, dir, nat_bridge, libvirt_uri, network_namespace, image_networks })
}

/// The file `bcd join --server` writes: only what has no default, so that a later default reaches it.
pub fn render(config: &Config) -> String {
    let pins = |pins: &[Pin]| pins.iter().map(|pin| format!("\"{pin}\"")).collect::<Vec<_>>().join(", ");
    // Debug of a text is a valid TOML basic string for what these fields can hold: names, paths and hexadecimal.
    format!(
        "data_dir = {:?}\n\n[gateway]\nurl = {:?}\nserver_name = {:?}\nserving_ca_pins = [{}]\njoin_signing_pins = [{}]\n\
         join_encryption_key_pin = \"{}\"\n",
        config.data_dir,
        url_text(&config.gateway),
        config.gateway.server_name,
        pins(&config.serving_ca_pins),
        pins(&config.join_signing_pins),
        config.join_encryption_key_pin,
    )
}

fn url_text(address: &Address) -> String {
    if address.host.contains(':') {
        format!("https://[{}]:{}", address.host, address.port)
    } else {
        format!("https://{}:{}", address.host, address.port)
    }
}

fn check_keys(table: &toml::Table, path: &Path) -> Result<(), ConfigError> {
    let is_table =
        |name: &str| KEYS.iter().any(|(key, _)| key.split_once('.').is_some_and(|(table, _)| table == name));
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) if is_table(name) => {
                for key in inner.keys() {
                    known(&format!("{name}.{key}"), path)?;
                }
            }
            _ if is_table(name) => {
                let problem = format!("{name} is a table: write [{name}]");
                return Err(ConfigError::Toml { path: path.to_owned(), problem });
            }
            _ => known(name, path)?,
        }
    }
    Ok(())
}

fn known(key: &str, path: &Path) -> Result<(), ConfigError> {
    if KEYS.iter().any(|(known, _)| *known == key) {
        return Ok(());
    }
    let nearest = KEYS
        .iter()
        .map(|(known, _)| (strsim::damerau_levenshtein(known, key), *known))
        .min()
        // Further than this it is another word, not a slip.
        .filter(|(distance, _)| *distance <= 6)
        .map(|(_, known)| known);
    Err(ConfigError::UnknownKey { path: path.to_owned(), key: key.chars().take(80).collect(), nearest })
}

/// `https://host[:port]`, and nothing after it.
pub fn parse_url(url: &str) -> Result<Address, &'static str> {
    const SHAPE: &str = "is https://host or https://host:port";
    let rest = url.strip_prefix("https://").ok_or(SHAPE)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6.split_once(']').ok_or(SHAPE)?;
            let host: std::net::Ipv6Addr = host.parse().map_err(|_| SHAPE)?;
            match after {
                "" => (host.to_string(), None),
                after => (host.to_string(), Some(after.strip_prefix(':').ok_or(SHAPE)?)),
            }
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (rest.to_owned(), None),
        },
    };
    let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if host.is_empty() || host.len() > 253 || !host.bytes().all(of_a_name) {
        return Err(SHAPE);
    }
    let port = match port {
        None => 443,
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().ok().filter(|port| *port != 0).ok_or("has a port that is not 1 to 65535")?
        }
        Some(_) => return Err(SHAPE),
    };
    Ok(Address { server_name: host.clone(), host, port })
}

struct Check<'a> {
    path: &'a Path,
}

impl Check<'_> {
    fn value(&self, key: &'static str, problem: impl Into<String>) -> ConfigError {
        ConfigError::Value { path: self.path.to_owned(), key, problem: problem.into() }
    }

    fn pin(&self, key: &'static str, text: &str) -> Result<Pin, ConfigError> {
        text.parse().map_err(|_| self.value(key, "is required: 64 lowercase hexadecimal characters"))
    }

    fn pins(&self, key: &'static str, texts: &[String]) -> Result<Vec<Pin>, ConfigError> {
        if texts.is_empty() || texts.len() > PINS_MAX {
            return Err(self.value(key, format!("is a list of 1 to {PINS_MAX} pins")));
        }
        texts.iter().map(|text| self.pin(key, text)).collect()
    }

    fn absolute(
        &self,
        key: &'static str,
        path: Option<PathBuf>,
        default: &str,
    ) -> Result<PathBuf, ConfigError> {
        let path = path.unwrap_or_else(|| PathBuf::from(default));
        if path.is_absolute() { Ok(path) } else { Err(self.value(key, "is an absolute path")) }
    }

    fn within<T: PartialOrd + std::fmt::Display + Copy>(
        &self,
        key: &'static str,
        value: T,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<T, ConfigError> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.value(key, format!("is {} to {}", range.start(), range.end())))
    }
}

#[cfg(test)]
mod tests;
