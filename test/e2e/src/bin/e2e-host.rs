//! This machine as a host of instances: the daemon as `better-compute dev --host` runs it, which writes only below one folder, in
//! a process that can be killed.
//!
//! `e2e-host CONFIG`: of the daemon's configuration it takes the gateway, `data_dir` and `[instances]`. It joins once, with the
//! token in `BCD_JOIN_TOKEN`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::config::LogLevel;
use agent::join::stored_encryption_key;
use anyhow::{Context, bail};
use bcd::sim::{self, SimConfig};
use kit::{Clock, OsRng, Supervisor, SystemClock};

const STOP_PATIENCE: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path] = args.as_slice() else { bail!("e2e-host CONFIG") };
    let path = Path::new(path);
    let file = agent::config::load(path)?;
    bcd::logs::init(file.log_format, LogLevel::Info, None);
    let key = stored_encryption_key(path.parent().unwrap_or(Path::new(".")))?
        .context("there is no join-encryption.jwk beside the configuration")?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = SimConfig { nodes: 0, ..SimConfig::of(&file, key, clock, Arc::new(OsRng)) };
    let supervisor = Supervisor::new();
    if !sim::has_joined(&file.data_dir)? {
        let token = std::env::var("BCD_JOIN_TOKEN").context("this host has not joined, and has no token")?;
        sim::join_host(&config, &file.data_dir, &token.parse().context("the join token")?, &supervisor)
            .await?;
    }
    let mut fleet = sim::start(&config, &supervisor).await?;
    sim::start_host(&config, &file.data_dir, Some(&file.instances), &mut fleet, &supervisor).await?;
    println!("this host takes instances");
    kit::signal::stop_signal().await?;
    supervisor.shutdown(STOP_PATIENCE).await;
    Ok(())
}
