//! Virtual machines on this very machine: a real libvirt, a real QEMU, a real guest.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e::dev::{Dev, eventually};
use e2e::footprint::{Grounds, database_of_dev};
use guests::{Libvirtd, Tiny};
use serde_json::Value;
use store::Store;

mod cloud_init;
mod killed;
mod left;
mod refused;

/// An emulated guest on two busy cores.
const BOOTS_WITHIN: Duration = Duration::from_secs(120);

/// `better-compute dev` with this machine as a host, which keeps its data for as long as it runs.
fn dev_with_host(libvirtd: &Libvirtd) -> anyhow::Result<Dev> {
    let (uri, network) = (libvirtd.uri(), libvirtd.network()?.display().to_string());
    Dev::start(&["--sim", "0", "--host", "--libvirt", &uri, "--network-namespace", &network])
}

fn grounds<'a>(dev: &Dev, host: &'a Path, libvirtd: &'a Libvirtd, database: &'a Store) -> Grounds<'a> {
    Grounds { libvirtd, daemon: dev.running.pid(), dir: host, database }
}

fn make_flavor(dev: &Dev, name: &str, memory_mib: u32, disk_gib: u32) -> anyhow::Result<()> {
    let (memory, disk) = (memory_mib.to_string(), disk_gib.to_string());
    let size = ["--vcpu", "1", "--memory-mib", &memory, "--disk-gib", &disk];
    dev.json(&[&["flavors", "create", name, "--pool", "host"], &size[..]].concat())?;
    Ok(())
}

/// Asks a guest's shell at its serial console, until it answers.
fn ask(console: &Path, script: &str) -> anyhow::Result<String> {
    let started = Instant::now();
    let mut said = String::new();
    while started.elapsed() < BOOTS_WITHIN {
        let Ok(mut stream) = UnixStream::connect(console) else {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        // A shell that is not there yet hears the end of it.
        let line = format!("\necho begin-\"$((40 + 1))\"; {script}; echo done-\"$((40 + 2))\"\n");
        stream.write_all(line.as_bytes())?;
        let mut buffer = [0; 4096];
        while let Ok(length) = stream.read(&mut buffer) {
            if length == 0 {
                break;
            }
            said.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if let Some((_, heard)) = said.rsplit_once("begin-41")
                && heard.contains("done-42")
            {
                return Ok(heard.to_owned());
            }
        }
    }
    bail!("the guest said nothing of it within {BOOTS_WITHIN:?}:\n{said}")
}

fn text<'a>(value: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    value[field].as_str().with_context(|| format!("{field} of {value}"))
}

/// A new key of OpenSSH's; the path of its private half.
fn ssh_key(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("key").display().to_string();
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path]).status()?;
    ensure!(made.success(), "ssh-keygen: {made}");
    Ok(path)
}

fn ssh(dev: &Dev, name: &str, key: &str, args: &[&str]) -> anyhow::Result<String> {
    let done =
        dev.cli(&[&["ssh", "--wait-timeout", "240", name, "-i", key, "-o", "BatchMode=yes"], args].concat())?;
    ensure!(done.code == 0, "ssh ended with {:?}:\n{}\n{}", done.code, done.stdout, done.stderr);
    Ok(done.stdout)
}

