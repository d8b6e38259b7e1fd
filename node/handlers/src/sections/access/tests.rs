use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use model::NodeId;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use wire::proto::agent::{AccessAccount, AccessSection};

use super::*;
use crate::files::HostPaths;
use crate::files::testing::{Trap, TrappedFiles};

mod host;
mod login;

pub(super) fn node() -> NodeId {
    NodeId::from_uuid(uuid::Uuid::from_u128(5))
}

/// A CA's public key, made from a number.
pub(super) fn ca(number: u64) -> String {
    let key = pki::SigningKey::generate(&pki::SeededEntropy::new(number));
    pki::ssh::ssh_ca_public_key(&key).line().to_owned()
}

pub(super) fn section() -> AccessSection {
    AccessSection {
        ssh_ca_keys: vec![ca(1)],
        accounts: vec![AccessAccount { account: "ops".into(), principals: vec![format!("ops@{}", node())] }],
        revoked_serials: vec![7],
    }
}

/// An sshd that remembers what it was asked, and refuses when told.
#[derive(Default)]
struct FakeSshd {
    refuses: AtomicBool,
    will_not_reload: AtomicBool,
    missing: AtomicBool,
    not_included: AtomicBool,
    reloads: Mutex<u32>,
}

impl Sshd for FakeSshd {
    fn check(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(async {
            if self.missing.load(Ordering::SeqCst) {
                return Err(SshdError::NotInstalled);
            }
            match self.refuses.load(Ordering::SeqCst) {
                true => Err(SshdError::Config { said: "line 9: bad".into() }),
                false => Ok(()),
            }
        })
    }

    fn trusted_ca_file(&self) -> BoxFuture<'_, Option<String>> {
        let file = if self.not_included.load(Ordering::SeqCst) { "none" } else { "/etc/ssh/bc_ca.pub" };
        Box::pin(futures::future::ready(Some(file.to_owned())))
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(async {
            if self.will_not_reload.load(Ordering::SeqCst) {
                return Err(SshdError::Reload { said: "no".into() });
            }
            *self.reloads.lock().unwrap() += 1;
            Ok(())
        })
    }
}

struct Host {
    root: TempDir,
    sshd: Arc<FakeSshd>,
}

impl Host {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), sshd: Arc::default() }
    }

    async fn pass(&self, trap: Trap, section: AccessSection) -> (SectionReport, Vec<String>) {
        let files = Arc::new(TrappedFiles::new(HostPaths::simulated(self.root.path()), trap));
        let owed = self.root.path().join("data/reload-owed");
        let mut access = AccessFiles::new(files.clone(), self.sshd.clone(), owed);
        let spec = NodeSpec { access: Some(section), ..NodeSpec::default() };
        let context = ConvergeContext {
            node_id: node(),
            generation: 1,
            boot_id: "boot".into(),
            first_pass: true,
            cancel: CancellationToken::new(),
            secrets: Default::default(),
        };
        (access.converge(&spec, &context).await, files.changes())
    }

    async fn converged(&self, section: AccessSection) -> Vec<String> {
        let (report, changes) = self.pass(Trap::Never, section).await;
        assert_eq!(report.state, SectionState::Converged, "{report:?}");
        changes
    }

    fn reloads(&self) -> u32 {
        *self.sshd.reloads.lock().unwrap()
    }

    fn has(&self, path: &str) -> bool {
        self.root.path().join(path).exists()
    }
}

#[tokio::test]
async fn a_section_is_written_once_and_sshd_reloaded_once() {
    let host = Host::new();
    assert_eq!(host.converged(section()).await.len(), 4);
    assert_eq!(host.reloads(), 1);
    assert!(host.converged(section()).await.is_empty());
    assert_eq!(host.reloads(), 1);
    // Keys, principals and revocations are read at each login.
    host.converged(AccessSection { revoked_serials: vec![7, 8], ..section() }).await;
    assert_eq!(host.reloads(), 1);
}

#[tokio::test]
async fn an_empty_section_takes_everything_away() {
    let host = Host::new();
    host.converged(section()).await;
    host.converged(AccessSection::default()).await;
    assert_eq!(host.reloads(), 2);
    for path in ["etc/ssh/sshd_config.d/10-better-compute.conf", "etc/ssh/bc_ca.pub", "etc/ssh/bc_krl"] {
        assert!(!host.has(path), "{path}");
    }
    assert!(!host.has("etc/ssh/bc_principals/ops"));
    assert!(host.converged(AccessSection::default()).await.is_empty());
    assert_eq!(host.reloads(), 2);
}

#[tokio::test]
async fn an_account_that_is_gone_loses_its_principals() {
    let host = Host::new();
    host.converged(section()).await;
    let accounts = vec![AccessAccount { account: "dev".into(), principals: vec![format!("dev@{}", node())] }];
    host.converged(AccessSection { accounts, ..section() }).await;
    assert!(!host.has("etc/ssh/bc_principals/ops") && host.has("etc/ssh/bc_principals/dev"));
}

