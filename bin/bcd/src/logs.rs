//! Structured logs on standard error, and the last of them in memory for `logs.collect`.

use std::io::{self, Write};
use std::sync::Arc;

use agent::config::{LogFormat, LogLevel};
use handlers::logs::LogRing;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// `RUST_LOG` decides when it is set (targets and levels, like `info,h2=debug`), else `level` for our own code and
/// warnings for libraries. Not by an `EnvFilter`: it also filters by fields, for which it brings a quarter of a MiB of
/// regular expressions to every machine.
pub fn init(format: LogFormat, level: LogLevel, ring: Option<Arc<LogRing>>) {
    let asked = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let usual = || format!("{},h2=warn,hyper=warn,tonic=warn", level.name()).parse().unwrap_or_default();
    let filter = asked.unwrap_or_else(usual);
    let builder = tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::TRACE)
        .with_writer(Both(ring))
        .with_ansi(false);
    // A second initialisation, as in a test that runs two programs in one process, changes nothing.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).finish().with(filter).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(filter).try_init(),
    };
}

/// Writes each line to standard error and to the ring.
struct Both(Option<Arc<LogRing>>);

impl<'a> MakeWriter<'a> for Both {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { ring: self.0.clone(), bytes: Vec::new() }
    }
}

/// One event's text, which the formatter may write in pieces.
struct Line {
    ring: Option<Arc<LogRing>>,
    bytes: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.push(&String::from_utf8_lossy(&self.bytes));
        }
        // A daemon whose standard error is gone has nobody to tell.
        let _ = io::stderr().write_all(&self.bytes);
    }
}
