//! The daemon on a machine of its own, against a control plane on this host.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use e2e::dev::{Dev, eventually};
use e2e::guest::{self, Guest, Image, Options};
use e2e::program;
use serde_json::Value;

const GIB: u64 = 1 << 30;
/// Each NUMA node has room for a hold of a gibibyte, beside the one that the daemon keeps back for the host.
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
struct Rig {
    guest: Guest,
    dev: Dev,
    node: String,
}

impl Rig {
    fn new() -> anyhow::Result<Self> {
        // What may be missing is found out before anything starts.
        let (image, bcd) = (Image::built()?, program::path("bcd")?);
        let dev = Dev::start(&["--memory", "--sim", "0"])?;
        let made = dev.json(&["join-tokens", "create", "--site", "dev", "--pool", "gpu"])?;
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

        let mut rig = Self { guest, dev, node: String::new() };
        rig.node = rig.wait_ready()?;
        Ok(rig)
    }

    /// Waits until the guest takes work, and returns its name.
    fn wait_ready(&mut self) -> anyhow::Result<String> {
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

    fn reserve(&mut self, args: &[&str]) -> anyhow::Result<Hold> {
        let mut all = vec!["reservations", "create", "--pool", "gpu", "--wait", "--wait-timeout", "90"];
        all.extend(args);
        let made = self.dev.json(&all).with_context(|| self.guest.journal("bcd"))?;
        assert_eq!(made["state"], "active", "{made}\n{}", self.guest.journal("bcd"));
        let text =
            |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("{name} of {made}"));
        Ok(Hold { id: text("id")?, allocation: text("allocation")? })
    }

    /// A file of the hold's cgroup.
    fn read(&mut self, hold: &Hold, name: &str) -> anyhow::Result<String> {
        self.guest.output(&format!("cat {}", hold.file(name)))
    }

    fn state_of(&self, hold: &Hold) -> anyhow::Result<Value> {
        Ok(self.dev.json(&["reservations", "get", &hold.id])?["state"].clone())
    }

    /// Waits until the slice is there with the limit that was booked.
    fn wait_limited(&mut self, hold: &Hold, memory_bytes: u64) -> anyhow::Result<()> {
        let (file, wanted) = (hold.file("memory.max"), memory_bytes.to_string());
        let limited = eventually(CONVERGE_WITHIN, "the slice is there with its limit", || {
            let read = self.guest.run(&format!("cat {file}"))?;
            Ok(if read.stdout.trim() == wanted { Ok(()) } else { Err(format!("{read:?}")) })
        });
        limited.with_context(|| self.guest.journal("bcd"))
    }

    fn wait_no_slice(&mut self, hold: &Hold) -> anyhow::Result<()> {
        let folder = hold.file("");
        let gone = eventually(CONVERGE_WITHIN, "the slice goes", || {
            let there = self.guest.run(&format!("test ! -d {folder} || cat {folder}/cgroup.events"))?;
            Ok(if there.stdout.is_empty() { Ok(()) } else { Err(there.stdout) })
        });
        gone.with_context(|| self.guest.journal("bcd"))
    }
}

struct Hold {
    id: String,
    allocation: String,
}

impl Hold {
    fn slice(&self) -> String {
        format!("bcd-alloc-{}.slice", self.allocation)
    }

