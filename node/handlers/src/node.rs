//! Puts a node's handlers together. A program passes the result to the agent and names nothing else of this crate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::converge::Converger;
use agent::kinds::KindHandler;
use agent::link::TunnelLink;
use agent::tunnel::{NoTunnels, Tunnels};
use hw::{Commands, FakeHardware, HardwareError, HostCommands, HostHardware, Root};
use kit::{Clock, Supervisor};

use crate::conditions::faults::Faults;
use crate::conditions::presence::{self, Presence};
use crate::files::{Files, HostFiles, HostPaths};
use crate::kinds::{diag_nvml, gpu_reset, inventory_refresh, logs_collect, node_reboot};
use crate::logs::LogSource;
use crate::machine::{Machine, Reboot, Watch};
use crate::sections::access::AccessFiles;
use crate::sections::devices::{CAPABILITY_HOST_ONLY, CAPABILITY_KUBERNETES, Devices, Holds};
use crate::sections::instances::fake::FakeHypervisor;
use crate::sections::instances::gpus::WithHanded;
use crate::sections::instances::port::Hypervisor;
use crate::sections::instances::{self, Instances};
use crate::shell::{EchoShell, HostShell, Shell};
use crate::slices::{CAPABILITY_LIMITS, FakeSlices, Slices, SystemdSlices};
use crate::sshd::{HostSshd, NoSshd, Sshd};
use crate::tunnels::{self, NodeTunnels};
use crate::upload::{HttpsUpload, Upload};

/// The ports a node works through.
pub struct NodePorts {
    pub hardware: Arc<dyn hw::Hardware>,
    pub files: Arc<dyn Files>,
    pub slices: Arc<dyn Slices>,
    pub sshd: Arc<dyn Sshd>,
    /// What runs instances here, if anything does.
    pub hypervisor: Option<Arc<dyn Hypervisor>>,
    pub logs: Arc<dyn LogSource>,
    pub upload: Arc<dyn Upload>,
    pub clock: Arc<dyn Clock>,
    /// The way to gateways that wait for tunnels, and under whom these are; none, and nobody is let in.
    pub tunnels: Option<(Arc<dyn TunnelLink>, Supervisor)>,
    pub shell: Arc<dyn Shell>,
    /// The daemon's own folder.
    pub data_dir: PathBuf,
}

impl NodePorts {
    /// This machine, as root.
    pub fn host(data_dir: &Path, clock: Arc<dyn Clock>, logs: Arc<dyn LogSource>) -> Self {
        let commands: Arc<dyn Commands> = Arc::new(HostCommands::new());
        Self {
            hardware: Arc::new(HostHardware::new(Root::host(), commands.clone())),
            files: Arc::new(HostFiles::new(HostPaths::host())),
            slices: Arc::new(SystemdSlices::new("/", commands.clone(), clock.clone())),
            sshd: Arc::new(HostSshd::new("/", commands)),
            hypervisor: None,
            logs,
            upload: Arc::new(HttpsUpload::new(clock.clone(), None)),
            clock,
            tunnels: None,
            shell: Arc::new(HostShell),
            data_dir: data_dir.to_owned(),
        }
    }

    /// Runs instances, whose disks are below this folder.
    pub fn with_instances(self, hypervisor: Arc<dyn Hypervisor>, dir: PathBuf) -> Self {
        let commands: Arc<dyn Commands> = Arc::new(HostCommands::new());
        Self { hypervisor: Some(hypervisor), hardware: Self::hardware_with_instances(commands, dir), ..self }
    }

    /// This machine, with those of its GPUs that are its instances'.
    pub fn hardware_with_instances(commands: Arc<dyn Commands>, dir: PathBuf) -> Arc<dyn hw::Hardware> {
        let machine = HostHardware::new(Root::host(), commands).with_instances_in(dir.clone());
        Arc::new(WithHanded::new(Arc::new(machine), dir.join("instances")))
    }

    /// A machine that is not there. Everything it writes is below `data_dir`.
    pub fn simulated(
        hardware: Arc<FakeHardware>,
        data_dir: &Path,
        clock: Arc<dyn Clock>,
        logs: Arc<dyn LogSource>,
    ) -> Self {
        let hypervisor = FakeHypervisor::at(data_dir.join("hypervisor.json"), hardware.clone());
        Self {
            hardware,
            files: Arc::new(HostFiles::new(HostPaths::simulated(data_dir.join("root")))),
            slices: Arc::new(FakeSlices::new()),
            sshd: Arc::new(NoSshd),
            hypervisor: Some(Arc::new(hypervisor)),
            logs,
            upload: Arc::new(HttpsUpload::new(clock.clone(), None)),
            clock,
            tunnels: None,
            shell: Arc::new(EchoShell),
            data_dir: data_dir.to_owned(),
        }
    }
}

