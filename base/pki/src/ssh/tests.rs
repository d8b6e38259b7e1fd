use std::path::Path;
use std::process::{Command, Output};

use proptest::prelude::*;

use super::*;
use crate::testing::{at, node};
use crate::{SeededEntropy, SigningKey};

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti";

#[test]
fn one_key_with_or_without_a_comment_is_taken() {
    for line in [ED25519.to_owned(), format!("{ED25519} user@example.com"), format!("{ED25519} two words é")]
    {
        let key: SshPublicKey = line.parse().unwrap();
        assert_eq!(key.line(), line);
        assert_eq!(key.blob().len(), 51);
    }
}

#[test]
fn anything_that_could_add_a_line_or_an_option_is_refused() {
    let control = [
        format!("{ED25519}\n"),
        format!("{ED25519}\n{ED25519}"),
        format!("{ED25519} a\rb"),
        format!("{ED25519}\0"),
        format!("ssh-ed25519\t{}", &ED25519[12..]),
        format!("{ED25519} a\u{2028}b"),
        format!("{ED25519} \u{85}"),
    ];
    for line in control {
        assert_eq!(line.parse::<SshPublicKey>(), Err(SshError::KeyControl), "{line:?}");
    }
    let shape = [
        String::new(),
        "ssh-ed25519".to_owned(),
        format!("command=\"id\" {ED25519}"),
        format!("cert-authority {ED25519}"),
        format!("cert-authority,principals=\"x\" {ED25519}"),
        format!(" {ED25519}"),
        format!("{ED25519} "),
        ED25519.replacen(' ', "  ", 1),
        ED25519.replacen("ssh-ed25519", "ssh-rsa", 1),
        ED25519.replacen("ssh-ed25519", "ssh-dss", 1),
        ED25519[..ED25519.len() - 4].to_owned(),
        format!("{ED25519}AAAA"),
        "# comment here".to_owned(),
    ];
    for line in shape {
        assert_eq!(line.parse::<SshPublicKey>(), Err(SshError::Key), "{line:?}");
    }
    let long = format!("{ED25519} {}", "c".repeat(SSH_KEY_LINE_BYTES_MAX));
    assert_eq!(long.parse::<SshPublicKey>(), Err(SshError::KeyTooLong));
}

#[test]
fn principals_name_an_account_on_one_node() {
    for account in ["root", "_svc", "a", "ops-1.x", &"a".repeat(32)] {
        let text = format!("{account}@{}", node(1));
        let principal: Principal = text.parse().unwrap();
        assert_eq!((principal.account(), principal.node_id()), (account, node(1)));
        assert_eq!(principal.to_string(), text);
    }
    for account in
        ["", "-x", ".x", "..", "a b", "a\n", "a\t", "Root", "a/b", "a,b", "a@b", "é", &"a".repeat(33)]
    {
        let text = format!("{account}@{}", node(1));
        assert_eq!(text.parse::<Principal>(), Err(SshError::Principal), "{text:?}");
    }
    for text in ["root", "root@", "root@host", &format!("root@{} ", node(1)), &format!("root@{}\n", node(1))]
    {
        assert_eq!(text.parse::<Principal>(), Err(SshError::Principal), "{text:?}");
    }
}

#[test]
fn serial_zero_and_too_many_serials_are_refused() {
    let key: SshPublicKey = ED25519.parse().unwrap();
    let many: Vec<u64> = vec![1; KRL_SERIALS_MAX + 1];
    for serials in [&[0u64][..], &many] {
        let revoked = [(&key, serials)];
        let krl = Krl { version: 1, generated_at: at(0), revoked: &revoked };
        assert_eq!(krl.render(), Err(SshError::KrlSerials));
    }
}

fn request<'a>(key: &'a SshPublicKey, principals: &'a [Principal]) -> UserCertificateRequest<'a> {
    UserCertificateRequest {
        key,
        key_id: "usr_1:cmd",
        principals,
        not_before: at(0),
        not_after: at(900),
        sources: &[],
        port_forwarding: false,
    }
}

