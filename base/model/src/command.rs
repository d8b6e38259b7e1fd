//! Command kinds and their policy. Adding a kind: a variant here, its policy arm, and `kinds/<kind>.rs` in `handlers`;
//! the exhaustive matches point at every place that must know it.

use std::time::Duration;

/// What a daemon is; its certificate names it and it decides which kinds the daemon takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The agent on a server.
    Node,
    /// The agent that boots bare metal at a site.
    Site,
    /// The agent inside the PXE ramdisk.
    Ramdisk,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Node, Role::Site, Role::Ramdisk];

    pub const fn name(self) -> &'static str {
        match self {
            Role::Node => "node",
            Role::Site => "site",
            Role::Ramdisk => "ramdisk",
        }
    }

    pub fn parse(text: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == text)
    }
}

/// A lane orders the commands that share it, and bounds how many are admitted and how many run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    Control,
    Provision,
    Bulk,
}

impl Lane {
    pub const ALL: [Lane; 3] = [Lane::Control, Lane::Provision, Lane::Bulk];

    pub const fn name(self) -> &'static str {
        match self {
            Lane::Control => "control",
            Lane::Provision => "provision",
            Lane::Bulk => "bulk",
        }
    }

    pub fn parse(text: &str) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| lane.name() == text)
    }

    /// Commands running at once.
    pub const fn workers(self) -> usize {
        match self {
            Lane::Control => 4,
            Lane::Provision => 2,
            Lane::Bulk => 1,
        }
    }

    /// Commands admitted at once, running or waiting for a worker.
    pub const fn credits(self) -> u32 {
        match self {
            Lane::Control => 16,
            Lane::Provision => 4,
            Lane::Bulk => 2,
        }
    }
}

/// Everything a node can be told to do once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommandKind {
    InventoryRefresh,
    DiagNvml,
    LogsCollect,
    GpuReset,
    NodeReboot,
}

/// What follows from a kind, everywhere it is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindPolicy {
    pub lane: Lane,
    /// Running it a second time does no harm: a crash may be answered by running it again.
    pub retry_safe: bool,
    /// Its success ends the process that runs it: the next boot or process is the proof. Until then a crash is answered by
    /// running it again, which changes nothing about that one end.
    pub self_terminating: bool,
    /// The node signs its result.
    pub attested: bool,
    /// It can take work or data away from someone.
    pub destructive: bool,
    pub roles: &'static [Role],
    /// How long past `not_after` an unfinished command is still waited for. For a self-terminating kind this is the rejoin window.
    pub timeout: Duration,
}

const ANY_ROLE: &[Role] = &Role::ALL;
const NODE_ONLY: &[Role] = &[Role::Node];

impl CommandKind {
    pub const ALL: [CommandKind; 5] = [
        CommandKind::InventoryRefresh,
        CommandKind::DiagNvml,
        CommandKind::LogsCollect,
        CommandKind::GpuReset,
        CommandKind::NodeReboot,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            CommandKind::InventoryRefresh => "inventory.refresh",
            CommandKind::DiagNvml => "diag.nvml",
            CommandKind::LogsCollect => "logs.collect",
            CommandKind::GpuReset => "gpu.reset",
            CommandKind::NodeReboot => "node.reboot",
        }
    }

    pub fn parse(text: &str) -> Option<CommandKind> {
        CommandKind::ALL.into_iter().find(|kind| kind.name() == text)
    }

    pub const fn policy(self) -> KindPolicy {
        const fn minutes(n: u64) -> Duration {
            Duration::from_secs(n * 60)
        }
        match self {
            CommandKind::InventoryRefresh => KindPolicy {
                lane: Lane::Control,
                retry_safe: true,
                self_terminating: false,
                attested: false,
                destructive: false,
                roles: ANY_ROLE,
                timeout: minutes(2),
            },
            CommandKind::DiagNvml => KindPolicy {
                lane: Lane::Control,
                retry_safe: true,
                self_terminating: false,
                attested: true,
                destructive: false,
                roles: ANY_ROLE,
                timeout: minutes(2),
            },
            CommandKind::LogsCollect => KindPolicy {
                lane: Lane::Bulk,
                retry_safe: true,
                self_terminating: false,
                attested: false,
                destructive: false,
                roles: ANY_ROLE,
                timeout: minutes(15),
            },
            CommandKind::GpuReset => KindPolicy {
                lane: Lane::Control,
                retry_safe: false,
                self_terminating: false,
                attested: true,
                destructive: true,
                roles: NODE_ONLY,
                timeout: minutes(5),
            },
            CommandKind::NodeReboot => KindPolicy {
                lane: Lane::Control,
                retry_safe: false,
                self_terminating: true,
                attested: false,
                destructive: true,
                roles: NODE_ONLY,
                timeout: minutes(15),
            },
        }
    }
}

/// How long the sweeper waits past `not_after` for a kind this control plane does not know.
pub const UNKNOWN_KIND_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Why a daemon refuses a command for good. The text travels on the wire and in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    Unsupported,
    Expired,
    StaleGeneration,
    BadSignature,
}

impl RejectReason {
    pub const ALL: [RejectReason; 4] = [
        RejectReason::Unsupported,
        RejectReason::Expired,
        RejectReason::StaleGeneration,
        RejectReason::BadSignature,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            RejectReason::Unsupported => "UNSUPPORTED",
            RejectReason::Expired => "EXPIRED",
            RejectReason::StaleGeneration => "STALE_GENERATION",
            RejectReason::BadSignature => "BAD_SIGNATURE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_from_its_name() {
        for kind in CommandKind::ALL {
            assert_eq!(CommandKind::parse(kind.name()), Some(kind));
        }
        assert_eq!(CommandKind::parse("node.explode"), None);
    }

    #[test]
    fn a_kind_that_ends_its_process_is_never_retried() {
        for kind in CommandKind::ALL {
            let policy = kind.policy();
            assert!(!(policy.self_terminating && policy.retry_safe), "{}", kind.name());
        }
    }
}
