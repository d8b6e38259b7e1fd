//! The real sshd over the files this section writes: it takes them, lets in whom they name, and nobody else. Its own
//! paths are absolute, so the drop-in's are moved below the test's root.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use model::Timestamp;
use pki::ssh::{UserCertificateRequest, issue_user_certificate};
use pki::{SeededEntropy, SigningKey};

use super::*;

pub(super) const SSHD: &str = "/usr/sbin/sshd";
pub(super) const START_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).stdin(Stdio::null()).output().expect("the program was looked for before")
}

pub(super) fn key_pair(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let made = run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path.display().to_string()]);
    assert!(made.status.success(), "{made:?}");
    path
}

/// A certificate over a fresh key, and its serial.
fn certificate(dir: &Path, name: &str, principal: &str, entropy: u64) -> (PathBuf, u64) {
    Wanted { name, principal, entropy, ca: 1, ends_in: 600, sources: &[] }.issued(dir)
}

/// A certificate that is not as the others are.
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    pub principal: &'a str,
    pub entropy: u64,
    pub ca: u64,
    /// Seconds from now; it begins ten minutes earlier.
    pub ends_in: i64,
    pub sources: &'a [&'a str],
}

impl Wanted<'_> {
    pub fn issued(&self, dir: &Path) -> (PathBuf, u64) {
        let key = key_pair(dir, self.name);
        let line = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        let public = line.trim_end().parse().unwrap();
        let now = kit::SystemClock::new();
        let not_after = Timestamp::from_millis(kit::Clock::now(&now).millis() + self.ends_in * 1000);
        let sources: Vec<_> = self.sources.iter().map(|source| source.parse().unwrap()).collect();
        let request = UserCertificateRequest {
            key: &public,
            key_id: "test",
            principals: &[self.principal.parse().unwrap()],
            not_before: not_after.saturating_sub(Duration::from_secs(1200)),
            not_after,
            sources: &sources,
            port_forwarding: false,
        };
        let ca = SigningKey::generate(&SeededEntropy::new(self.ca));
        let issued = issue_user_certificate(&ca, &request, &SeededEntropy::new(self.entropy)).unwrap();
        std::fs::write(dir.join(format!("{}-cert.pub", self.name)), issued.line).unwrap();
        (key, issued.serial)
    }
}

pub(super) struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// sshd over what is below `root`, and its port.
fn start(root: &Path) -> (Server, u16) {
    let drop_in = std::fs::read_to_string(root.join("etc/ssh/sshd_config.d/10-better-compute.conf")).unwrap();
    let moved = drop_in.replace(" /etc/ssh/", &format!(" {}/etc/ssh/", root.display()));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let host_key = key_pair(root, "host_key");
    let config = root.join("sshd_config");
    let rest = format!(
        "HostKey {}\nListenAddress 127.0.0.1\nPort {port}\nPidFile none\nPermitRootLogin prohibit-password\n\
         StrictModes no\nUsePAM no\nAuthorizedKeysFile none\n",
        host_key.display()
    );
    std::fs::write(&config, moved + &rest).unwrap();
    std::fs::create_dir_all("/run/sshd").unwrap();
    let config = config.display().to_string();
    let checked = run(SSHD, &["-t", "-f", &config]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let log = std::fs::File::create(root.join("sshd.log")).unwrap();
    let child = Command::new(SSHD).args(["-D", "-e", "-f", &config]).stdin(Stdio::null()).stderr(log).spawn();
    let server = Server(child.unwrap());
    let over = Instant::now() + START_LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let log = || std::fs::read_to_string(root.join("sshd.log")).unwrap_or_default();
        assert!(Instant::now() < over, "sshd does not listen: {}", log());
        std::thread::yield_now();
    }
    (server, port)
}

pub(super) fn log_in(key: &Path, port: u16) -> bool {
    let (key, port) = (key.display().to_string(), port.to_string());
    let options = "IdentitiesOnly=yes,BatchMode=yes,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,ConnectTimeout=5";
    let mut args = vec!["-F", "/dev/null", "-p", &port, "-i", &key];
    for option in options.split(',') {
        args.extend(["-o", option]);
    }
    args.extend(["root@127.0.0.1", "true"]);
    run("ssh", &args).status.success()
}

/// Why no real sshd is run here.
pub(super) fn lacks() -> Option<String> {
    let mut needed = ["/usr/bin/ssh", "/usr/bin/ssh-keygen", SSHD].into_iter();
    if let Some(missing) = needed.find(|path| !Path::new(path).exists()) {
        return Some(format!("{missing} is not installed"));
    }
    (!rustix::process::geteuid().is_root()).then(|| "sshd lets nobody in without being root".to_owned())
}

#[tokio::test]
async fn a_certificate_gets_in_unless_it_is_revoked_or_of_another_node() {
    if let Some(why) = lacks() {
        eprintln!("skipped: {why}");
        return;
    }
    let host = Host::new();
    let root = host.root.path();
    let other = NodeId::from_uuid(uuid::Uuid::from_u128(6));
    let (good, _) = certificate(root, "good", &format!("root@{}", node()), 10);
    let (revoked, serial) = certificate(root, "revoked", &format!("root@{}", node()), 20);
    let (elsewhere, _) = certificate(root, "elsewhere", &format!("root@{other}"), 30);
    let accounts =
        vec![AccessAccount { account: "root".into(), principals: vec![format!("root@{}", node())] }];
    let section = AccessSection { accounts, revoked_serials: vec![serial], ..section() };
    host.converged(section.clone()).await;
    let (server, port) = start(root);
    assert!(log_in(&good, port), "{}", std::fs::read_to_string(root.join("sshd.log")).unwrap());
    assert!(!log_in(&revoked, port), "a revoked certificate got in");
    assert!(!log_in(&elsewhere, port), "another node's certificate got in");
    // Principals are read at each login: taking the account away needs no reload.
    host.converged(AccessSection { accounts: Vec::new(), ..section }).await;
    assert!(!log_in(&good, port), "an account that was taken away still lets in");
    drop(server);
}

#[tokio::test]
async fn the_revocation_list_is_one_that_openssh_reads() {
    if !Path::new("/usr/bin/ssh-keygen").exists() {
        eprintln!("skipped: ssh-keygen is not installed");
        return;
    }
    let host = Host::new();
    host.converged(section()).await;
    let list = host.root.path().join("etc/ssh/bc_krl").display().to_string();
    let shown = run("ssh-keygen", &["-Q", "-l", "-f", &list]);
    assert!(
        shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("serial: 7"),
        "{shown:?}"
    );
}
