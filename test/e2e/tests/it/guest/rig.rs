//! A guest whose daemon takes work from a control plane on this host.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use e2e::dev::{Dev, eventually};
use e2e::guest::{self, Guest, Image, Options};
use e2e::program;
use serde_json::Value;

pub const HALF_GIB: u64 = 512 << 20;
/// Each NUMA node has room for a hold, beside the one that the daemon keeps back for the host.
const MACHINE: Options = Options { memory_mib: 4096, cpus: 2, numa_nodes: 2 };
/// A stand-in for the driver's tool: one healthy GPU on the second NUMA node.
const NVIDIA_SMI: &str = r#"#!/bin/sh
case "$*" in
"-q -x")
    cat <<'END'
<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>580.10.01</driver_version>
  <cuda_version>13.0</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:53:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <uuid>GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001</uuid>
    <minor_number>0</minor_number>
    <pci><pci_bus_id>00000000:53:00.0</pci_bus_id></pci>
    <fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
END
    ;;
"topo -m")
    printf '\tGPU0\tCPU Affinity\tNUMA Affinity\n'
    printf 'GPU0\t X \t1\t1\n'
    ;;
"--query-gpu=uuid,compute_cap --format=csv,noheader")
    echo 'GPU-5f1c0f52-6a77-4c11-9d5f-3a2f7f6b0001, 9.0'
    ;;
*)
    echo 'not supported' >&2
    exit 3
    ;;
esac
"#;
/// The GPU's device node, which is there again after a reboot. No driver is behind it.
const DEVICE_NODES: &str = "c /dev/nvidia0 0666 root root - 195:0\n";
const JOIN_WITHIN: Duration = Duration::from_secs(120);
const READY_WITHIN: Duration = Duration::from_secs(120);
const CONVERGE_WITHIN: Duration = Duration::from_secs(60);

/// A control plane, and a guest whose daemon takes work from it.
pub struct Rig {
    pub guest: Guest,
    pub dev: Dev,
    pub node: String,
    pool: &'static str,
}

impl Rig {
    /// In the pool `gpu`, or in one made for it.
    pub fn new(pool: &'static str) -> anyhow::Result<Self> {
        // What may be missing is found out before anything starts.
        let (image, bcd) = (Image::built()?, program::path("bcd")?);
        let dev = Dev::start(&["--memory", "--sim", "0"])?;
        if pool != "gpu" {
            dev.json(&["pools", "create", pool, "--class", pool])?;
        }
        let made = dev.json(&["join-tokens", "create", "--site", "dev", "--pool", pool])?;
        let token = made["secret"].as_str().context("a join token comes with its secret")?;
        let script = install_script(&dev)?;

        let mut guest = Guest::boot(&image, &MACHINE)?;
        guest.wait_boot()?;
        guest.put("/usr/local/bin/nvidia-smi", NVIDIA_SMI.as_bytes(), 0o755)?;
        guest.put("/etc/tmpfiles.d/gpu.conf", DEVICE_NODES.as_bytes(), 0o644)?;
        guest.output("systemd-tmpfiles --create gpu.conf")?;
        guest.put("/root/bcd", &std::fs::read(bcd)?, 0o755)?;
        guest.put("/root/install-bcd.sh", script.as_bytes(), 0o644)?;
        guest.put("/root/token", token.as_bytes(), 0o600)?;
        let installed = guest.run_within(JOIN_WITHIN, "sh /root/install-bcd.sh --token-file /root/token")?;
        installed.ok().with_context(|| guest.journal("bcd")).context("install bcd in the guest")?;

        let mut rig = Self { guest, dev, node: String::new(), pool };
        rig.node = rig.wait_ready()?;
        Ok(rig)
    }

    /// Waits until the guest takes work, and returns its name.
    pub fn wait_ready(&mut self) -> anyhow::Result<String> {
        let ready = eventually(READY_WITHIN, "the guest takes work", || {
            let nodes = self.dev.json(&["nodes", "list"])?;
            let node = &nodes["items"][0];
            match (&node["schedulable"], node["name"].as_str()) {
                (Value::Bool(true), Some(name)) => Ok(Ok(name.to_owned())),
                _ => Ok(Err(nodes.to_string())),
            }
        });
        ready.with_context(|| self.guest.journal("bcd"))
    }