#[tokio::test]
async fn a_configuration_sshd_refuses_is_put_back() {
    let host = Host::new();
    host.sshd.refuses.store(true, Ordering::SeqCst);
    let (report, _) = host.pass(Trap::Never, section()).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "SshdConfig"));
    assert!(!host.has("etc/ssh/sshd_config.d/10-better-compute.conf"));
    assert_eq!(host.reloads(), 0);
    host.sshd.refuses.store(false, Ordering::SeqCst);
    host.converged(section()).await;
    assert_eq!(host.reloads(), 1);
}

#[tokio::test]
async fn a_reload_that_fails_is_owed_until_it_succeeds() {
    let host = Host::new();
    host.sshd.will_not_reload.store(true, Ordering::SeqCst);
    let (report, _) = host.pass(Trap::Never, section()).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Progressing, "SshdReload"));
    host.sshd.will_not_reload.store(false, Ordering::SeqCst);
    assert!(host.converged(section()).await.is_empty());
    assert_eq!(host.reloads(), 1);
    // Taken away: sshd trusts the CA until it has read that it should not, so the files stay until then.
    host.sshd.will_not_reload.store(true, Ordering::SeqCst);
    host.pass(Trap::Never, AccessSection::default()).await;
    assert!(host.has("etc/ssh/bc_ca.pub"));
    host.sshd.will_not_reload.store(false, Ordering::SeqCst);
    host.converged(AccessSection::default()).await;
    assert_eq!((host.reloads(), host.has("etc/ssh/bc_ca.pub")), (2, false));
}

#[tokio::test]
async fn a_crash_anywhere_ends_with_the_files_in_place_and_sshd_reloaded() {
    for at in 0..4 {
        for trap in [Trap::CrashBefore(at), Trap::CrashAfter(at)] {
            let host = Host::new();
            let (report, _) = host.pass(trap, section()).await;
            assert_eq!(report.state, SectionState::Progressing, "{trap:?}");
            host.converged(section()).await;
            assert_eq!(host.reloads(), 1, "{trap:?}");
            let (report, _) = host.pass(trap, AccessSection::default()).await;
            assert_eq!(report.state, SectionState::Progressing, "{trap:?}");
            host.converged(AccessSection::default()).await;
            assert!(host.reloads() >= 2 && !host.has("etc/ssh/bc_ca.pub"), "{trap:?}");
        }
    }
}

#[tokio::test]
async fn a_host_without_sshd_has_the_files_and_says_so() {
    let host = Host::new();
    host.sshd.missing.store(true, Ordering::SeqCst);
    let (report, _) = host.pass(Trap::Never, section()).await;
    assert_eq!(report.state, SectionState::Converged);
    assert_eq!(report.conditions[0].kind, "SshdUnfit");
}

#[tokio::test]
async fn an_sshd_that_does_not_include_the_drop_in_is_found_out() {
    let host = Host::new();
    let (report, _) = host.pass(Trap::Never, section()).await;
    assert!(report.conditions.is_empty());
    host.sshd.not_included.store(true, Ordering::SeqCst);
    let (report, _) = host.pass(Trap::Never, section()).await;
    assert_eq!(report.state, SectionState::Converged);
    assert_eq!(
        (report.conditions[0].kind.as_str(), report.conditions[0].reason.as_str()),
        ("SshdUnfit", "NotIncluded")
    );
}

#[tokio::test]
async fn a_link_in_a_files_place_is_replaced() {
    let host = Host::new();
    let victim = host.root.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    let principals = host.root.path().join("etc/ssh/bc_principals");
    std::fs::create_dir_all(&principals).unwrap();
    std::os::unix::fs::symlink(&victim, principals.join("ops")).unwrap();
    std::os::unix::fs::symlink(&victim, host.root.path().join("etc/ssh/bc_ca.pub")).unwrap();
    host.converged(section()).await;
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(std::fs::read_to_string(principals.join("ops")).unwrap().starts_with("ops@"));
}

#[tokio::test]
async fn an_invalid_section_refuses_the_spec_and_is_terminal_when_held() {
    let bad = AccessSection { ssh_ca_keys: vec!["ssh-ed25519 nonsense".into()], ..section() };
    let host = Host::new();
    let (report, changes) = host.pass(Trap::Never, bad.clone()).await;
    assert_eq!((report.state, report.reason.as_str()), (SectionState::Failed, "InvalidAccess"));
    assert!(changes.is_empty());
    let files = Arc::new(TrappedFiles::new(HostPaths::simulated(host.root.path()), Trap::Never));
    let access = AccessFiles::new(files, host.sshd.clone(), "owed".into());
    let validator = access.validator().unwrap();
    let spec = |access| NodeSpec { access: Some(access), ..NodeSpec::default() };
    assert!((validator.check)(&spec(bad), node()).is_err());
    assert!((validator.check)(&spec(section()), node()).is_ok());
    assert!((validator.check)(&NodeSpec::default(), node()).is_ok());
}
