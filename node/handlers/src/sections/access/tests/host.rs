//! The section on a host as it is: its own paths, `sshd -t` and `-T` over its whole configuration, and an sshd that runs and is
//! told to read it again. In namespaces of their own, so that the host under the test keeps its sshd.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use hw::HostCommands;

use super::login::{SSHD, START_LIMIT, Server, Wanted, key_pair, lacks, log_in, run};
use super::*;
use crate::files::HostFiles;
use crate::sshd::HostSshd;

const INSIDE: &str = "BC_TEST_IN_NAMESPACES";
const PORT: u16 = 22;
const MAIN: &str = "Include /etc/ssh/sshd_config.d/*.conf\nListenAddress 127.0.0.1\nHostKey /etc/ssh/host_key\n\
    PidFile /run/sshd.pid\nUsePAM no\nPermitRootLogin prohibit-password\nAuthorizedKeysFile none\n";
/// As much of systemd as reloading a unit takes.
const SYSTEMCTL: &str = "#!/bin/sh\ncase $1 in\nshow) echo loaded ;;\n\
    try-reload-or-restart) echo $2 >>/run/reloads; kill -HUP $(cat /run/sshd.pid) ;;\n*) exit 1 ;;\nesac\n";

const UNSHARE: [&str; 6] = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];

