//! `ssh --node`: a key and a certificate for one login on a node, and OpenSSH's own client through a tunnel to its sshd.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches};
use kit::Rng;
use model::RequestId;
use serde_json::json;

use super::super::text::at;
use super::super::{Failure, Shell, api_command, ssh_cert};
use super::client;
use super::ssh::{host_keys, no_ssh, proxy_command, split};

const ACCOUNT: &str = "root";
/// For logging in: who is in stays in.
const TTL_MINUTES: u64 = 5;
const INSTEAD: &str = "a shell on the node: better-compute console --node NODE";

pub fn args() -> [Arg; 2] {
    [
        Arg::new("node").long("node").value_name("[ACCOUNT@]NODE").help(
            "On this node itself, as root when no account is given: one of those that its pool's policy names in sshAccounts",
        ),
        Arg::new("reason")
            .long("reason")
            .value_name("TEXT")
            .requires("node")
            .default_value("better-compute ssh")
            .help("What for: kept with the certificate, and told in its event"),
    ]
}

/// A folder for what one login takes, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(shell: &Shell) -> Result<Self, Failure> {
        let rng: &dyn Rng = &kit::OsRng;
        let id: RequestId = rng.id(shell.clock.now());
        let path = std::env::temp_dir().join(format!("better-compute-{id}"));
        kit::fs::create_dir(&path, 0o700).map_err(|err| {
            Failure::local(format!("failed to make {}: {}", path.display(), kit::chain(&err)))
        })?;
        Ok(Self(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub async fn run(matches: &ArgMatches, shell: &mut Shell) -> Result<u8, Failure> {
    let given = matches.get_one::<String>("node").map(String::as_str).unwrap_or_default();
    let (account, node) = given.rsplit_once('@').unwrap_or((ACCOUNT, given));
    let (client, _) = client(matches, shell)?;
    let folder = Folder::new(shell)?;
    let key = folder.path("key");
    let public = make_key(&key).await?;
    let row = api::find("nodes.issueSshCert").expect("the table has it");
    let reason = matches.get_one::<String>("reason").map(String::as_str).unwrap_or_default();
    let wanted = json!({
        "node": node, "account": account, "publicKey": public, "reason": reason, "ttlMinutes": TTL_MINUTES,
        "portForwarding": true,
    });
    let issued = api_command::send(row, &wanted, &client).await?;
    ssh_cert::write(&folder.path("key-cert.pub"), issued["certificate"].as_str().unwrap_or_default())?;
    let node_id = at(&issued["cert"]["node"], "id");

    let mut ssh = tokio::process::Command::new("ssh");
    let proxy = proxy_command(matches.get_one::<String>("context").map(String::as_str))?;
    let patience = matches.get_one::<u64>("wait-timeout").copied().unwrap_or_default();
    ssh.arg("-o").arg(format!("ProxyCommand={proxy} --wait-timeout {patience} --node {node_id} %p"));
    for option in host_keys(shell)? {
        ssh.arg("-o").arg(option);
    }
    ssh.arg("-i").arg(&key).args(["-o", "IdentitiesOnly=yes", "-l", account]);
    // What follows is ssh's, and no instance.
    let first = matches.get_one::<String>("instance");
    let (options, command) =
        split(first.into_iter().chain(matches.get_many::<String>("args").into_iter().flatten()));
    let mut ssh =
        ssh.args(options).arg(&node_id).args(command).spawn().map_err(|err| no_ssh("ssh", &err, INSTEAD))?;
    loop {
        // Both arms are cancel-safe. What a terminal asks to stop is ssh, which hears of it too and ends when it likes.
        tokio::select! {
            ended = ssh.wait() => {
                let ended = ended.map_err(|err| Failure::local(format!("failed to wait for ssh: {err}")))?;
                return Ok(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255));
            }
            _ = kit::signal::stop_signal() => {}
        }
    }
}

/// A new key, and its public half.
async fn make_key(path: &Path) -> Result<String, Failure> {
    let made = tokio::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "better-compute", "-f"])
        .arg(path)
        .stdin(std::process::Stdio::null())
        .status()
        .await
        .map_err(|err| no_ssh("ssh-keygen", &err, INSTEAD))?;
    if !made.success() {
        return Err(Failure::local(format!("ssh-keygen made no key: {made}")));
    }
    let public = path.with_extension("pub");
    let line = std::fs::read_to_string(&public)
        .map_err(|err| Failure::local(format!("failed to read {}: {err}", public.display())))?;
    Ok(line.trim().to_owned())
}
