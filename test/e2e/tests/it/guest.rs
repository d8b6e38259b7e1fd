//! What only a whole machine can show: limits that the kernel enforces, and a reboot.

use e2e::guest::{Guest, Image, Options};

mod crashes;
mod daemon;
mod rig;

#[test]
fn the_kernel_of_a_guest_enforces_limits_on_cgroup_v2() -> anyhow::Result<()> {
    let mut guest = Guest::boot(&Image::built()?, &Options::default())?;
    let state = guest.wait_boot()?;
    assert_eq!(state, "running");
    let controllers = guest.output("cat /sys/fs/cgroup/cgroup.controllers")?;
    for wanted in ["cpuset", "cpu", "memory", "pids"] {
        assert!(controllers.split(' ').any(|controller| controller == wanted), "{wanted} of {controllers}");
    }

    let unit = "systemd-run --quiet --wait -p MemoryMax=40M -p MemorySwapMax=0 -- bash -c";
    let within = guest.run(&format!("{unit} 'head -c 10M /dev/zero | tail >/dev/null'"))?;
    assert_eq!(within.code, 0, "{within:?}");
    let beyond = guest.run(&format!("{unit} 'set -o pipefail; head -c 200M /dev/zero | tail >/dev/null'"))?;
    assert_ne!(beyond.code, 0, "{beyond:?}");
    let log = guest.output("journalctl --no-pager -k --grep 'Memory cgroup out of memory'")?;
    assert!(log.contains("tail"), "{log}");

    let cpus = guest.output(
        "systemd-run --quiet --wait --pipe -p AllowedCPUs=1 -- \
         sh -c 'cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpuset.cpus.effective'",
    )?;
    assert_eq!(cpus, "1");
    Ok(())
}

#[test]
fn a_guest_that_reboots_is_the_same_machine_in_another_boot() -> anyhow::Result<()> {
    let mut guest = Guest::boot(&Image::built()?, &Options::default())?;
    let before = guest.boot_id().to_owned();
    assert_eq!(guest.output("cat /proc/sys/kernel/random/boot_id")?, before);
    let machine = guest.output("cat /etc/machine-id")?;

    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    guest.put("/root/kept", &bytes, 0o640)?;
    let sums = guest.output("stat -c '%s %a' /root/kept; cksum </root/kept; sync")?;

    guest.run("systemctl reboot")?;
    guest.wait_reboot(&before)?;
    assert_eq!(guest.boots().len(), 2);
    assert_eq!(guest.output("cat /proc/sys/kernel/random/boot_id")?, guest.boot_id());
    assert_eq!(guest.output("cat /etc/machine-id")?, machine);
    assert_eq!(guest.output("stat -c '%s %a' /root/kept; cksum </root/kept; sync")?, sums);
    assert!(sums.starts_with("3000000 640\n"), "{sums}");
    Ok(())
}

#[test]
fn a_script_that_hangs_is_ended_and_the_guest_goes_on() -> anyhow::Result<()> {
    let mut guest = Guest::boot(&Image::built()?, &Options::default())?;
    let hung = guest.run_within(std::time::Duration::from_secs(1), "echo before; sleep 1000")?;
    assert_eq!((hung.code, hung.stdout.as_str()), (124, "before\n"));
    let failed = guest.run("echo out; echo err >&2; exit 7")?;
    assert_eq!((failed.code, failed.stdout.as_str(), failed.stderr.as_str()), (7, "out\n", "err\n"));
    let loud = guest.run("head -c 9M /dev/zero | tr '\\0' x")?;
    assert_eq!(loud.stdout.len(), 4 << 20);
    Ok(())
}
