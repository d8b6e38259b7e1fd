//! Where the server is and how it is trusted.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;

/// How long a call may take beside its own `wait`. A server answers or refuses well within it.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// What a client is made of.
#[derive(Clone)]
pub struct Config {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) user_agent: String,
}

impl Config {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            token: None,
            ca_file: None,
            timeout: TIMEOUT_DEFAULT,
            user_agent: concat!("better-compute-client/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// `bct_…`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// PEM file of the only certificate authorities to trust; the system's when not given.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.url)
            .field("token", &self.token.as_ref().map(|_| "[secret]"))
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

/// Why no client could be made. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{given:?} is not the URL of a server: write it like https://compute.example.com")]
    Url { given: String },
    #[error(
        "{given:?} would send the token in the clear: use https, or http to this machine itself (127.0.0.1, localhost)"
    )]
    PlainHttp { given: String },
    #[error("the token holds characters that no token has")]
    Token,
    #[error("failed to read certificate authorities from {path:?}")]
    Roots {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("{path:?} holds no usable certificate authority")]
    NoRoots { path: PathBuf },
    #[error("no file of certificate authorities was found on this system: name one with ca_file")]
    NoSystemRoots,
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("failed to set up HTTP")]
    Http(#[source] reqwest::Error),
}

/// The base without its trailing slash. Plain HTTP only to this machine: everything else could be listened to.
pub(crate) fn base(given: &str) -> Result<Url, ConfigError> {
    let bad = || ConfigError::Url { given: given.chars().take(200).collect() };
    let url: Url = given.parse().map_err(|_| bad())?;
    let host = url.host_str().ok_or_else(bad)?;
    let plain_path = matches!(url.path(), "" | "/") && url.query().is_none() && url.fragment().is_none();
    if !plain_path || !url.username().is_empty() || url.password().is_some() {
        return Err(bad());
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(host) => Ok(url),
        "http" => Err(ConfigError::PlainHttp { given: given.chars().take(200).collect() }),
        _ => Err(bad()),
    }
}

/// Whether a host is this machine by its very name; nothing is looked up.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
