//! The daemon killed around every write that a reboot makes in its journal.

use anyhow::Context;
use e2e::program;

use super::rig::Rig;

/// Where `e2e-bcd` looks for its points, and where it says what it wrote.
const ARMED: &str = "/var/lib/bcd/armed";
const WRITES: &str = "/var/lib/bcd/reboot-writes";
/// A command's own writes; between them others may come.
const OF_A_COMMAND: [&str; 4] = ["accepted", "running", "done", "delivered"];
const BEFORE_THE_REBOOT: [&str; 2] = ["accepted", "running"];
const SIDES: [&str; 2] = ["before", "after"];

#[test]
fn a_daemon_killed_around_any_write_of_a_reboot_reboots_once_and_settles_once() -> anyhow::Result<()> {
    let mut rig = Rig::new("vps-host")?;
    let mortal = std::fs::read(program::path("e2e-bcd")?)?;
    rig.guest.put("/root/e2e-bcd", &mortal, 0o755)?;
    // The unit waits for seconds between its starts, of which there will be many.
    rig.guest.output(
        "mkdir -p /etc/systemd/system/bcd.service.d
         printf '[Service]\\nRestartSec=200ms\\n' >/etc/systemd/system/bcd.service.d/soon.conf
         install -m 0755 /root/e2e-bcd /usr/local/bin/bcd
         systemctl daemon-reload && systemctl restart bcd",
    )?;
    rig.wait_ready()?;

    let whole = reboot_with(&mut rig, &[])?;
    assert!(OF_A_COMMAND.iter().all(|own| whole.iter().any(|write| write.contains(own))), "{whole:?}");
    let (asked, told): (Vec<&str>, Vec<&str>) = whole
        .iter()
        .map(String::as_str)
        .partition(|write| BEFORE_THE_REBOOT.iter().any(|own| write.contains(own)));
    // A machine goes down once, so what leads to that is one reboot a point. What follows is one after another.
    for write in asked {
        for side in SIDES {
            reboot_with(&mut rig, &[(side, name(write))])?;
        }
    }
    let rest: Vec<_> = told.iter().flat_map(|write| SIDES.map(|side| (side, name(write)))).collect();
    reboot_with(&mut rig, &rest)?;
    Ok(())
}

/// The name of a write: of the command's own part of it, if it has one.
fn name(write: &str) -> &str {
    let mut names = write.split(' ');
    names.clone().find(|name| OF_A_COMMAND.contains(name)).or_else(|| names.next()).unwrap_or_default()
}

/// Has the machine rebooted by a daemon that ends at these points, and returns what was written.
fn reboot_with(rig: &mut Rig, points: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
    let started = std::time::Instant::now();
    let armed: String = points.iter().map(|(side, write)| format!("{side} {write}\\n")).collect();
    rig.guest.output(&format!("rm -f {WRITES}; printf '{armed}' >{ARMED}"))?;
    let (before, boots) = (rig.guest.boot_id().to_owned(), rig.guest.boots().len());
    let told = rig.reboot().with_context(|| format!("reboot with a daemon that ends at {points:?}"))?;
    let about = format!("{points:?}: {told}");
    assert_eq!(told["state"], "succeeded", "{about}");
    assert_eq!(told["result"]["previousBootId"], before.as_str(), "{about}");
    rig.guest.wait_reboot(&before)?;
    let writes = rig.wait_written(WRITES, "delivered")?;
    rig.wait_ready()?;
    // Marks are written when time has moved, so they may not have been.
    let left = rig.guest.output(&format!("cat {ARMED}"))?;
    assert!(!OF_A_COMMAND.iter().any(|own| left.contains(own)), "{about} went by {left:?}: {writes}");
    assert_eq!(rig.guest.boots().len(), boots + 1, "{about} {:?}", rig.guest.boots());
    assert_eq!(told["result"]["bootId"], rig.guest.boot_id(), "{about}");
    assert_eq!(rig.settled_times(told["id"].as_str().context("a command has an id")?)?, 1, "{about}");
    eprintln!("killed at {points:?} in {:?}: {writes:?}", started.elapsed());
    Ok(writes.lines().map(str::to_owned).collect())
}
