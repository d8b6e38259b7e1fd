//! That what is left is found: each kind of it, left on purpose.

use std::process::Command;

use anyhow::ensure;
use e2e::footprint::Grounds;
use e2e::program::Running;
use guests::Libvirtd;

/// A row without all that it would belong to.
const ROW: &str = "DO $$ BEGIN
  SET LOCAL session_replication_role = replica;
  INSERT INTO ip_leases (allocation_id, pool_id, node_id, scope, address)
    VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'host', '10.88.0.9');
END $$";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_left_is_found() -> anyhow::Result<()> {
    let libvirtd = Libvirtd::start()?;
    let db = testkit::db().await;
    let dir = tempfile::tempdir()?;
    let daemon = Running::start("daemon", Command::new("sleep").arg("1000"))?;
    let grounds = |daemon| Grounds { libvirtd: &libvirtd, daemon, dir: dir.path(), database: &db.store };
    let before = grounds(daemon.pid()).settled().await?;
    drop(daemon);

    let network = format!("--net={}", libvirtd.network()?.display());
    let inside = |words: &str| -> anyhow::Result<()> {
        let done = Command::new("nsenter").arg(&network).args(words.split(' ')).output()?;
        ensure!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    };
    inside("ip link add bcleft0 type bridge")?;
    inside("ip address add 10.99.0.1/24 dev bcleft0")?;
    inside("ip link set bcleft0 up")?;
    inside("ip route add blackhole 10.98.0.0/24")?;
    inside("nft add table bridge left")?;
    let xml = dir.path().join("left.xml");
    std::fs::write(
        &xml,
        "<domain type='qemu'><name>left</name><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os></domain>",
    )?;
    libvirtd.virsh_ok(&["define", &xml.display().to_string()])?;
    db.batch(ROW).await;
    // In libvirt's namespaces, as what it starts is.
    let spaces = libvirtd.processes()?[0].0.to_string();
    let mut stray = Command::new("nsenter");
    stray.args(["--target", &spaces, "--pid", "--", "sleep", "999"]);
    let stray = Running::start("stray", &mut stray)?;
    let mut daemon = Command::new("sh");
    daemon.args(["-c", "exec sleep 1000 <left.xml"]).current_dir(dir.path());
    let daemon = Running::start("daemon", &mut daemon)?;

    let wanted = [
        "+ link \"bcleft0\"",
        "+ address of \"bcleft0\": \"10.99.0.1\"",
        "10.98.0.0/24",
        "\"family\":\"bridge\",\"name\":\"left\"",
        "+ libvirt's domain left",
        "+ file left.xml",
        "+ open by the daemon: left.xml",
        "- open by the daemon: /dev/null",
        "+ process beside libvirt: sleep 999",
        "+ row of ip_leases",
    ];
    let now = grounds(daemon.pid()).settled().await?;
    drop((daemon, stray));
    let left = now.beyond(&before);
    for kind in wanted {
        ensure!(
            left.iter().any(|line| line.contains(kind)),
            "no {kind:?} in what is left:\n{}",
            left.join("\n")
        );
    }
    ensure!(before.beyond(&before).is_empty());
    Ok(())
}
