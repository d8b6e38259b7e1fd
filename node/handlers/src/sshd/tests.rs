use hw::CannedCommands;

use super::*;

fn failed(text: &str) -> CommandOutput {
    CommandOutput { code: Some(255), stdout: Vec::new(), stderr: text.into() }
}

#[tokio::test]
async fn the_unit_that_is_loaded_is_reloaded() {
    let root = tempfile::tempdir().unwrap();
    let commands = CannedCommands::new()
        .answer("systemctl show --property=LoadState --value ssh.service", CommandOutput::ok("not-found\n"))
        .answer("systemctl show --property=LoadState --value sshd.service", CommandOutput::ok("loaded\n"))
        .answer("systemctl try-reload-or-restart sshd.service", CommandOutput::ok(""))
        .answer("sshd -t", CommandOutput::ok(""))
        .answer("sshd -T", CommandOutput::ok("port 22\ntrustedusercakeys /etc/ssh/bc_ca.pub\n"));
    let sshd = HostSshd::new(root.path(), Arc::new(commands));
    sshd.check().await.unwrap();
    sshd.reload().await.unwrap();
    assert_eq!(sshd.trusted_ca_file().await.as_deref(), Some("/etc/ssh/bc_ca.pub"));
    assert!(root.path().join("run/sshd").is_dir());
}

#[tokio::test]
async fn a_refusal_says_what_sshd_said() {
    let root = tempfile::tempdir().unwrap();
    let commands = CannedCommands::new().answer("sshd -t", failed("line 3: Bad configuration option: foo\n"));
    let sshd = HostSshd::new(root.path(), Arc::new(commands));
    let error = sshd.check().await.unwrap_err();
    assert_eq!(error.to_string(), "check sshd's configuration: line 3: Bad configuration option: foo");
}

#[tokio::test]
async fn a_host_without_sshd_says_so() {
    let root = tempfile::tempdir().unwrap();
    let sshd = HostSshd::new(root.path(), Arc::new(CannedCommands::new()));
    assert!(matches!(sshd.check().await, Err(SshdError::NotInstalled)));
}
