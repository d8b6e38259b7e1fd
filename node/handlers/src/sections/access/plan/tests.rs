use proptest::prelude::*;
use wire::proto::agent::AccessAccount;

use super::*;
use crate::sections::access::tests::{ca, node, section};

fn parsed(section: &AccessSection) -> Result<Access, String> {
    parse(section, node())
}

#[test]
fn the_section_becomes_sshds_files() {
    let access = parsed(&section()).unwrap();
    let text = |file: &HostFile| String::from_utf8(access.files[file].clone()).unwrap();
    assert_eq!(text(&HostFile::SshCa), format!("{}\n", ca(1)));
    let ops = HostFile::SshPrincipals("ops".parse().unwrap());
    assert_eq!(text(&ops), format!("ops@{}\n", node()));
    assert_eq!(&access.files[&HostFile::SshKrl][..7], b"SSHKRL\n");
    assert!(String::from_utf8(access.drop_in.unwrap()).unwrap().contains("RevokedKeys /etc/ssh/bc_krl\n"));
}

#[test]
fn what_could_add_a_line_refuses_the_whole_section() {
    let account = |account: &str, principal: String| AccessAccount {
        account: account.into(),
        principals: vec![principal],
    };
    let own = |account: &str| format!("{account}@{}", node());
    let bad_keys = [
        format!("{}\n{}", ca(1), ca(2)),
        format!("cert-authority,command=\"x\" {}", ca(1)),
        format!("{}\r", ca(1)),
        String::new(),
        "# comment".into(),
    ];
    for key in bad_keys {
        assert!(parsed(&AccessSection { ssh_ca_keys: vec![key.clone()], ..section() }).is_err(), "{key:?}");
    }
    let bad_accounts = [
        account("ops", format!("{}\nroot@x", own("ops"))),
        account("ops", format!(" {}", own("ops"))),
        account("ops", "*".into()),
        account("ops", "command=\"x\" ops".into()),
        account("../ops", own("ops")),
        account("", own("ops")),
        account("ops\n", own("ops")),
    ];
    for account in bad_accounts {
        let section = AccessSection { accounts: vec![account.clone()], ..section() };
        assert!(parsed(&section).is_err(), "{account:?}");
    }
    assert!(parsed(&AccessSection { revoked_serials: vec![0], ..section() }).is_err());
}

#[test]
fn another_nodes_or_accounts_principal_is_not_written() {
    let other = NodeId::from_uuid(uuid::Uuid::from_u128(99));
    let principals = vec![format!("ops@{other}"), format!("root@{}", node())];
    let accounts = vec![AccessAccount { account: "ops".into(), principals: principals.clone() }];
    let access = parsed(&AccessSection { accounts, ..section() }).unwrap();
    assert_eq!(access.ignored, principals.into_iter().collect());
    assert!(!access.files.keys().any(|file| matches!(file, HostFile::SshPrincipals(_))));
}

#[test]
fn a_section_without_a_ca_wants_nothing_of_sshd() {
    let access = parsed(&AccessSection { ssh_ca_keys: Vec::new(), ..section() }).unwrap();
    assert_eq!((access.files.len(), access.drop_in), (0, None));
}

#[test]
fn files_come_before_the_drop_in_and_go_after_the_reload() {
    let full = parsed(&section()).unwrap();
    let steps = plan(&full, &Observed::default());
    assert!(matches!(steps[steps.len() - 2..], [Step::WriteDropIn(_), Step::Reload]), "{steps:?}");
    let there = Observed { files: full.files.clone(), drop_in: full.drop_in.clone(), reload_owed: false };
    assert_eq!(plan(&full, &there), []);
    let ops = HostFile::SshPrincipals("ops".parse().unwrap());
    assert_eq!(
        plan(&Access::default(), &there),
        [
            Step::Remove(ops),
            Step::RemoveDropIn,
            Step::Reload,
            Step::Remove(HostFile::SshCa),
            Step::Remove(HostFile::SshKrl)
        ]
    );
}

#[test]
fn a_change_of_files_alone_reloads_nothing() {
    let full = parsed(&section()).unwrap();
    let there = Observed { files: full.files.clone(), drop_in: full.drop_in.clone(), reload_owed: false };
    let more = parsed(&AccessSection { revoked_serials: vec![7, 8, 9], ..section() }).unwrap();
    assert!(matches!(plan(&more, &there)[..], [Step::Write(HostFile::SshKrl, _)]));
    assert_eq!(plan(&full, &Observed { reload_owed: true, ..there }), [Step::Reload]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the section says, a line of a file is a key or a principal that was checked.
    #[test]
    fn no_text_adds_a_line(keys in proptest::collection::vec(".{0,80}", 0..3), names in proptest::collection::vec("\\PC{0,40}|.{0,40}", 0..3)) {
        let accounts = names.iter().map(|name| AccessAccount { account: "ops".into(), principals: vec![name.clone()] });
        let mut ssh_ca_keys = vec![ca(1)];
        ssh_ca_keys.extend(keys);
        let section = AccessSection { ssh_ca_keys, accounts: accounts.collect(), ..AccessSection::default() };
        if let Ok(access) = parsed(&section) {
            let lines = access.files[&HostFile::SshCa].iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(lines, section.ssh_ca_keys.len());
            for (file, bytes) in &access.files {
                if matches!(file, HostFile::SshPrincipals(_)) {
                    let expected = format!("ops@{}\n", node());
                    prop_assert_eq!(bytes.as_slice(), expected.as_bytes());
                }
            }
        }
    }
}
