//! `bcd doctor`: one line a check. Exit code 1 when one failed.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::config::Config;
use agent::identity::{FileIdentity, IdentityStore};
use clap::Args;
use handlers::files::{FILE_BYTES_MAX, HostFile};
use hw::doctor::{self, HostFacts, Status};
use hw::{Hardware, HostCommands, HostHardware, Root};
use kit::{Clock, SystemClock};
use pki::ssh::SshPublicKey;
use serde::Serialize;

use super::ConfigFlag;

const DIAL_WITHIN: Duration = Duration::from_secs(5);
const SSH_CA: &str = "ssh-ca";

#[derive(Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    config: ConfigFlag,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    name: String,
    status: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Line {
    fn new(name: &str, status: &'static str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), status, detail: detail.into(), fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

pub async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut lines = own_checks(&args.config.config).await;
    let root = Root::host();
    let host = HostHardware::new(root.clone(), Arc::new(HostCommands::default()));
    let samples = host.gpu_samples().await.unwrap_or_default();
    for check in doctor::checks(&host.inventory().await, &samples, &HostFacts::read(&root)) {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        lines.push(Line { name: check.name.to_owned(), status, detail: check.detail, fix: check.fix });
    }
    let count = |status: &str| lines.iter().filter(|line| line.status == status).count();
    let (failed, warned) = (count("fail"), count("warn"));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        for line in &lines {
            println!("{:<5} {:<12} {}", line.status, line.name, line.detail);
            if let Some(fix) = &line.fix {
                println!("{:<18} {fix}", "");
            }
        }
        let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        println!("{} failed, {}", plural(failed, "check"), plural(warned, "warning"));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn own_checks(path: &Path) -> Vec<Line> {
    let config = match agent::config::load(path) {
        Ok(config) => config,
        Err(err) if !path.exists() => {
            let _ = err;
            return vec![
                Line::new(
                    "config",
                    "warn",
                    format!("{} is not there: this machine is in no fleet", path.display()),
                )
                .fix("bcd join --server https://… with the three pins"),
            ];
        }
        Err(err) => return vec![Line::new("config", "fail", kit::chain(&err))],
    };
    let site = config.site.clone().unwrap_or_else(|| "not named".into());
    let mut lines = vec![Line::new(
        "config",
        "ok",
        format!("{}: gateway {}:{}, site {site}", path.display(), config.gateway.host, config.gateway.port),
    )];
    lines.push(gateway(&config).await);
    lines.push(identity(&config));
    lines.push(ssh_ca());
    lines
}

async fn gateway(config: &Config) -> Line {
    let address = format!("{}:{}", config.gateway.host, config.gateway.port);
    let clock = SystemClock::new();
    match tokio::time::timeout(DIAL_WITHIN, tokio::net::TcpStream::connect(&address)).await {
        Ok(Ok(_)) => {
            Line::new("gateway", "ok", format!("{address} reachable in {} ms", clock.monotonic().as_millis()))
        }
        Ok(Err(err)) => Line::new("gateway", "fail", format!("{address}: {err}"))
            .fix("open outbound TCP to it, or mend gateway.url"),
        Err(_) => {
            Line::new("gateway", "fail", format!("{address}: no answer within {} s", DIAL_WITHIN.as_secs()))
                .fix("open outbound TCP to it, or mend gateway.url")
        }
    }
}

fn identity(config: &Config) -> Line {
    const AGAIN: &str = "join again as root: bcd join --reset --yes, then bcd join";
    match FileIdentity::new(&config.data_dir).load() {
        Ok(Some(identity)) => {
            let now = SystemClock::new().now();
            let who =
                format!("{} (site {}, role {})", identity.node_id, identity.site_id, identity.role.name());
            if identity.not_after <= now {
                return Line::new("identity", "fail", format!("{who}, its certificate has expired"))
                    .fix(AGAIN);
            }
            let left = identity.not_after.since(now).as_secs();
            Line::new(
                "identity",
                "ok",
                format!("{who}, certificate valid for {}h{:02}m", left / 3600, left / 60 % 60),
            )
        }
        Ok(None) => Line::new("identity", "warn", "this machine has not joined").fix("bcd join"),
        Err(err) => Line::new("identity", "fail", kit::chain(&err)).fix(AGAIN),
    }
}

/// Whose certificates sshd was told to trust, by the file that the daemon keeps for it.
fn ssh_ca() -> Line {
    let path = HostFile::SshCa.to_string();
    match kit::fs::read_if_present(Path::new(&path), FILE_BYTES_MAX as u64) {
        Ok(bytes) => ssh_cas(&path, &String::from_utf8_lossy(&bytes.unwrap_or_default())),
        Err(err) => Line::new(SSH_CA, "warn", kit::chain(&err)).fix("run doctor as root"),
    }
}

fn ssh_cas(path: &str, text: &str) -> Line {
    let keys: Result<Vec<SshPublicKey>, _> = text.lines().map(str::parse).collect();
    match keys {
        Ok(keys) if keys.is_empty() => {
            let why = "the node's pool names no accounts (sshAccounts), or it was not told of them yet";
            Line::new(SSH_CA, "ok", format!("sshd is told to trust none: {why}"))
        }
        Ok(keys) => {
            let fingerprints: Vec<&str> = keys.iter().map(SshPublicKey::fingerprint).collect();
            Line::new(SSH_CA, "ok", format!("sshd is told to trust {}", fingerprints.join(", ")))
        }
        Err(err) => Line::new(SSH_CA, "warn", format!("{path}: {}", kit::chain(&err)))
            .fix("the daemon writes it anew: bcd status shows how that went"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ssh_cas_are_shown_by_their_fingerprints_and_a_broken_file_is_not_taken_for_none() {
        let key = |seed| {
            let key = pki::SigningKey::generate(&pki::SeededEntropy::new(seed));
            pki::ssh::ssh_ca_public_key(&key)
        };
        let (first, second) = (key(1), key(2));
        let shown = ssh_cas("x", &format!("{}\n{}\n", first.line(), second.line()));
        assert_eq!(shown.status, "ok");
        assert!(shown.detail.ends_with(&format!("{}, {}", first.fingerprint(), second.fingerprint())));
        let none = ssh_cas("x", "");
        assert!(none.status == "ok" && none.detail.contains("sshAccounts"), "{}", none.detail);
        let broken = ssh_cas("/etc/ssh/bc_ca.pub", "ssh-ed25519 nonsense\n");
        assert!(
            broken.status == "warn" && broken.detail.starts_with("/etc/ssh/bc_ca.pub: "),
            "{}",
            broken.detail
        );
    }
}
