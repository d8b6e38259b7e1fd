use super::*;
use crate::testing::{Deployment, START};
use pki::SeededEntropy;

fn same(left: &Identity, right: &Identity) -> bool {
    left.node_id == right.node_id
        && left.key.verifying_key() == right.key.verifying_key()
        && left.chain == right.chain
        && left.serial == right.serial
        && (left.not_before, left.not_after) == (right.not_before, right.not_after)
        && left.trust == right.trust
        && left.signed_trust == right.signed_trust
        && left.marks == right.marks
}

fn store() -> (tempfile::TempDir, FileIdentity) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileIdentity::new(dir.path().join("bcd"));
    (dir, store)
}

#[test]
fn an_identity_comes_back_as_it_was_stored_and_is_its_owners_alone() {
    let (_dir, store) = store();
    assert!(store.load().unwrap().is_none());
    let identity = Deployment::new(1).identity(5);
    store.store(&identity).unwrap();
    assert!(same(&store.load().unwrap().unwrap(), &identity));
    for name in [IDENTITY_FILE, KEY_FILE] {
        kit::fs::check_private(&store.dir.join(name)).unwrap();
    }
    assert!(!store.dir.join(NEXT_KEY_FILE).exists());
    assert_eq!(identity.marks.server_time_ms, u64::try_from(START.millis()).unwrap());
}

#[test]
fn marks_change_without_touching_the_key() {
    let (_dir, store) = store();
    let mut identity = Deployment::new(1).identity(5);
    store.store(&identity).unwrap();
    let key = std::fs::read(store.dir.join(KEY_FILE)).unwrap();
    identity.marks.generation = 9;
    store.store(&identity).unwrap();
    assert_eq!(store.load().unwrap().unwrap().marks.generation, 9);
    assert_eq!(std::fs::read(store.dir.join(KEY_FILE)).unwrap(), key);
}

/// A renewal interrupted after each of its three steps.
#[test]
fn a_crash_anywhere_in_a_renewal_leaves_the_old_identity_or_the_new_one_whole() {
    let deployment = Deployment::new(1);
    let (old, new) = (deployment.identity(5), deployment.identity(5));
    for crash_after in 0..=3 {
        let (_dir, store) = store();
        store.store(&old).unwrap();
        let file = |name: &str| store.dir.join(name);
        if crash_after >= 1 {
            kit::fs::write_atomic(&file(NEXT_KEY_FILE), new.key.to_pkcs8_pem().as_bytes(), 0o600).unwrap();
        }
        if crash_after >= 2 {
            let json = serde_json::to_vec(&render(&new)).unwrap();
            kit::fs::write_atomic(&file(IDENTITY_FILE), &json, 0o600).unwrap();
        }
        if crash_after >= 3 {
            store.promote().unwrap();
        }
        let expected = if crash_after >= 2 { &new } else { &old };
        assert!(same(&store.load().unwrap().unwrap(), expected), "crash after step {crash_after}");
        assert!(
            same(&store.load().unwrap().unwrap(), expected),
            "and again, after what the first load mended"
        );
        // The key in use is under its own name, where the next renewal does not write.
        let kept = store.read_key(KEY_FILE).unwrap().unwrap();
        assert_eq!(kept.verifying_key(), expected.key.verifying_key(), "crash after step {crash_after}");
        store.store(&new).unwrap();
        assert!(same(&store.load().unwrap().unwrap(), &new), "a renewal after that one works");
    }
}

#[test]
fn a_certificate_without_its_key_names_the_way_back() {
    let (_dir, store) = store();
    store.store(&Deployment::new(1).identity(5)).unwrap();
    let other = SigningKey::generate(&SeededEntropy::new(9));
    kit::fs::write_atomic(&store.dir.join(KEY_FILE), other.to_pkcs8_pem().as_bytes(), 0o600).unwrap();
    let err = store.load().unwrap_err();
    assert!(err.to_string().contains("bcd join --reset --yes"), "{err}");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, store) = store();
    store.store(&Deployment::new(1).identity(5)).unwrap();
    std::fs::set_permissions(store.dir.join(KEY_FILE), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(kit::chain(&store.load().unwrap_err()).contains("chmod 600"));
}

#[test]
fn a_damaged_file_is_an_error_and_never_a_machine_that_has_not_joined() {
    let (_dir, store) = store();
    store.store(&Deployment::new(1).identity(5)).unwrap();
    let path = store.dir.join(IDENTITY_FILE);
    let whole = std::fs::read_to_string(&path).unwrap();
    for broken in [
        whole[..whole.len() / 2].to_owned(),
        whole.replace("\"v\": 1", "\"v\": 2"),
        whole.replace("\"marks\"", "\"remarks\""),
        whole.replace("node_", "site_"),
        String::new(),
    ] {
        std::fs::write(&path, &broken).unwrap();
        assert!(store.load().is_err(), "{broken}");
    }
}

#[test]
fn the_highest_of_each_mark_counts() {
    let one = Marks { server_time_ms: 5, generation: 1, deployment_epoch: 7 };
    let other = Marks { server_time_ms: 3, generation: 2, deployment_epoch: 7 };
    assert_eq!(one.max(other), Marks { server_time_ms: 5, generation: 2, deployment_epoch: 7 });
    assert!(Marks { generation: 0, ..one }.is_fresh());
}
