//! `bcd node`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::identity::{FileIdentity, IdentityStore};
use agent::transport::GrpcLink;
use anyhow::bail;
use clap::Args;
use handlers::logs::LogRing;
use handlers::node::NodePorts;
use kit::{Clock, OnEnd, OsRng, Supervisor, SystemClock, Wake};
use model::Role;

use super::ConfigFlag;
use crate::hypervisor;
use crate::machine::{self, JournalLayer, Machine};

const STOP_PATIENCE: Duration = Duration::from_secs(15);

#[derive(Args)]
pub struct NodeArgs {
    #[command(flatten)]
    config: ConfigFlag,
}

pub async fn run(args: NodeArgs, journal_layer: Option<JournalLayer>) -> anyhow::Result<ExitCode> {
    let config = agent::config::load(&args.config.config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let logs = Arc::new(LogRing::new(clock.clone()));
    crate::logs::init(config.log_format, config.log_level, Some(logs.clone()));
    match FileIdentity::new(&config.data_dir).load()? {
        Some(identity) if identity.role == Role::Node => {}
        Some(identity) => {
            bail!("{} holds the identity of a {}", config.data_dir.display(), identity.role.name())
        }
        None => bail!("this machine has not joined; run: bcd join"),
    }
    let supervisor = Supervisor::new();
    let link = GrpcLink::new(
        config.gateway.clone(),
        config.serving_ca_pins.clone(),
        clock.clone(),
        supervisor.clone(),
    );
    let link = Arc::new(link.with_tunnel_hosts(config.tunnel_hosts.clone()));
    let (arrived, waker) = Wake::new();
    let hypervisor = hypervisor::of_host(
        &config.data_dir,
        &config.instances,
        link.clone(),
        clock.clone(),
        supervisor.clone(),
        waker,
    )
    .await?;
    let ports = NodePorts::host(&config.data_dir, clock.clone(), logs);
    let ports = match hypervisor {
        Some(hypervisor) => {
            ports.with_instances(hypervisor, hypervisor::dir(&config.data_dir, &config.instances))
        }
        None => ports,
    };
    let machine = Machine {
        data_dir: config.data_dir.clone(),
        ports,
        tunnels: Some(link.clone()),
        link,
        arrived: Some(arrived),
        host: None,
        journal_file_bytes_max: config.journal_file_bytes_max,
        journal_layer,
        limits: config.limits(),
        status_socket: Some(config.socket_path.clone()),
        clock,
        rng: Arc::new(OsRng),
        on_end: OnEnd::Fatal,
    };
    let agent = machine::start(machine, &supervisor).await?;
    // Both arms are cancel-safe: the signal stays pending, the token stays cancelled.
    tokio::select! {
        name = kit::signal::stop_signal() => {
            tracing::info!(signal = name?, "stopping");
            agent.stop().await;
        }
        () = supervisor.token().cancelled_owned() => {}
    }
    supervisor.shutdown(STOP_PATIENCE).await;
    match supervisor.fatal() {
        Some(why) => bail!("{why}"),
        None => Ok(ExitCode::SUCCESS),
    }
}
