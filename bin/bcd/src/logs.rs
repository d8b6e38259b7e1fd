//! Structured logs on standard error.

use agent::config::{LogFormat, LogLevel};
use tracing_subscriber::EnvFilter;

/// `RUST_LOG` decides when it is set, else `level` for our own code and warnings for libraries.
pub fn init(format: LogFormat, level: LogLevel) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{},h2=warn,hyper=warn,tonic=warn", level.name())));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second initialisation, as in a test that runs two programs in one process, changes nothing.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
