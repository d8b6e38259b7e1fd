//! SSH certificates from the command line to a login: the real control plane signs the spec, the real agent writes sshd's files,
//! and a real sshd reads them. Its own paths are absolute, so the drop-in's are moved below the machine's folder.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use e2e::dev::{Dev, eventually};
use serde_json::Value;

const SSHD: &str = "/usr/sbin/sshd";
const DROP_IN: &str = "etc/ssh/sshd_config.d/10-better-compute.conf";
/// A spec is made, signed, sent, and its files written.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
const START_LIMIT: Duration = Duration::from_secs(20);

struct Sshd {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(program: &str, args: &[&str]) -> anyhow::Result<Output> {
    Command::new(program).args(args).stdin(Stdio::null()).output().with_context(|| program.to_owned())
}

fn key(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    let made = run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path.display().to_string()])?;
    ensure!(made.status.success(), "{made:?}");
    Ok(path)
}

impl Sshd {
    /// Over the files of the machine whose root is `root`.
    fn start(root: &Path, work: &Path) -> anyhow::Result<Self> {
        let moved = std::fs::read_to_string(root.join(DROP_IN))?
            .replace(" /etc/ssh/", &format!(" {}/etc/ssh/", root.display()));
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (config, log) = (work.join("sshd_config"), work.join("sshd.log"));
        let host_key = key(work, "host_key")?;
        let rest = format!(
            "HostKey {}\nListenAddress 127.0.0.1\nPort {port}\nPidFile none\nPermitRootLogin prohibit-password\n\
             StrictModes no\nUsePAM no\nAuthorizedKeysFile none\n",
            host_key.display()
        );
        std::fs::write(&config, moved + &rest)?;
        std::fs::create_dir_all("/run/sshd")?;
        let child = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .spawn()?;
        let sshd = Self { child, port, log };
        let over = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < over, "sshd does not listen: {}", sshd.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(sshd)
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn lets_in(&self, key: &Path) -> anyhow::Result<bool> {
        let (key, port) = (key.display().to_string(), self.port.to_string());
        let options = "IdentitiesOnly=yes,BatchMode=yes,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,ConnectTimeout=5";
        let mut args = vec!["-F", "/dev/null", "-p", &port, "-i", &key];
        for option in options.split(',') {
            args.extend(["-o", option]);
        }
        args.extend(["root@127.0.0.1", "true"]);
        Ok(run("ssh", &args)?.status.success())
    }

    fn shuts_out(&self, key: &Path, what: &str) -> anyhow::Result<()> {
        eventually(TOLD_WITHIN, what, || match self.lets_in(key)? {
            true => Ok(Err(self.said())),
            false => Ok(Ok(())),
        })
    }
}

/// Has a new key certified, as whoever holds the token, or as the user of `dev`.
fn certified(
    dev: &Dev,
    dir: &Path,
    node: &str,
    name: &str,
    token: Option<&str>,
) -> anyhow::Result<(PathBuf, Value)> {
    let key = key(dir, name)?;
    let public = key.with_extension("pub").display().to_string();
    let words = [
        "nodes",
        "ssh-cert",
        node,
        "--account",
        "root",
        "--reason",
        "a test",
        "--key",
        &public,
        "--output",
        "json",
    ];
    let mut command = dev.command(&words)?;
    if let Some(token) = token {
        command.env("BETTER_COMPUTE_TOKEN", token);
    }
    let done: e2e::program::Done = command.output()?.into();
    let issued = done.json()?;
    Ok((key, issued))
}

fn serial(issued: &Value) -> anyhow::Result<&str> {
    issued["cert"]["serial"].as_str().with_context(|| issued.to_string())
}

#[test]
fn a_certificate_logs_in_on_its_node_until_it_is_taken_back() -> anyhow::Result<()> {
    if let Some(missing) = ["/usr/bin/ssh", SSHD].into_iter().find(|path| !Path::new(path).exists()) {
        eprintln!("skipped: {missing} is not installed");
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: sshd lets nobody in without being root");
        return Ok(());
    }
    let dev = Dev::start(&["--sim", "2"])?;
    let work = tempfile::tempdir()?;
    let node = "sim-0";
    let refused = dev.cli(&[
        "nodes",
        "ssh-cert",
        node,
        "--account",
        "root",
        "--reason",
        "x",
        "--key",
        "ssh-ed25519 AAAA",
    ])?;
    ensure!(refused.code != 0, "before the pool lets anybody in: {}", refused.stdout);
    dev.cli(&["pools", "update", "gpu", "--ssh-accounts", "root"])?.ok()?;

    // Which folder is which machine's: the principals name the node.
    let id = dev.json(&["nodes", "get", node])?["id"].as_str().context("an id")?.to_owned();
    let root = eventually(TOLD_WITHIN, "the node having the files", || {
        for number in ["0", "1"] {
            let root = dev.data_dir.join("sim").join(number).join("root");
            let principals =
                std::fs::read_to_string(root.join("etc/ssh/bc_principals/root")).unwrap_or_default();
            if principals == format!("root@{id}\n") && root.join(DROP_IN).exists() {
                return Ok(Ok(root));
            }
        }
        Ok(Err("no principals".to_owned()))
    })?;
    let sshd = Sshd::start(&root, work.path())?;

    let (good, of_good) = certified(&dev, work.path(), node, "good", None)?;
    ensure!(sshd.lets_in(&good)?, "{}", sshd.said());
    ensure!(sshd.said().contains(serial(&of_good)?), "its log names the certificate: {}", sshd.said());
    let (elsewhere, _) = certified(&dev, work.path(), "sim-1", "elsewhere", None)?;
    ensure!(!sshd.lets_in(&elsewhere)?, "another node's: {}", sshd.said());

    // One of a token that is taken away, and one that is revoked by its serial.
    let made = dev.json(&["tokens", "create", "lent", "--expires-in-hours", "1"])?;
    let secret = made["secret"].as_str().context("a secret")?;
    let (lent, _) = certified(&dev, work.path(), node, "lent", Some(secret))?;
    ensure!(sshd.lets_in(&lent)?, "{}", sshd.said());
    dev.cli(&["tokens", "revoke", made["token"]["id"].as_str().context("an id")?, "--yes"])?.ok()?;
    sshd.shuts_out(&lent, "that the token is over reaching the node")?;
    ensure!(sshd.lets_in(&good)?, "{}", sshd.said());
    dev.cli(&["nodes", "revoke-ssh-cert", serial(&of_good)?, "--yes"])?.ok()?;
    sshd.shuts_out(&good, "the revocation reaching the node")?;
    let listed = dev.json(&["nodes", "list-ssh-certs", "--node", node, "--include-ended"])?;
    let states: Vec<_> =
        listed["items"].as_array().context("a list")?.iter().map(|one| &one["state"]).collect();
    ensure!(states.iter().all(|state| *state == "revoked") && states.len() == 2, "{listed}");

    // A pool that lets nobody in any more.
    let (last, _) = certified(&dev, work.path(), node, "last", None)?;
    ensure!(sshd.lets_in(&last)?, "{}", sshd.said());
    dev.cli(&["pools", "update", "gpu", "--set", "{\"policy\": {}}"])?.ok()?;
    eventually(TOLD_WITHIN, "the files going", || {
        let left = [DROP_IN, "etc/ssh/bc_ca.pub", "etc/ssh/bc_krl", "etc/ssh/bc_principals/root"];
        match left.iter().find(|file| root.join(file).exists()) {
            Some(file) => Ok(Err((*file).to_owned())),
            None => Ok(Ok(())),
        }
    })?;
    if sshd.lets_in(&last)? {
        bail!("without its principals an account is open: {}", sshd.said());
    }
    Ok(())
}