#[test]
fn sshd_lets_in_whom_the_section_names_and_keeps_what_it_has_when_it_refuses() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(inside());
    }
    if let Some(why) = lacks() {
        eprintln!("skipped: {why}");
        return;
    }
    if !Command::new("unshare").args(UNSHARE).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no namespaces can be made here");
        return;
    }
    let name = concat!(
        module_path!(),
        "::sshd_lets_in_whom_the_section_names_and_keeps_what_it_has_when_it_refuses"
    );
    let (_, name) = name.split_once("::").unwrap();
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let output = command.env(INSIDE, "1").stdin(Stdio::null()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn must(program: &str, args: &[&str]) {
    let output = run(program, args);
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A host with nothing on it but an sshd.
struct Real {
    work: TempDir,
    access: AccessFiles,
    _server: Server,
}

impl Real {
    fn new() -> Self {
        let work = tempfile::tempdir().unwrap();
        must("ip", &["link", "set", "lo", "up"]);
        for dir in ["/etc/ssh", "/run"] {
            must("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", dir]);
        }
        std::fs::create_dir("/etc/ssh/sshd_config.d").unwrap();
        std::fs::create_dir("/run/sshd").unwrap();
        std::fs::write("/etc/ssh/sshd_config", MAIN).unwrap();
        key_pair(Path::new("/etc/ssh"), "host_key");
        let programs = work.path().join("bin");
        std::fs::create_dir(&programs).unwrap();
        let systemctl = programs.join("systemctl");
        std::fs::write(&systemctl, SYSTEMCTL).unwrap();
        must("chmod", &["755", &systemctl.display().to_string()]);
        let log = std::fs::File::create(work.path().join("log")).unwrap();
        let server = Command::new(SSHD).args(["-D", "-e"]).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let search = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display());
        let commands = Arc::new(HostCommands::new().with_search_path(search));
        let sshd = Arc::new(HostSshd::new("/", commands));
        let files = Arc::new(HostFiles::new(HostPaths::host()));
        let owed = work.path().join("data/reload-owed");
        let access = AccessFiles::new(files, sshd, owed);
        Self { work, access, _server: Server(server) }
    }

    async fn pass(&mut self, section: AccessSection) -> SectionReport {
        let spec = NodeSpec { access: Some(section), ..NodeSpec::default() };
        let context = ConvergeContext {
            node_id: node(),
            generation: 1,
            boot_id: "boot".into(),
            first_pass: true,
            cancel: CancellationToken::new(),
            secrets: Default::default(),
        };
        self.access.converge(&spec, &context).await
    }

    async fn converged(&mut self, section: AccessSection) {
        let report = self.pass(section).await;
        assert_eq!(report.state, SectionState::Converged, "{report:?}");
        assert!(report.conditions.is_empty(), "{report:?}");
    }

    /// sshd starts anew when it reads its configuration again, and does not listen for a moment.
    fn until(&self, key: &Path, wanted: bool, what: &str) {
        let over = Instant::now() + START_LIMIT;
        while log_in(key, PORT) != wanted {
            assert!(Instant::now() < over, "{what}\n{}", self.log());
        }
    }

    fn refused(&self, key: &Path, what: &str) {
        assert!(!log_in(key, PORT), "{what} got in\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.work.path().join("log")).unwrap_or_default()
    }
}

fn reloads() -> usize {
    std::fs::read_to_string("/run/reloads").unwrap_or_default().lines().count()
}

fn of_root(revoked_serials: Vec<u64>) -> AccessSection {
    let accounts =
        vec![AccessAccount { account: "root".into(), principals: vec![format!("root@{}", node())] }];
    AccessSection { accounts, revoked_serials, ..section() }
}

const DROP_IN: &str = "/etc/ssh/sshd_config.d/10-better-compute.conf";

async fn inside() {
    let mut host = Real::new();
    let dir = host.work.path().to_owned();
    let own = format!("root@{}", node());
    let usual = |name, entropy| Wanted { name, principal: &own, entropy, ca: 1, ends_in: 600, sources: &[] };
    let (first, serial) = usual("first", 10).issued(&dir);
    let (second, _) = usual("second", 20).issued(&dir);
    host.refused(&first, "a certificate of a CA that nobody trusts yet");

    host.converged(of_root(Vec::new())).await;
    host.until(&first, true, "a good certificate is not let in");
    assert_eq!(reloads(), 1);
    let elsewhere = format!("root@{}", NodeId::from_uuid(uuid::Uuid::from_u128(6)));
    let ops = format!("ops@{}", node());
    for (what, wanted) in [
        ("another node's certificate", Wanted { principal: &elsewhere, ..usual("elsewhere", 30) }),
        ("another account's certificate", Wanted { principal: &ops, ..usual("ops", 40) }),
        ("an expired certificate", Wanted { ends_in: -60, ..usual("expired", 50) }),
        ("a certificate of another CA", Wanted { ca: 2, ..usual("stranger", 60) }),
        ("a certificate from elsewhere", Wanted { sources: &["10.0.0.0/8"], ..usual("far", 70) }),
    ] {
        host.refused(&wanted.issued(&dir).0, what);
    }
    let (near, _) = Wanted { sources: &["127.0.0.0/8"], ..usual("near", 80) }.issued(&dir);
    assert!(log_in(&near, PORT), "from where it may be used\n{}", host.log());

    // sshd reads the list at each login, so that nothing has to be reloaded.
    host.converged(of_root(vec![serial])).await;
    host.refused(&first, "a revoked certificate");
    assert!(log_in(&second, PORT), "one that is not revoked\n{}", host.log());
    assert_eq!(reloads(), 1);

    // A change that sshd's whole configuration does not survive is taken back, and whoever gets in still does. What was there is
    // of a daemon that wrote it otherwise.
    let kept = [b"# of before\n", &std::fs::read(DROP_IN).unwrap()[..]].concat();
    std::fs::write(DROP_IN, &kept).unwrap();
    std::fs::write("/etc/ssh/sshd_config", format!("{MAIN}NoSuchOption yes\n")).unwrap();
    let report = host.pass(of_root(vec![serial])).await;
    assert_eq!(
        (report.state, report.reason.as_str()),
        (SectionState::Progressing, "SshdConfig"),
        "{report:?}"
    );
    assert_eq!(std::fs::read(DROP_IN).unwrap(), kept);
    assert!(log_in(&second, PORT), "{}", host.log());
    host.refused(&first, "a revoked certificate");
    assert_eq!(reloads(), 1);
    // Who may no longer log in does not, whatever becomes of the rest.
    let report = host.pass(AccessSection::default()).await;
    assert_eq!(report.reason, "SshdConfig", "{report:?}");
    assert_eq!(std::fs::read(DROP_IN).unwrap(), kept);
    host.refused(&second, "a certificate of an account that is named no more");

    std::fs::write("/etc/ssh/sshd_config", MAIN).unwrap();
    host.converged(AccessSection::default()).await;
    assert_eq!(reloads(), 2);
    for file in [DROP_IN, "/etc/ssh/bc_ca.pub", "/etc/ssh/bc_krl", "/etc/ssh/bc_principals/root"] {
        assert!(!Path::new(file).exists(), "{file} is left");
    }
    host.refused(&second, "a certificate that nothing trusts any more");
    // Where sshd refuses to begin with, there is nothing to put back.
    std::fs::write("/etc/ssh/sshd_config", format!("{MAIN}NoSuchOption yes\n")).unwrap();
    let report = host.pass(of_root(Vec::new())).await;
    assert_eq!(report.reason, "SshdConfig", "{report:?}");
    assert!(!Path::new(DROP_IN).exists());
}
