//! Who may log in on this host in an emergency: sshd trusts the deployment's SSH CAs for the accounts and principals that
//! the section names, and for no certificate it revokes.
//!
//! The files sshd reads at each login come before the drop-in that names them, and go after it. sshd itself is reloaded
//! only when the drop-in changed; a marker of the daemon's own, written before the change, says that a reload is owed,
//! so that a crash between the two is made good.

mod plan;

use std::path::PathBuf;
use std::sync::Arc;

use agent::converge::{ConvergeContext, Converger, Fact, SectionReport, Validator};
use futures::future::BoxFuture;
use model::condition::Severity;
use model::{Section, SectionState};
use wire::proto::agent::NodeSpec;

use crate::files::{Files, FilesError, HostDir, HostFile};
use crate::sshd::{Sshd, SshdError};
use plan::{Access, Observed, Step};

pub struct AccessFiles {
    files: Arc<dyn Files>,
    sshd: Arc<dyn Sshd>,
    /// There while sshd may not have read the drop-in as it is.
    reload_owed: PathBuf,
}

/// Why a pass did not get to its end.
enum Problem {
    Files(FilesError),
    Marker(kit::fs::FsError),
    Sshd(SshdError),
}

impl From<FilesError> for Problem {
    fn from(source: FilesError) -> Self {
        Problem::Files(source)
    }
}

impl From<kit::fs::FsError> for Problem {
    fn from(source: kit::fs::FsError) -> Self {
        Problem::Marker(source)
    }
}

impl Problem {
    fn report(&self) -> SectionReport {
        let (reason, message) = match self {
            Problem::Files(err) => ("FilesUnwritable", kit::chain(err)),
            Problem::Marker(err) => ("FilesUnwritable", kit::chain(err)),
            Problem::Sshd(err @ SshdError::Config { .. }) => ("SshdConfig", kit::chain(err)),
            Problem::Sshd(err) => ("SshdReload", kit::chain(err)),
        };
        SectionReport::of(SectionState::Progressing).with_reason(reason, message)
    }
}

impl AccessFiles {
    /// `reload_owed` is the path of a marker file of the daemon's own.
    pub fn new(files: Arc<dyn Files>, sshd: Arc<dyn Sshd>, reload_owed: PathBuf) -> Self {
        Self { files, sshd, reload_owed }
    }

    async fn pass(&self, spec: &NodeSpec, context: &ConvergeContext) -> SectionReport {
        let section = spec.access.clone().unwrap_or_default();
        // Checked before the spec was taken, and again: the journal's copy may be of an older build.
        let access = match plan::parse(&section, context.node_id) {
            Ok(access) => access,
            Err(problem) => {
                return SectionReport::of(SectionState::Failed).with_reason("InvalidAccess", problem);
            }
        };
        let mut report = match self.bring_about(&access, context).await {
            Ok(report) => report,
            Err(problem) => problem.report(),
        };
        report.conditions.extend(access.ignored.iter().map(|principal| ignored(principal)));
        report
    }

    async fn bring_about(
        &self,
        access: &Access,
        context: &ConvergeContext,
    ) -> Result<SectionReport, Problem> {
        let observed = self.observe(access).await?;
        for step in plan::plan(access, &observed) {
            if context.cancel.is_cancelled() {
                return Ok(SectionReport::of(SectionState::Progressing).with_reason("Stopping", ""));
            }
            match step {
                Step::Write(file, bytes) => self.files.write(&file, bytes).await?,
                Step::Remove(file) => self.files.remove(&file).await?,
                Step::WriteDropIn(text) => self.change_drop_in(&observed, Some(text)).await?,
                Step::RemoveDropIn => self.change_drop_in(&observed, None).await?,
                Step::Reload => self.reload().await?,
            }
        }
        let mut report = SectionReport::converged();
        if access.drop_in.is_some() {
            report.conditions.extend(self.unfit().await);
        }
        Ok(report)
    }

    /// Why nobody gets in although the files are right.
    async fn unfit(&self) -> Option<Fact> {
        if let Err(err) = self.sshd.check().await {
            let reason = match err {
                SshdError::NotInstalled => "NotInstalled",
                SshdError::Config { .. } => "Config",
                SshdError::Reload { .. } | SshdError::Run(_) => "Unknown",
            };
            return Some(sshd_fact(reason, &format!("failed to {}", kit::chain(&err))));
        }
        let file = self.sshd.trusted_ca_file().await.filter(|file| file != plan::CA_FILE)?;
        let why =
            format!("sshd's configuration names {file:?} for its CA keys and does not include our drop-in");
        Some(sshd_fact("NotIncluded", &why))
    }