/// What the agent is made of on a node, and what runs beside it.
pub struct NodeParts {
    pub convergers: Vec<Box<dyn Converger>>,
    pub kinds: Vec<Arc<dyn KindHandler>>,
    pub hardware: Arc<dyn agent::hardware::Hardware>,
    pub host: Arc<dyn agent::hardware::Host>,
    pub boot_id: String,
    pub tunnels: Arc<dyn Tunnels>,
    /// To be run under the agent's supervisor with its handle.
    pub watch: Watch,
    /// The same machine as `hardware`, for whoever drives its passes itself.
    pub machine: Arc<Machine>,
    pub holds: Holds,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("make the data folder {dir:?}")]
    DataDir {
        dir: PathBuf,
        #[source]
        source: kit::fs::FsError,
    },
    #[error("tell this boot from the last")]
    BootId(#[source] HardwareError),
}

/// Looks at the machine once, so that the first Hello tells what it is.
pub async fn parts(ports: NodePorts) -> Result<NodeParts, NodeError> {
    let NodePorts {
        hardware,
        files,
        slices,
        sshd,
        hypervisor,
        logs,
        upload,
        clock,
        tunnels,
        shell,
        data_dir,
    } = ports;
    kit::fs::create_dir(&data_dir, 0o700)
        .map_err(|source| NodeError::DataDir { dir: data_dir.clone(), source })?;
    let boot_id = hardware.boot_id().await.map_err(NodeError::BootId)?;
    let mut capabilities = vec![CAPABILITY_KUBERNETES.to_owned()];
    match slices.support() {
        Ok(()) => capabilities.extend([CAPABILITY_HOST_ONLY, CAPABILITY_LIMITS].map(str::to_owned)),
        Err(none) => tracing::info!(why = none.why, "holds with limits are not served"),
    }
    capabilities.extend(hypervisor.as_deref().map(instances::capabilities).into_iter().flatten());
    if tunnels.is_some() {
        capabilities.push(tunnels::CAPABILITY_NODE.to_owned());
        capabilities.extend(shell.ssh(22).map(|_| tunnels::CAPABILITY_NODE_SSH.to_owned()));
        capabilities.extend(hypervisor.as_ref().map(|_| tunnels::CAPABILITY_INSTANCE.to_owned()));
    }
    let tunnels: Arc<dyn Tunnels> = match tunnels {
        Some((link, supervisor)) => {
            Arc::new(NodeTunnels::new(link, hypervisor.clone(), shell, clock.clone(), supervisor))
        }
        None => Arc::new(NoTunnels),
    };
    let faults = Faults::at(data_dir.join("faults.json"));
    let presence = Presence::at(data_dir.join(presence::FILE));
    let (machine, watch) = Machine::new(hardware.clone(), clock, capabilities, faults, presence);
    machine.pass().await;

    let holds = Holds::new(files.clone());
    let record = data_dir.join("devices.json");
    let reload_owed = data_dir.join("sshd-reload-owed");
    let freed = {
        let machine = machine.clone();
        Box::new(move || machine.look_soon())
    };
    let convergers: Vec<Box<dyn Converger>> = vec![
        Box::new(Devices::new(files.clone(), slices, hardware.clone(), holds.clone(), record, freed)),
        Box::new(Instances::new(hypervisor, data_dir.join("instances.json"))),
        Box::new(AccessFiles::new(files, sshd, reload_owed)),
    ];
    let kinds: Vec<Arc<dyn KindHandler>> = vec![
        Arc::new(inventory_refresh::Handler(machine.clone())),
        Arc::new(diag_nvml::Handler(machine.clone())),
        Arc::new(logs_collect::Handler { machine: machine.clone(), logs, upload }),
        Arc::new(gpu_reset::Handler { machine: machine.clone(), holds: holds.clone() }),
        Arc::new(node_reboot::Handler),
    ];
    Ok(NodeParts {
        convergers,
        kinds,
        hardware: machine.clone(),
        host: Arc::new(Reboot(hardware)),
        boot_id,
        tunnels,
        watch,
        machine,
        holds,
    })
}

#[cfg(test)]
mod tests;
