use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;

fn files(root: &Path) -> HostFiles {
    HostFiles::new(HostPaths::simulated(root))
}

fn allocation() -> AllocationId {
    AllocationId::from_uuid(uuid::Uuid::from_u128(7))
}

#[tokio::test]
async fn a_written_file_is_read_back_with_its_folders_made() {
    let root = tempfile::tempdir().unwrap();
    let files = files(root.path());
    let file = HostFile::Cdi(allocation());
    files.write(&file, b"one".to_vec()).await.unwrap();
    files.write(&file, b"two".to_vec()).await.unwrap();
    assert_eq!(files.read(HostDir::Cdi, &file.name()).await.unwrap().as_deref(), Some(&b"two"[..]));
    assert_eq!(files.list(HostDir::Cdi).await.unwrap(), [file.name()]);
    let stat = std::fs::metadata(root.path().join("etc/cdi").join(file.name())).unwrap();
    assert_eq!(stat.mode() & 0o777, 0o644);
    files.remove(&file).await.unwrap();
    files.remove(&file).await.unwrap();
    assert_eq!(files.read(HostDir::Cdi, &file.name()).await.unwrap(), None);
}

#[tokio::test]
async fn a_link_in_a_files_place_is_replaced_and_never_followed() {
    let root = tempfile::tempdir().unwrap();
    let files = files(root.path());
    let file = HostFile::Cdi(allocation());
    let victim = root.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let place = root.path().join("etc/cdi").join(file.name());
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    symlink(&victim, &place).unwrap();
    assert!(files.read(HostDir::Cdi, &file.name()).await.is_err());
    // The temporary name is a link too.
    symlink(&victim, place.with_file_name(format!(".{}.new", file.name()))).unwrap();
    files.write(&file, b"ours".to_vec()).await.unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    assert!(!std::fs::symlink_metadata(&place).unwrap().is_symlink());
    std::fs::remove_file(&place).unwrap();
    symlink(&victim, &place).unwrap();
    files.remove(&file).await.unwrap();
    assert!(victim.exists());
}

#[tokio::test]
async fn a_link_on_the_way_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("etc")).unwrap();
    symlink(elsewhere.path(), root.path().join("etc/cdi")).unwrap();
    let files = files(root.path());
    let file = HostFile::Cdi(allocation());
    assert!(files.write(&file, b"x".to_vec()).await.is_err());
    assert!(files.remove(&file).await.is_err());
    assert!(files.list(HostDir::Cdi).await.is_err());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_no_regular_file_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc/cdi");
    std::fs::create_dir_all(dir.join("folder")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    std::fs::write(dir.join("large"), vec![0; FILE_BYTES_MAX + 1]).unwrap();
    let files = files(root.path());
    for name in ["folder", "pipe", "large", "../cdi", ".."] {
        assert!(files.read(HostDir::Cdi, name).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_folder_others_can_write_is_refused_on_the_real_host() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc/cdi");
    std::fs::create_dir_all(&dir).unwrap();
    let files = HostFiles::new(HostPaths { root: root.path().into(), strict: true, devices_assumed: false });
    files.write(&HostFile::Cdi(allocation()), b"x".to_vec()).await.unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(files.write(&HostFile::Cdi(allocation()), b"x".to_vec()).await.is_err());
}

#[test]
fn an_account_is_a_plain_file_name() {
    for good in ["root", "ops", "_x", "a.b-c_d"] {
        assert!(good.parse::<Account>().is_ok(), "{good}");
    }
    for bad in ["", ".", "..", "-x", "Root", "a/b", "a b", "a\nb", "a@b", &"a".repeat(33)] {
        assert!(bad.parse::<Account>().is_err(), "{bad:?}");
    }
}