    fn file(&self, name: &str) -> String {
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

#[test]
fn a_hold_is_enforced_by_the_kernel_and_its_release_ends_nobody() -> anyhow::Result<()> {
    let mut rig = Rig::new()?;
    let hold = rig.reserve(&["--gpus", "1", "--memory-gib", "1", "--vcpu", "1"])?;
    rig.wait_limited(&hold, GIB)?;
    assert_eq!(rig.read(&hold, "memory.swap.max")?, "0");
    assert_eq!(rig.read(&hold, "cpu.max")?, "100000 100000");
    // The GPU's side of the machine, and nothing beside it.
    assert_eq!(rig.read(&hold, "cpuset.cpus.effective")?, "1");
    assert_eq!(rig.read(&hold, "cpuset.mems.effective")?, "1");
    let booked = rig.dev.json(&["reservations", "get", &hold.id])?;
    assert_eq!(
        (&booked["limits"]["cpus"], &booked["limits"]["mems"]),
        (&"1".into(), &"1".into()),
        "{booked}"
    );
    let spec: Value = serde_json::from_str(&rig.guest.output("cat /etc/cdi/bcd-*.json")?)?;
    assert_eq!(spec["devices"][0]["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia0", "{spec}");

    let run = format!("systemd-run --quiet --wait --slice={} -- bash -c", hold.slice());
    // dd fills one buffer of its block's size.
    let within = rig.guest.run(&format!("{run} 'dd if=/dev/zero of=/dev/null bs=500M count=1'"))?;
    assert_eq!(within.code, 0, "{within:?}");
    let beyond = rig.guest.run(&format!("{run} 'dd if=/dev/zero of=/dev/null bs=1500M count=1'"))?;
    assert_ne!(beyond.code, 0, "{beyond:?}");
    let events = rig.read(&hold, "memory.events")?;
    let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill ")).context("oom_kill")?;
    assert_ne!(killed, "0", "{events}");

    rig.guest.output(&format!("systemd-run --quiet --slice={} --unit=work sleep infinity", hold.slice()))?;
    let released = rig.dev.json(&["reservations", "release", &hold.id, "--wait", "--yes"])?;
    assert_eq!(released["state"], "released", "{released}");
    assert_eq!(rig.guest.output("ls /etc/cdi")?, "");
    assert_eq!(rig.guest.output("systemctl is-active work")?, "active");
    assert_eq!(rig.read(&hold, "memory.max")?, GIB.to_string());
    rig.guest.output("systemctl stop work")?;
    // The next pass takes the slice, and another hold of the GPU makes one.
    let next = rig.reserve(&["--gpus", "1", "--memory-gib", "1"])?;
    rig.wait_no_slice(&hold)?;
    rig.wait_limited(&next, GIB)
}

#[test]
fn a_node_reboots_once_when_told_and_its_holds_are_back() -> anyhow::Result<()> {
    let mut rig = Rig::new()?;
    let hold = rig.reserve(&["--gpus", "1", "--memory-gib", "1"])?;
    rig.wait_limited(&hold, GIB)?;
    let before = rig.guest.boot_id().to_owned();

    let node = rig.node.clone();
    let reboot = ["commands", "create", &node, "node.reboot", "--reason", "a test", "--yes"];
    let told = rig.dev.json(&[&reboot[..], &["--wait", "--wait-timeout", "300"]].concat());
    let told = told.with_context(|| rig.guest.journal("bcd"))?;
    assert_eq!(told["state"], "succeeded", "{told}");
    assert_eq!(told["result"]["previousBootId"], before.as_str(), "{told}");
    rig.guest.wait_reboot(&before)?;
    assert_eq!(told["result"]["bootId"], rig.guest.boot_id(), "{told}");
    rig.wait_ready()?;
    rig.wait_limited(&hold, GIB)?;
    assert_eq!(rig.state_of(&hold)?, "active");

    // A command that came twice would have brought the machine down again by now.
    assert_eq!(rig.guest.boots().len(), 2, "{:?}", rig.guest.boots());
    let log = rig.guest.output("journalctl --no-pager --unit=bcd --grep rebooting")?;
    assert_eq!(log.lines().filter(|line| line.contains("rebooting")).count(), 1, "{log}");
    let commands = rig.dev.json(&["commands", "list", "--kind", "node.reboot"])?;
    assert_eq!(commands["items"].as_array().map(Vec::len), Some(1), "{commands}");
    let subject = format!("command/{}", told["id"].as_str().context("a command has an id")?);
    let events = rig.dev.json(&["events", "list", "--type", "command.settled", "--subject", &subject])?;
    assert_eq!(events["items"].as_array().map(Vec::len), Some(1), "{events}");
    Ok(())
}
