//! Debian with its own cloud-init, which finds the seed and does all that is in it.

use anyhow::{Context, ensure};
use e2e::footprint::database_of_dev;
use guests::{CloudImage, Libvirtd};

use super::{dev_with_host, grounds, make_flavor, ssh, ssh_key, text};

const NAMESERVER: &str = "192.0.2.53";
/// Marks begin with what follows from them, so that a failure shows all of it.
const LOOK: &str = "cloud-init status --wait --long; echo \"own hostname: $(hostname)\"; \
    echo \"own user: $(id -un)\"; echo \"own id: $(cat /var/lib/cloud/data/instance-id)\"; \
    echo \"own address: $(ip -o -4 address show scope global)\"; echo \"own route: $(ip -4 route show default)\"; \
    echo \"own nameservers: $(resolvectl dns)\"; echo \"own keys: $(wc -l <.ssh/authorized_keys)\"; \
    echo \"own routers: $(grep -h accept-ra /etc/netplan/*.yaml)\"; echo \"own source: $(cat /run/cloud-init/result.json)\"; \
    echo \"own MiB: $(df --output=size --block-size=1M / | tail -n 1)\"; \
    echo \"own units: $(systemctl list-units --failed --plain --no-legend)\"; \
    echo \"own complaints: $(grep -E 'WARNING|ERROR|CRITICAL|Traceback' /var/log/cloud-init.log)\"; \
    echo \"own time: $(cat /proc/uptime)\"; systemd-analyze blame --no-pager | head -n 12";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debian_takes_its_seed_whole_by_its_own_cloud_init() -> anyhow::Result<()> {
    let image = CloudImage::built()?;
    let libvirtd = Libvirtd::start()?;
    let mut dev = dev_with_host(&libvirtd)?;
    let (host, database) = (dev.data_dir.join("host"), database_of_dev(&dev.data_dir).await?);
    let grounds = grounds(&dev, &host, &libvirtd, &database);
    let before = grounds.settled().await?;

    let network = ["--network-subnet", "10.88.0.0/24", "--network-gateway", "10.88.0.1"];
    let network = [&network[..], &["--network-bridge", "vmnat0", "--network-scope", "host"]].concat();
    let named = ["--network-nameservers", NAMESERVER];
    dev.json(&[&["pools", "update", "host"], &network[..], &named].concat())?;
    make_flavor(&dev, "cloud", 512, 3)?;
    let disk = image.disk();
    let disk = disk.to_str().context("a path")?;
    dev.json(&["images", "import", disk, "--name", "debian", "--login-user", CloudImage::USER])?;
    let keys = tempfile::tempdir()?;
    let key = ssh_key(keys.path())?;
    let public = format!("{key}.pub");
    let of = ["--pool", "host", "--flavor", "cloud", "--image", "debian", "--name", "cloudy"];
    let more = ["--ssh-key", &public, "--wait", "--wait-timeout", "120"];
    let made = dev.json(&[&["instances", "create"], &of[..], &more].concat())?;
    ensure!(made["state"] == "running", "{made}");
    let id = text(&made, "id")?;

    let said = ssh(&dev, "cloudy", &key, &[LOOK])?;
    eprintln!("the guest says:\n{said}");
    let own = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("own {what}:")));
        line.map(str::trim).with_context(|| format!("own {what} in what the guest says:\n{said}"))
    };
    ensure!(said.lines().any(|line| line == "status: done"), "cloud-init is not done:\n{said}");
    ensure!(own("complaints")?.is_empty(), "cloud-init complains:\n{said}");
    ensure!(own("units")?.is_empty(), "units have failed:\n{said}");
    ensure!(own("hostname")? == "cloudy", "{said}");
    ensure!(own("user")? == CloudImage::USER, "{said}");
    ensure!(own("keys")? == "1", "{said}");
    ensure!(own("id")? == id, "{said}");
    ensure!(said.contains("DataSourceNoCloud"), "{said}");
    ensure!(own("address")?.contains(" 10.88.0.2/24 "), "{said}");
    ensure!(own("route")?.starts_with("default via 10.88.0.1 "), "{said}");
    ensure!(own("nameservers")?.ends_with(NAMESERVER) || said.contains(&format!(": {NAMESERVER}")), "{said}");
    ensure!(own("routers")? == "accept-ra: false", "it waits for routers:\n{said}");
    // Its root file system fills the disk that its flavor has, and not the image's.
    ensure!(own("MiB")?.parse::<u32>()? > 2500, "{said}");

    let deleted = dev.json(&["instances", "delete", id, "--wait", "--yes"])?;
    ensure!(deleted["state"] == "deleted", "{deleted}");
    grounds.back_to(&before).await?;
    database.close();
    let status = dev.running.stop(std::time::Duration::from_secs(30))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
