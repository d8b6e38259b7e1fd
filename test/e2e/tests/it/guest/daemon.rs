//! The daemon on a machine of its own: limits that its kernel keeps, and a reboot.

use anyhow::Context;
use serde_json::Value;

use super::rig::{HALF_GIB, Hold, Rig};

const HALF_A_GIB: [&str; 2] = ["--memory-mib", "512"];

#[test]
fn a_hold_is_enforced_by_the_kernel_and_its_release_ends_nobody() -> anyhow::Result<()> {
    let mut rig = Rig::new("gpu")?;
    let hold = rig.reserve(&[&["--gpus", "1", "--vcpu", "1"], &HALF_A_GIB[..]].concat())?;
    rig.wait_limited(&hold)?;
    assert_eq!(rig.read(&hold, "memory.swap.max")?, "0");
    assert_eq!(rig.read(&hold, "cpu.max")?, "100000 100000");
    // The GPU's side of the machine, and nothing beside it.
    assert_eq!(hold.cpus, "1");
    assert_eq!(rig.read(&hold, "cpuset.cpus.effective")?, hold.cpus);
    assert_eq!(rig.read(&hold, "cpuset.mems.effective")?, "1");
    let booked = rig.dev.json(&["reservations", "get", &hold.id])?;
    let limits = &booked["limits"];
    assert_eq!((&limits["memoryMiB"], &limits["mems"]), (&512.into(), &"1".into()), "{booked}");
    let spec: Value = serde_json::from_str(&rig.guest.output("cat /etc/cdi/bcd-*.json")?)?;
    assert_eq!(spec["devices"][0]["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia0", "{spec}");

    let run = format!("systemd-run --quiet --wait --slice={} -- bash -c", hold.slice());
    // dd fills one buffer of its block's size.
    let within = rig.guest.run(&format!("{run} 'dd if=/dev/zero of=/dev/null bs=450M count=1'"))?;
    assert_eq!(within.code, 0, "{within:?}");
    assert_eq!(oom_kills(&rig.read(&hold, "memory.events")?), Some(0));
    let beyond = rig.guest.run(&format!("{run} 'dd if=/dev/zero of=/dev/null bs=530M count=1'"))?;
    assert_ne!(beyond.code, 0, "{beyond:?}");
    let events = rig.read(&hold, "memory.events")?;
    assert_eq!(oom_kills(&events), Some(1), "{events}");

    rig.guest.output(&format!("systemd-run --quiet --slice={} --unit=work sleep infinity", hold.slice()))?;
    let released = rig.dev.json(&["reservations", "release", &hold.id, "--wait", "--yes"])?;
    assert_eq!(released["state"], "released", "{released}");
    assert_eq!(rig.guest.output("ls /etc/cdi")?, "");
    assert_eq!(rig.guest.output("systemctl is-active work")?, "active");
    assert_eq!(rig.read(&hold, "memory.max")?, HALF_GIB.to_string());
    rig.guest.output("systemctl stop work")?;
    // The next pass takes the slice, and another hold of the GPU makes one.
    let next = rig.reserve(&[&["--gpus", "1"], &HALF_A_GIB[..]].concat())?;
    rig.wait_no_slice(&hold)?;
    rig.wait_limited(&next)
}

impl Rig {
    fn wait_confined(&mut self, with_gpu: &Hold, bare: &Hold) -> anyhow::Result<()> {
        self.wait_limited(with_gpu)?;
        self.wait_limited(bare)?;
        assert_eq!(self.read(with_gpu, "cpuset.cpus.effective")?, with_gpu.cpus);
        assert_eq!((with_gpu.cpus.as_str(), bare.cpus.as_str()), ("1", ""));
        assert_eq!(self.read(with_gpu, "cpu.max")?, "100000 100000");
        assert_eq!(self.read(bare, "cpuset.cpus.effective")?, "0-1");
        Ok(())
    }
}

fn oom_kills(memory_events: &str) -> Option<u64> {
    memory_events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

#[test]
fn a_node_reboots_once_when_told_and_its_holds_are_back() -> anyhow::Result<()> {
    let mut rig = Rig::new("vps-host")?;
    let with_gpu = rig.reserve(&[&["--gpus", "1", "--vcpu", "1"], &HALF_A_GIB[..]].concat())?;
    // Of memory alone: on any CPU of the machine.
    let bare = rig.reserve(&HALF_A_GIB)?;
    rig.wait_confined(&with_gpu, &bare)?;
    let before = rig.guest.boot_id().to_owned();

    let told = rig.reboot()?;
    assert_eq!(told["state"], "succeeded", "{told}");
    assert_eq!(told["result"]["previousBootId"], before.as_str(), "{told}");
    rig.guest.wait_reboot(&before)?;
    assert_eq!(told["result"]["bootId"], rig.guest.boot_id(), "{told}");
    rig.wait_ready()?;
    rig.wait_confined(&with_gpu, &bare)?;
    assert_eq!((rig.state_of(&with_gpu)?, rig.state_of(&bare)?), ("active".into(), "active".into()));

    // A command that came twice would have brought the machine down again by now.
    assert_eq!(rig.guest.boots().len(), 2, "{:?}", rig.guest.boots());
    let log = rig.guest.output("journalctl --no-pager --unit=bcd --grep rebooting")?;
    assert_eq!(log.lines().filter(|line| line.contains("rebooting")).count(), 1, "{log}");
    let commands = rig.dev.json(&["commands", "list", "--kind", "node.reboot"])?;
    assert_eq!(commands["items"].as_array().map(Vec::len), Some(1), "{commands}");
    assert_eq!(rig.settled_times(told["id"].as_str().context("a command has an id")?)?, 1);
    Ok(())
}