    /// Puts the drop-in in place or takes it away. A configuration that sshd then refuses is put back as it was: sshd
    /// would not start with it, and that would lock everyone out.
    async fn change_drop_in(&self, observed: &Observed, text: Option<Vec<u8>>) -> Result<(), Problem> {
        if let Some(dir) = self.reload_owed.parent() {
            kit::fs::create_dir(dir, 0o700)?;
        }
        kit::fs::write_atomic(&self.reload_owed, b"", 0o600)?;
        self.put_drop_in(text.as_ref()).await?;
        match self.sshd.check().await {
            Ok(()) | Err(SshdError::NotInstalled) => Ok(()),
            Err(err) => {
                tracing::warn!(err = %kit::chain(&err), "sshd refuses its configuration, drop-in put back");
                self.put_drop_in(observed.drop_in.as_ref()).await?;
                Err(Problem::Sshd(err))
            }
        }
    }

    async fn put_drop_in(&self, text: Option<&Vec<u8>>) -> Result<(), FilesError> {
        match text {
            Some(text) => self.files.write(&HostFile::SshDropIn, text.clone()).await,
            None => self.files.remove(&HostFile::SshDropIn).await,
        }
    }

    async fn reload(&self) -> Result<(), Problem> {
        let reloaded = match self.sshd.check().await {
            Ok(()) => self.sshd.reload().await,
            Err(err) => Err(err),
        };
        match reloaded {
            Ok(()) => tracing::info!("sshd reloaded"),
            // There is nothing that would read the files, and nothing that lets anyone in.
            Err(SshdError::NotInstalled) => {}
            Err(err) => return Err(Problem::Sshd(err)),
        }
        Ok(kit::fs::remove_if_present(&self.reload_owed)?)
    }

    async fn observe(&self, access: &Access) -> Result<Observed, FilesError> {
        let mut observed = Observed {
            drop_in: self.read(&HostFile::SshDropIn).await?,
            reload_owed: self.reload_owed.exists(),
            ..Observed::default()
        };
        let accounts = self.files.list(HostDir::SshPrincipals).await?;
        let on_host = accounts.iter().filter_map(|name| name.parse().ok()).map(HostFile::SshPrincipals);
        let mut files: Vec<HostFile> = on_host.collect();
        files.extend(access.files.keys().cloned());
        files.extend([HostFile::SshCa, HostFile::SshKrl]);
        for file in files {
            // A link or a folder in a file's place is not what it should be, whatever is behind it.
            match self.read(&file).await {
                Ok(Some(bytes)) => observed.files.insert(file, bytes),
                Ok(None) => None,
                Err(FilesError::Refused { .. }) => observed.files.insert(file, Vec::new()),
                Err(err) => return Err(err),
            };
        }
        Ok(observed)
    }

    async fn read(&self, file: &HostFile) -> Result<Option<Vec<u8>>, FilesError> {
        self.files.read(file.dir(), &file.name()).await
    }
}

fn ignored(what: &str) -> Fact {
    Fact {
        kind: "PrincipalIgnored".into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: what.into(),
        message: "the access section names a principal that is not this account's on this node".into(),
        age: None,
    }
}

fn sshd_fact(reason: &str, why: &str) -> Fact {
    Fact {
        kind: "SshdUnfit".into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: reason.into(),
        message: format!("nobody can log in with a certificate: {why}"),
        age: None,
    }
}

impl Converger for AccessFiles {
    fn section(&self) -> Section {
        Section::Access
    }

    fn converge<'a>(
        &'a mut self,
        spec: &'a NodeSpec,
        context: &'a ConvergeContext,
    ) -> BoxFuture<'a, SectionReport> {
        Box::pin(self.pass(spec, context))
    }

    fn validator(&self) -> Option<Validator> {
        Some(Validator {
            section: Section::Access,
            check: |spec, node_id| match &spec.access {
                Some(section) => plan::parse(section, node_id).map(|_| ()),
                None => Ok(()),
            },
        })
    }
}

#[cfg(test)]
mod tests;
