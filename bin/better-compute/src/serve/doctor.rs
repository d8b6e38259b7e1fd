//! `better-compute doctor`: one line a check, exit code 1 when one failed.

use std::path::Path;
use std::process::ExitCode;

use kit::{Clock, SystemClock};
use pki::ssh::ssh_ca_public_key;
use store::Store;

use super::config;
use crate::keys::KeyFolder;
use crate::plane::Roles;

struct Lines {
    failed: u32,
}

impl Lines {
    fn ok(&self, name: &str, detail: &str) {
        println!("ok    {name:<10} {detail}");
    }

    fn fail(&mut self, name: &str, detail: &str, fix: &str) {
        self.failed += 1;
        println!("fail  {name:<10} {detail}");
        println!("{:<17}{fix}", "");
    }
}

pub async fn run(path: &Path) -> anyhow::Result<ExitCode> {
    let mut lines = Lines { failed: 0 };
    let config = match config::load(path) {
        Ok(config) => config,
        Err(err) => {
            lines.fail("config", &format!("{err:#}"), "README's \"Run it\" shows a whole one");
            return Ok(ExitCode::FAILURE);
        }
    };
    lines.ok("config", &path.display().to_string());
    match config.roles() {
        Ok(_) => {}
        Err(err) => lines.fail("roles", &format!("{err:#}"), "name some of api, gateway, worker, scheduler"),
    }
    keys(&config.pki.dir, &mut lines);
    database(&config, &mut lines).await;
    println!(
        "{} failed",
        match lines.failed {
            1 => "1 check".to_owned(),
            n => format!("{n} checks"),
        }
    );
    Ok(if lines.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keys(dir: &Path, lines: &mut Lines) {
    let folder = match KeyFolder::open(dir) {
        Ok(folder) => folder,
        Err(err) => return lines.fail("keys", &format!("{err:#}"), "better-compute pki init"),
    };
    match folder.worker() {
        Ok(keys) => {
            let until = keys.intent.certificate().statement().not_after;
            let now = SystemClock::new().now();
            if until <= now {
                lines.fail(
                    "worker",
                    &format!("its key's certificate ended {until}"),
                    "certify a new worker key",
                );
            } else {
                lines.ok(
                    "worker",
                    &format!("deployment {}, worker key certified until {until}", keys.deployment_id),
                );
            }
            secrets(&folder, dir, lines);
            ssh_ca(&folder, dir, lines);
        }
        Err(err) => {
            lines.fail("worker", &format!("{err:#}"), "a process with only the gateway role needs none")
        }
    }
    match folder.gateway() {
        Ok(_) => {
            lines.ok("gateway", &format!("certificate for {}", folder.deployment.gateway_names.join(", ")))
        }
        Err(err) => {
            lines.fail("gateway", &format!("{err:#}"), "a process without the gateway role needs none")
        }
    }
}

/// Whoever holds worker keys holds the one by which secrets are kept.
fn secrets(folder: &KeyFolder, dir: &Path, lines: &mut Lines) {
    match folder.secrets_ring() {
        Ok(Some(ring)) => lines.ok("secrets", &format!("kept by {}", ring.newest())),
        Ok(None) => {
            let fix = format!("better-compute pki add-secrets-key --dir {}", dir.display());
            lines.fail("secrets", "there is no key to keep them by", &fix);
        }
        Err(err) => lines.fail("secrets", &format!("{err:#}"), "take worker/secrets.kek from its backup"),
    }
}

/// Without one all else works, and no node lets anybody in by a certificate.
fn ssh_ca(folder: &KeyFolder, dir: &Path, lines: &mut Lines) {
    match folder.ssh_ca() {
        Ok(Some(key)) => {
            let key = ssh_ca_public_key(&key);
            lines.ok("ssh-ca", &format!("SSH certificates are signed by {}", key.fingerprint()));
        }
        Ok(None) => {
            let make = format!("better-compute pki ssh-ca --dir {}", dir.display());
            lines
                .ok("ssh-ca", &format!("there is none, and no SSH certificates for nodes: {make} makes one"));
        }
        Err(err) => lines.fail("ssh-ca", &format!("{err:#}"), "take worker/ssh-ca.key.pem from its backup"),
    }
}

async fn database(config: &config::ServeConfig, lines: &mut Lines) {
    let wanted = match config.roles() {
        Ok(Roles::GATEWAY) => config.gateway_database(),
        _ => config.database(),
    };
    let opened = match wanted {
        Ok(database) => Store::open(database).await.map_err(anyhow::Error::new),
        Err(err) => Err(err),
    };
    let store = match opened {
        Ok(store) => store,
        Err(err) => {
            return lines.fail(
                "database",
                &format!("{err:#}"),
                "look at the files that [database] names, and at the server",
            );
        }
    };
    match store::migrate::check(&store).await {
        Ok(()) => lines.ok("schema", &format!("version {}", store::migrate::embedded().len())),
        Err(err) => return lines.fail("schema", &kit::chain(&err), "better-compute migrate"),
    }
    match store::deployment::read(&store).await {
        Ok(deployment) if deployment.observe_only => {
            let why = deployment.observe_reason.unwrap_or_default();
            lines.fail(
                "deployment",
                &format!("observe-only: {why}"),
                "if this is the right database: better-compute system confirm-restore",
            );
        }
        Ok(deployment) => {
            lines.ok("deployment", &format!("{}, epoch {}", deployment.deployment_id, deployment.epoch));
        }
        Err(err) => lines.fail("deployment", &kit::chain(&err), "look at the database's log"),
    }
}