    pub fn reserve(&mut self, args: &[&str]) -> anyhow::Result<Hold> {
        let mut all = vec!["reservations", "create", "--pool", self.pool, "--wait", "--wait-timeout", "90"];
        all.extend(args);
        let made = self.dev.json(&all).with_context(|| self.guest.journal("bcd"))?;
        assert_eq!(made["state"], "active", "{made}\n{}", self.guest.journal("bcd"));
        let text =
            |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("{name} of {made}"));
        let cpus = made["limits"]["cpus"].as_str().unwrap_or_default().to_owned();
        Ok(Hold { id: text("id")?, allocation: text("allocation")?, cpus })
    }

    /// A file of the hold's cgroup.
    pub fn read(&mut self, hold: &Hold, name: &str) -> anyhow::Result<String> {
        self.guest.output(&format!("cat {}", hold.file(name)))
    }

    pub fn state_of(&self, hold: &Hold) -> anyhow::Result<Value> {
        Ok(self.dev.json(&["reservations", "get", &hold.id])?["state"].clone())
    }

    /// Waits until the slice is there with the half GiB that was booked.
    pub fn wait_limited(&mut self, hold: &Hold) -> anyhow::Result<()> {
        let (file, wanted) = (hold.file("memory.max"), HALF_GIB.to_string());
        let limited = eventually(CONVERGE_WITHIN, "the slice is there with its limit", || {
            let read = self.guest.run(&format!("cat {file}"))?;
            Ok(if read.stdout.trim() == wanted { Ok(()) } else { Err(format!("{read:?}")) })
        });
        limited.with_context(|| self.guest.journal("bcd"))
    }

    /// Has the machine rebooted, and returns the command as it ended.
    pub fn reboot(&mut self) -> anyhow::Result<Value> {
        let node = self.node.clone();
        let create = ["commands", "create", &node, "node.reboot", "--reason", "a test", "--yes"];
        let told = self.dev.json(&[&create[..], &["--wait", "--wait-timeout", "300"]].concat());
        told.with_context(|| self.guest.journal("bcd"))
    }

    /// How often a command was told to have settled.
    pub fn settled_times(&self, command: &str) -> anyhow::Result<usize> {
        let subject = format!("command/{command}");
        let events =
            self.dev.json(&["events", "list", "--type", "command.settled", "--subject", &subject])?;
        Ok(events["items"].as_array().with_context(|| events.to_string())?.len())
    }

    /// Waits until a file's last line has a word, and returns the file.
    pub fn wait_written(&mut self, file: &str, word: &str) -> anyhow::Result<String> {
        let written = eventually(CONVERGE_WITHIN, &format!("{word} is written to {file}"), || {
            let read = self.guest.run(&format!("cat {file}"))?;
            let last = read.stdout.lines().last().unwrap_or_default();
            Ok(if last.contains(word) { Ok(read.stdout) } else { Err(format!("{read:?}")) })
        });
        written.with_context(|| self.guest.journal("bcd"))
    }

    pub fn wait_no_slice(&mut self, hold: &Hold) -> anyhow::Result<()> {
        let folder = hold.file("");
        let gone = eventually(CONVERGE_WITHIN, "the slice goes", || {
            let there = self.guest.run(&format!("test ! -d {folder} || cat {folder}/cgroup.events"))?;
            Ok(if there.stdout.is_empty() { Ok(()) } else { Err(there.stdout) })
        });
        gone.with_context(|| self.guest.journal("bcd"))
    }
}

pub struct Hold {
    pub id: String,
    pub allocation: String,
    /// The booked set.
    pub cpus: String,
}

impl Hold {
    pub fn slice(&self) -> String {
        format!("bcd-alloc-{}.slice", self.allocation)
    }

    pub fn file(&self, name: &str) -> String {
        format!("/sys/fs/cgroup/bcd.slice/bcd-alloc.slice/{}/{name}", self.slice())
    }
}

/// The script for a machine that reaches the gateway by another name than its certificate has.
fn install_script(dev: &Dev) -> anyhow::Result<String> {
    let file = dev.data_dir.join("pki/public/pins.json");
    let pins: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let text = |name: &str| pins[name].as_str().with_context(|| format!("{name} of {pins}"));
    let listens = dev.ready["gateway"].as_str().context("dev tells where its gateway listens")?;
    let port = listens.rsplit(':').next().context("a port")?;
    let gateway = format!("https://{}:{port}", guest::HOST);
    let key = tempfile::NamedTempFile::new()?;
    std::fs::write(key.path(), pins["joinEncryptionJwk"].to_string())?;
    let key = path(key.path())?;
    let args = [
        ["--binary", "/root/bcd"],
        ["--gateway", &gateway],
        ["--server-name", "localhost"],
        ["--serving-ca-pin", text("servingCaPin")?],
        ["--join-signing-pin", text("joinSigningPin")?],
        ["--join-encryption-pin", text("joinEncryptionPin")?],
        ["--join-key", key],
    ];
    let mut all = vec!["daemon", "install-script"];
    all.extend(args.as_flattened());
    dev.cli(&all)?.ok()
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path that is text")
}