/// Its console and a port of it, and that they are closed when whoever opened them may not any more.
fn ways_in(dev: &Dev, id: &str) -> anyhow::Result<()> {
    // A token of its own, so that it can be taken away.
    let made = dev.json(&["tokens", "create", "guest", "--expires-in-hours", "1"])?;
    let (token, secret) = (text(&made["token"], "id")?.to_owned(), text(&made, "secret")?.to_owned());
    let mut console = dev.command(&["console", "web"])?;
    let console = console.env("BETTER_COMPUTE_TOKEN", secret);
    let mut console = console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut typed = console.stdin.take().context("its input")?;
    let mut shown = console.stdout.take().context("its output")?;
    typed.write_all(b"\necho said-$((40 + 2))\n")?;
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("said-42") {
        let mut piece = [0; 1024];
        let read = shown.read(&mut piece)?;
        ensure!(read > 0, "the console ended:\n{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..read]);
    }

    let mut forward = dev.command(&["port-forward", "web", "0:22"])?;
    let mut forward = forward.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(forward.stdout.take().context("its output")?).read_line(&mut line)?;
    let local = line.split(' ').next().context("where it listens")?;
    let mut banner = [0; 8];
    std::net::TcpStream::connect(local)?.read_exact(&mut banner)?;
    ensure!(&banner == b"SSH-2.0-", "{banner:?}");
    forward.kill()?;
    forward.wait()?;

    let open = dev.json(&["tunnels", "list", "--instance", id])?;
    let of_console = |one: &Value| one["op"] == "console" && one["state"] == "open";
    ensure!(open["items"].as_array().is_some_and(|items| items.iter().any(of_console)), "{open}");
    dev.json(&["tokens", "revoke", &token, "--yes"])?;
    let revoked = Instant::now();
    // It ends by itself, with its input still there.
    while console.try_wait()?.is_none() {
        ensure!(revoked.elapsed() < Duration::from_secs(20), "a console of a revoked token goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("the console of a revoked token was closed after {:.1} s", revoked.elapsed().as_secs_f64());
    eventually(Duration::from_secs(20), "every tunnel is told to be closed", || {
        let tunnels = dev.json(&["tunnels", "list", "--instance", id, "--include-closed"])?;
        let items = tunnels["items"].as_array().context("a list")?;
        let told = dev.json(&["audit", "list", "--limit", "200"])?;
        let count = |action: &str| {
            told["items"].as_array().into_iter().flatten().filter(|one| one["action"] == action).count()
        };
        let closed = count("compute:tunnels:closed");
        let done = items.iter().all(|one| one["state"] == "closed") && closed == items.len();
        let revoked = items.iter().any(|one| one["reason"] == "token-over");
        Ok(if done && revoked { Ok(()) } else { Err(format!("{closed} told of {tunnels}")) })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_boots_its_image_on_this_machine_grows_and_leaves_nothing() -> anyhow::Result<()> {
    let tiny = Tiny::built()?;
    let libvirtd = Libvirtd::start()?;
    let mut dev = dev_with_host(&libvirtd)?;
    let (host, database) = (dev.data_dir.join("host"), database_of_dev(&dev.data_dir).await?);
    let grounds = grounds(&dev, &host, &libvirtd, &database);
    let before = grounds.settled().await?;

    make_flavor(&dev, "small", 256, 1)?;
    make_flavor(&dev, "larger", 320, 2)?;
    let keys = tempfile::tempdir()?;
    let key = ssh_key(keys.path())?;
    let public = format!("{key}.pub");
    let disk = tiny.disk();
    let disk = disk.to_str().context("a path")?;
    dev.json(&["images", "import", disk, "--name", "tiny", "--login-user", "root"])?;
    let made = dev.json(&[
        "instances",
        "create",
        "--pool",
        "host",
        "--flavor",
        "small",
        "--image",
        "tiny",
        "--name",
        "web",
        "--ssh-key",
        &public,
        "--wait",
    ])?;
    ensure!(made["state"] == "running", "{made}");
    let id = text(&made, "id")?;
    // As a person would, at once: it waits for the guest.
    let said = ssh(&dev, "web", &key, &["uname -a; echo key of $(wc -l </.ssh/authorized_keys)"])?;
    ensure!(said.contains("Linux web ") && said.contains("key of 1"), "{said}");
    ways_in(&dev, id)?;
    let console = host.join("libvirt/instances").join(id).join("tty");
    let said = ask(&console, "hostname; ip -o addr show; ip route; ping -c 1 -W 5 10.88.0.1")?;
    for expected in ["web", "inet 10.88.0.2/24", "default via 10.88.0.1", "1 packets received"] {
        ensure!(said.contains(expected), "no {expected:?} in what the guest says:\n{said}");
    }

    let stopped = dev.json(&["instances", "stop", id, "--wait"])?;
    ensure!(stopped["state"] == "stopped", "{stopped}");
    let resized = dev.json(&["instances", "resize", id, "--flavor", "larger", "--wait"])?;
    ensure!(resized["diskGiB"] == 2, "{resized}");
    let started = dev.json(&["instances", "start", id, "--wait"])?;
    ensure!(started["state"] == "running", "{started}");
    // The same host as before, by the key that its disk has kept.
    let said = ssh(&dev, "web", &key, &["cat /proc/partitions"])?;
    ensure!(said.contains("2097152 vda"), "the disk has grown:\n{said}");

    let refused = dev.cli(&["images", "delete", "tiny", "--yes"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("in use by 1 instances: web"), "{}", refused.stderr);
    let deleted = dev.json(&["instances", "delete", id, "--wait", "--yes"])?;
    ensure!(deleted["state"] == "deleted", "{deleted}");
    grounds.back_to(&before).await?;
    database.close();
    let stored = || Ok::<_, anyhow::Error>(std::fs::read_dir(dev.data_dir.join("images"))?.count());
    ensure!(stored()? == 1, "the store has the image");
    let gone = dev.json(&["images", "delete", "tiny", "--yes"])?;
    ensure!(gone["state"] == "deleted", "{gone}");
    eventually(Duration::from_secs(30), "its bytes go from the store", || {
        Ok(match stored()? {
            0 => Ok(()),
            left => Err(format!("{left} files")),
        })
    })?;
    let status = dev.running.stop(Duration::from_secs(30))?;
    ensure!(status.success(), "{status}");
    Ok(())
}