#[test]
fn a_certificate_without_principals_or_too_long_is_refused() {
    let ca = SigningKey::generate(&SeededEntropy::new(1));
    let key: SshPublicKey = ED25519.parse().unwrap();
    let principals: [Principal; 1] = [format!("root@{}", node(1)).parse().unwrap()];
    let good = request(&key, &principals);
    let issue =
        |request: &UserCertificateRequest<'_>| issue_user_certificate(&ca, request, &SeededEntropy::new(2));
    assert!(issue(&good).is_ok());
    let many = vec![principals[0].clone(); SSH_PRINCIPALS_MAX + 1];
    for bad in [
        UserCertificateRequest { principals: &[], ..good },
        UserCertificateRequest { principals: &many, ..good },
        UserCertificateRequest { key_id: "", ..good },
        UserCertificateRequest { key_id: "a\nb", ..good },
        UserCertificateRequest { not_after: at(0), ..good },
        UserCertificateRequest { not_after: at(86_401), ..good },
        UserCertificateRequest { sources: &["10.0.0.1".parse().unwrap(); SSH_SOURCES_MAX + 1], ..good },
    ] {
        assert!(matches!(issue(&bad), Err(SshError::Certificate { .. })), "{bad:?}");
    }
}

#[test]
fn sources_are_addresses_and_networks_by_their_first_address() {
    for text in ["10.0.0.1", "10.0.0.0/24", "0.0.0.0/0", "10.0.0.7/32", "::1", "2001:db8::/32", "::/0"] {
        assert_eq!(text.parse::<SourceAddress>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "10.0.0",
        "10.0.0.1/24",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/0x8",
        "*",
        "!10.0.0.1",
        "10.0.0.1,10.0.0.2",
        "2001:db8::1/32",
        "::/129",
        "host.example",
        "10.0.0.0/8 ",
    ] {
        assert_eq!(text.parse::<SourceAddress>(), Err(SshError::Source), "{text:?}");
    }
}

#[test]
fn a_short_rsa_key_is_not_certified() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        println!("skipped: ssh-keygen is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ca = SigningKey::generate(&SeededEntropy::new(1));
    let principals: [Principal; 1] = [format!("root@{}", node(1)).parse().unwrap()];
    for (bits, wanted) in [(1024, false), (2048, true)] {
        let name = format!("rsa-{bits}");
        must(ssh_keygen(folder.path(), &["-q", "-t", "rsa", "-b", &bits.to_string(), "-N", "", "-f", &name]));
        let line = std::fs::read_to_string(folder.path().join(format!("{name}.pub"))).unwrap();
        let key: SshPublicKey = line.trim_end().parse().unwrap();
        assert_eq!(key.rsa_bits(), Some(bits));
        let issued = issue_user_certificate(&ca, &request(&key, &principals), &SeededEntropy::new(2));
        assert_eq!(issued.is_ok(), wanted, "{bits}: {issued:?}");
        let shown = ssh_keygen(folder.path(), &["-l", "-f", &format!("{name}.pub")]);
        assert!(String::from_utf8_lossy(&shown.stdout).contains(key.fingerprint()), "{shown:?}");
    }
}

#[test]
fn openssh_reads_our_certificates_and_revokes_them() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        println!("skipped: ssh-keygen is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ca = SigningKey::generate(&SeededEntropy::new(1));
    let ca_key = ssh_ca_public_key(&ca);
    let key: SshPublicKey = ED25519.parse().unwrap();
    let principals: [Principal; 2] =
        ["root", "ops"].map(|account| format!("{account}@{}", node(1)).parse().unwrap());
    let sources = ["10.0.0.0/24", "::1"].map(|text| text.parse().unwrap());
    let wanted = UserCertificateRequest { sources: &sources, ..request(&key, &principals) };
    let issued = issue_user_certificate(&ca, &wanted, &SeededEntropy::new(2)).unwrap();
    std::fs::write(folder.join("a-cert.pub"), &issued.line).unwrap();
    // Reading a certificate, ssh-keygen verifies the CA's signature over it.
    let output = ssh_keygen(folder, &["-L", "-f", "a-cert.pub"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown} {}", String::from_utf8_lossy(&output.stderr));
    for wanted in [
        "user certificate",
        &format!("Serial: {}", issued.serial),
        "Key ID: \"usr_1:cmd\"",
        &principals[0].to_string(),
        &principals[1].to_string(),
        "source-address 10.0.0.0/24,::1",
        "permit-pty",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} in {shown}");
    }
    assert!(!shown.contains("forwarding"), "{shown}");
    for (serial, wanted) in [(issued.serial, "REVOKED"), (issued.serial ^ 1, "ok")] {
        let revoked: [(&SshPublicKey, &[u64]); 1] = [(&ca_key, &[serial])];
        let krl = Krl { version: 1, generated_at: at(0), revoked: &revoked };
        std::fs::write(folder.join("krl"), krl.render().unwrap()).unwrap();
        let output = ssh_keygen(folder, &["-Q", "-f", "krl", "a-cert.pub"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains(wanted), "{output:?}");
    }
}

fn ssh_keygen(folder: &Path, arguments: &[&str]) -> Output {
    Command::new("ssh-keygen").current_dir(folder).args(arguments).output().expect("ssh-keygen runs")
}

fn must(output: Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a CA of `kind` with one certificate per serial: `<ca>-<serial>-cert.pub`.
fn make_ca(folder: &Path, ca: &str, kind: &str, serials: &[u64]) -> SshPublicKey {
    must(ssh_keygen(folder, &["-q", "-t", kind, "-N", "", "-C", ca, "-f", ca]));
    for serial in serials {
        let name = format!("{ca}-{serial}");
        must(ssh_keygen(folder, &["-q", "-t", "ed25519", "-N", "", "-f", &name]));
        let sign =
            ["-q", "-s", ca, "-I", "id", "-n", "root", "-z", &serial.to_string(), &format!("{name}.pub")];
        must(ssh_keygen(folder, &sign));
    }
    let line = std::fs::read_to_string(folder.join(format!("{ca}.pub"))).unwrap();
    line.trim_end().parse().unwrap()
}

#[test]
fn openssh_reads_our_revocation_list() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        println!("skipped: ssh-keygen is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let serials = [1, 2, 77, u64::MAX];
    let first = make_ca(folder, "first", "ed25519", &serials);
    let second = make_ca(folder, "second", "ecdsa", &serials);
    let third = make_ca(folder, "third", "rsa", &[2]);
    let revoked: [(&SshPublicKey, &[u64]); 3] =
        [(&first, &[77, 2, 2]), (&second, &[u64::MAX]), (&third, &[])];
    let krl = Krl { version: 9, generated_at: at(0), revoked: &revoked };
    std::fs::write(folder.join("krl"), krl.render().unwrap()).unwrap();
    let is_revoked = |certificate: &str| {
        let output = ssh_keygen(folder, &["-Q", "-f", "krl", certificate]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // ssh-keygen fails for a list it cannot read as well, so the word is checked, not only the status.
        assert!(
            said.contains("REVOKED") || said.contains("ok"),
            "{said} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.success(), !said.contains("REVOKED"));
        said.contains("REVOKED")
    };
    for (certificate, wanted) in [
        ("first-1-cert.pub", false),
        ("first-2-cert.pub", true),
        ("first-77-cert.pub", true),
        ("first-18446744073709551615-cert.pub", false),
        ("second-2-cert.pub", false),
        ("second-18446744073709551615-cert.pub", true),
        ("third-2-cert.pub", false),
    ] {
        assert_eq!(is_revoked(certificate), wanted, "{certificate}");
    }
    let empty = Krl { version: 1, generated_at: at(0), revoked: &[] };
    std::fs::write(folder.join("krl"), empty.render().unwrap()).unwrap();
    assert!(!is_revoked("first-2-cert.pub"), "an empty list revokes nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn parsing_never_panics_and_never_takes_a_line_break(text in "\\PC{0,80}", tail in ".{0,20}") {
        let _ = text.parse::<SshPublicKey>();
        let _ = text.parse::<Principal>();
        let _ = format!("ssh-rsa {text}").parse::<SshPublicKey>();
        if let Ok(key) = format!("{ED25519} {tail}").parse::<SshPublicKey>() {
            prop_assert!(!key.line().chars().any(char::is_control));
        }
    }
}
