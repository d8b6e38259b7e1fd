use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tempfile::TempDir;

use super::*;

#[test]
fn the_process_says_its_word() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("init");
    std::fs::write(&path, program()).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a file");
    // As the first process of namespaces of its own: powering off ends them and not this machine.
    let unshare = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
    let done = Command::new("unshare").args(unshare).arg(&path).output().expect("unshare is installed");
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{WORD}\n"), "{done:?}");
}

#[test]
fn the_archive_holds_a_console_and_the_process() {
    let archive = initrd();
    let text = String::from_utf8_lossy(&archive);
    assert!(text.starts_with("070701"));
    assert_eq!(text.matches("070701").count(), 4);
    for name in ["dev\0", "dev/console\0", "init\0", "TRAILER!!!\0"] {
        assert!(text.contains(name), "{name}");
    }
    assert_eq!(archive.len() % 4, 0);
}

#[test]
fn the_running_kernel_is_tried_first() {
    let dir = TempDir::new().expect("a folder");
    assert_eq!(host_kernel(dir.path(), "6.1.0"), None);
    std::fs::write(dir.path().join("vmlinuz"), "").expect("a file");
    assert_eq!(host_kernel(dir.path(), "6.1.0"), Some(dir.path().join("vmlinuz")));
    std::fs::write(dir.path().join("vmlinuz-6.1.0"), "").expect("a file");
    assert_eq!(host_kernel(dir.path(), "6.1.0"), Some(dir.path().join("vmlinuz-6.1.0")));
    assert_eq!(host_kernel(dir.path(), "../6.1.0"), Some(dir.path().join("vmlinuz")));
}
