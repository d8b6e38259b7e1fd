//! This machine as a host of instances, over a libvirt of the test's own.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use guests::Libvirtd;
use serde_json::{Value, json};

use super::{Api, Cloud, GATEWAY_NAME, eventually, items, wait_line};
use crate::program::{self, Running};

/// The pool of hosts that is made for it.
pub const POOL: &str = "host";

/// An `e2e-host` process.
pub struct Host {
    pub running: Running,
    pub log: PathBuf,
    /// Of all that the daemon writes.
    pub dir: PathBuf,
}

impl Cloud {
    /// Makes a pool for it, starts it, and waits until it takes instances.
    pub async fn host(&self, api: &Api, gateway: SocketAddr, libvirtd: &Libvirtd) -> anyhow::Result<Host> {
        api.ok("sites.create", json!({ "name": "e2e" })).await?;
        let network =
            json!({ "subnet": "10.88.0.0/24", "gateway": "10.88.0.1", "bridge": "vmnat0", "scope": "host" });
        let pool = json!({ "name": POOL, "class": "vps-host", "policy": { "network": network } });
        api.ok("pools.create", pool).await?;
        let token = json!({ "site": "e2e", "pool": POOL, "usesMax": 1, "expiresInHours": 1 });
        let made = api.ok("joinTokens.create", token).await?;
        let host =
            self.start_host(gateway, libvirtd, made["secret"].as_str().context("the token's secret")?)?;
        eventually(super::FLEET_WITHIN, "the host is ready", async || {
            let listed = api.ok("nodes.list", json!({})).await?;
            let states: Vec<Value> = items(&listed).iter().map(|node| node["state"].clone()).collect();
            Ok(if states == ["ready"] { Ok(()) } else { Err(format!("{states:?}")) })
        })
        .await?;
        Ok(host)
    }

    /// Starts it, and waits only until it has joined.
    pub fn start_host(&self, gateway: SocketAddr, libvirtd: &Libvirtd, token: &str) -> anyhow::Result<Host> {
        // QEMU's own user passes through here.
        std::fs::set_permissions(self.dir(), std::fs::Permissions::from_mode(0o711))?;
        let pins: Value = serde_json::from_slice(&std::fs::read(self.pki().join("public/pins.json"))?)?;
        let (above, dir) = (self.dir().join("daemon"), self.dir().join("host"));
        kit::fs::create_dir(&above, 0o700)?;
        std::fs::write(above.join("join-encryption.jwk"), pins["joinEncryptionJwk"].to_string())?;
        let config = above.join("config.toml");
        let text = format!(
            "data_dir = {dir:?}\n[gateway]\nurl = \"https://{gateway}\"\nserver_name = {GATEWAY_NAME:?}\n\
             serving_ca_pins = [{}]\njoin_signing_pins = [{}]\njoin_encryption_key_pin = {}\n\
             [instances]\naccel = \"tcg\"\nlibvirt_uri = {:?}\nnetwork_namespace = {:?}\n",
            pins["servingCaPin"],
            pins["joinSigningPin"],
            pins["joinEncryptionPin"],
            libvirtd.uri(),
            libvirtd.network()?,
        );
        std::fs::write(&config, text)?;
        let log = above.join("log");
        let file = File::create(&log)?;
        let mut command = Command::new(program::path("e2e-host")?);
        command
            .arg(&config)
            .env("BCD_JOIN_TOKEN", token)
            .env_remove("RUST_LOG")
            .stdout(file.try_clone()?)
            .stderr(file);
        let mut running = Running::start("e2e-host", &mut command)?;
        wait_line(&mut running, &log, "this host takes instances")?;
        Ok(Host { running, log, dir })
    }
}
