use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use super::*;

fn facts() -> Facts {
    Facts {
        gateway: "https://gw.example.com:8443".to_owned(),
        server_name: Some("gateway".to_owned()),
        serving_ca_pins: vec!["a".repeat(64), "b".repeat(64)],
        join_signing_pins: vec!["c".repeat(64)],
        join_encryption_pin: "d".repeat(64),
        join_key: Some("{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\"eA\",\"y\":\"eQ\"}".to_owned()),
        server: None,
    }
}

/// A machine in a folder: its paths moved there, its tools replaced by ones that only write down what they were told.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { root: tempfile::tempdir().expect("a temporary folder") };
        for folder in ["tools", "run/systemd/system", "etc/systemd/system", "usr/local/bin", "source"] {
            std::fs::create_dir_all(machine.at(folder)).expect("it can be made");
        }
        machine.tool("tools/id", "echo 0");
        machine.tool("tools/systemctl", "echo \"systemctl $*\" >>\"$LOG\"");
        machine.tool("source/bcd", &machine.daemon(1));
        machine
    }

    /// A program that joins by keeping the token it was given, and shows what a real one is told.
    fn daemon(&self, version: u32) -> String {
        let data = self.at("var/lib/bcd");
        format!(
            "# version {version}\necho \"bcd $*\" >>\"$LOG\"\n\
             [ \"$1\" = join ] && cat \"$7\" >>\"$LOG\" && echo joined >'{}/identity.json'\nexit 0",
            data.display()
        )
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn tool(&self, path: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.at(path), format!("#!/bin/sh\n{body}\n")).expect("it can be written");
        std::fs::set_permissions(self.at(path), PermissionsExt::from_mode(0o755)).expect("it is ours");
    }

    /// Runs a script on it. Gives whether it went well, what it said, and what was done.
    fn run(&self, script: &str, token: Option<&str>) -> (bool, String, String) {
        let root = self.root.path().display().to_string();
        let mut moved = script.to_owned();
        for path in [
            "/usr/local/bin/bcd",
            "/etc/bcd",
            "/var/lib/bcd",
            "/etc/systemd/system/bcd.service",
            "/run/systemd/system",
            "/etc/cdi",
        ] {
            moved = moved.replace(path, &format!("{root}{path}"));
        }
        std::fs::write(self.at("install.sh"), moved).expect("it can be written");
        let log = self.at("log");
        std::fs::write(&log, "").expect("it can be written");
        let mut process = Process::new("sh");
        process.arg(self.at("install.sh")).env("LOG", &log).stdin(Stdio::null());
        process.env("PATH", format!("{root}/tools:{}", std::env::var("PATH").unwrap_or_default()));
        if let Some(token) = token {
            std::fs::write(self.at("token"), token).expect("it can be written");
            process.arg("--token-file").arg(self.at("token"));
        }
        let output = process.output().expect("sh runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said, std::fs::read_to_string(log).expect("it is there"))
    }

    fn script(&self) -> String {
        let binary = self.at("source/bcd").display().to_string();
        script(&facts(), Some(&binary), None, None, Some("fsn1"), "node")
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap_or_else(|err| panic!("{}: {err}", path.display())).permissions().mode()
        & 0o777
}

#[test]
fn a_machine_is_installed_joined_and_started() {
    let machine = Machine::new();
    let (well, said, done) = machine.run(&machine.script(), Some("bcjt_token"));
    assert!(well, "{said}");
    assert!(done.contains("bcjt_token") && done.contains("systemctl restart bcd.service"), "{done}");
    assert_eq!(mode(&machine.at("usr/local/bin/bcd")), 0o755);
    assert_eq!(mode(&machine.at("etc/bcd/config.toml")), 0o600);
    assert_eq!(mode(&machine.at("etc/bcd/join-encryption.jwk")), 0o644);
    assert_eq!(mode(&machine.at("var/lib/bcd")), 0o700);
    let config = std::fs::read_to_string(machine.at("etc/bcd/config.toml")).expect("it was written");
    let parsed: toml::Table = toml::from_str(&config).expect("it is TOML");
    assert_eq!(parsed["site"].as_str(), Some("fsn1"));
    assert_eq!(parsed["gateway"]["serving_ca_pins"].as_array().map(Vec::len), Some(2));
    assert_eq!(parsed["gateway"]["join_encryption_key_pin"].as_str(), Some("d".repeat(64).as_str()));
    assert!(!said.contains("bcjt_"), "{said}");
}

#[test]
fn running_it_again_changes_nothing() {
    let machine = Machine::new();
    assert!(machine.run(&machine.script(), Some("bcjt_token")).0);
    let (well, said, done) = machine.run(&machine.script(), None);
    assert!(well, "a machine that has joined needs no token: {said}");
    assert_eq!(done, "systemctl enable --quiet bcd.service\nsystemctl start bcd.service\n");
    assert!(!machine.at("etc/bcd/config.toml.old").exists());
}

#[test]
fn another_program_or_configuration_is_put_in_place_and_the_old_kept() {
    let machine = Machine::new();
    assert!(machine.run(&machine.script(), Some("bcjt_token")).0);
    machine.tool("source/bcd", &machine.daemon(2));
    std::fs::write(machine.at("etc/bcd/config.toml"), "site = \"mine\"\n").expect("it can be written");
    let (well, said, done) = machine.run(&machine.script(), None);
    assert!(
        well && done.contains("systemctl restart bcd.service") && !done.contains("join"),
        "{said}\n{done}"
    );
    let kept = std::fs::read_to_string(machine.at("etc/bcd/config.toml.old")).expect("it was kept");
    assert_eq!(kept, "site = \"mine\"\n");
    let program = std::fs::read_to_string(machine.at("usr/local/bin/bcd")).expect("it is there");
    assert!(program.contains("version 2"));
}

#[test]
fn a_program_of_another_hash_is_not_installed() {
    let machine = Machine::new();
    let binary = machine.at("source/bcd").display().to_string();
    let script = script(&facts(), Some(&binary), None, Some(&"0".repeat(64)), None, "node");
    let (well, said, done) = machine.run(&script, Some("bcjt_token"));
    assert!(!well && said.contains("nothing was installed"), "{said}");
    assert_eq!(done, "");
    assert!(!machine.at("usr/local/bin/bcd").exists());
}

#[test]
fn without_a_token_nothing_joins_and_the_way_is_told() {
    let machine = Machine::new();
    let (well, said, done) = machine.run(&machine.script(), None);
    assert!(!well && said.contains("better-compute join-tokens create"), "{said}");
    assert!(!done.contains("bcd join") && !done.contains("restart"), "{done}");
}

#[test]
fn a_download_comes_over_https_and_is_what_was_wanted() {
    let machine = Machine::new();
    let program = std::fs::read_to_string(machine.at("source/bcd")).expect("it is there");
    let source = machine.at("source/bcd").display().to_string();
    // Copies instead of downloading, to where it was told.
    let curl = format!(
        "echo \"curl $*\" >>\"$LOG\"\nwhile [ $# -gt 0 ]; do [ \"$1\" = --output ] && cp '{source}' \"$2\"; shift; done"
    );
    machine.tool("tools/curl", &curl);
    let sum = Process::new("sha256sum").arg(machine.at("source/bcd")).output().expect("sha256sum runs");
    let sum = String::from_utf8_lossy(&sum.stdout)[..64].to_owned();
    let url = "https://releases.example.com/bcd?arch=x86_64&v=1";
    let wanted = script(&facts(), None, Some(url), Some(&sum), None, "node");
    let (well, said, done) = machine.run(&wanted, Some("bcjt_token"));
    assert!(well, "{said}");
    assert!(
        done.contains("--proto =https --proto-redir =https") && done.contains(&format!("-- {url}\n")),
        "{done}"
    );
    let installed = std::fs::read_to_string(machine.at("usr/local/bin/bcd")).expect("it is there");
    assert_eq!(installed, program);
    let (well, _, done) = machine.run(&wanted, None);
    assert!(well && !done.contains("curl"), "what is there already is not downloaded again: {done}");
    let other = script(&facts(), None, Some(url), Some(&"0".repeat(64)), None, "node");
    let (well, said, _) = machine.run(&other, None);
    assert!(!well && said.contains(&sum), "{said}");
}

#[test]
fn without_the_join_key_bcd_asks_for_it_under_the_pins() {
    let machine = Machine::new();
    let binary = machine.at("source/bcd").display().to_string();
    let facts = Facts { join_key: None, server: Some("https://compute.example.com".to_owned()), ..facts() };
    let (well, said, done) =
        machine.run(&script(&facts, Some(&binary), None, None, None, "node"), Some("bcjt_token"));
    assert!(well, "{said}");
    let pins = format!(
        "--serving-ca-pin {} --join-signing-pin {} --join-encryption-pin {}",
        "a".repeat(64),
        "c".repeat(64),
        "d".repeat(64)
    );
    assert!(done.contains(&format!("--server https://compute.example.com {pins}")), "{done}");
    assert!(!machine.at("etc/bcd/join-encryption.jwk").exists());
}

#[test]
fn a_script_that_was_cut_short_does_nothing() {
    let machine = Machine::new();
    let script = machine.script();
    let cut = &script[..script.find("\nstart() {").expect("it is there")];
    let (well, said, done) = machine.run(cut, Some("bcjt_token"));
    assert!(well && said.is_empty() && done.is_empty(), "{said}{done}");
    assert!(!machine.at("usr/local/bin/bcd").exists());
}

#[test]
fn a_site_agent_runs_as_one() {
    let script = script(&facts(), Some("/tmp/it's"), None, None, None, "site");
    assert!(script.contains("ExecStart=/usr/local/bin/bcd site --config"), "{script}");
    assert!(script.contains("CAP_NET_BIND_SERVICE"));
    assert!(script.contains("BINARY='/tmp/it'\\''s'\n"));
    let placeholder = script.lines().find(|line| line.contains('@') && !line.contains("\"$@\""));
    assert_eq!(placeholder, None);
}

#[test]
fn what_could_speak_to_the_shell_does_not_get_in() {
    assert!(https("https://a.example/x?y=1").is_ok());
    for bad in [
        "http://a",
        "https://",
        "https://a'; rm -rf /",
        "https://a b",
        "https://a\n",
        "https://$(x)",
        "https://`x`",
    ] {
        assert!(https(bad).is_err(), "{bad}");
    }
    assert!(hex(&"a".repeat(64)).is_ok());
    for bad in ["", "A", &"A".repeat(64), &"a".repeat(63)] {
        assert!(hex(bad).is_err(), "{bad}");
    }
    for bad in ["{}", "[]", "{\"kty\":\"EC\",\"d\":\"x\"}", "{\"kty\":\"EC\\nEND_OF_KEY\"}", "{\"kty\":1}"] {
        assert!(jwk(bad).is_err(), "{bad}");
    }
    assert!(path("/a b'c").is_ok() && path("a\nb").is_err());
}
