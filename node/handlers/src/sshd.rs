//! The host's sshd, as a port: whether its configuration holds, and having it read it again.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use hw::{CommandError, CommandOutput, Commands};

#[derive(Debug, thiserror::Error)]
pub enum SshdError {
    #[error("find sshd: it is not installed")]
    NotInstalled,
    #[error("check sshd's configuration: {said}")]
    Config { said: String },
    #[error("reload sshd: {said}")]
    Reload { said: String },
    #[error("run sshd's tools")]
    Run(#[source] CommandError),
}

pub trait Sshd: Send + Sync + 'static {
    /// `sshd -t` over the whole configuration as it is on disk.
    fn check(&self) -> BoxFuture<'_, Result<(), SshdError>>;
    /// The file of CA keys that the configuration as a whole names, lowercase `none` for none; absent when sshd does not say.
    fn trusted_ca_file(&self) -> BoxFuture<'_, Option<String>>;
    /// Has a running sshd read its configuration; sessions go on. One that does not run reads it when it starts.
    fn reload(&self) -> BoxFuture<'_, Result<(), SshdError>>;
}

/// OpenSSH's server, run by systemd.
pub struct HostSshd {
    root: PathBuf,
    commands: Arc<dyn Commands>,
}

/// Debian's name and everyone else's.
const UNITS: [&str; 2] = ["ssh.service", "sshd.service"];

impl HostSshd {
    pub fn new(root: impl Into<PathBuf>, commands: Arc<dyn Commands>) -> Self {
        Self { root: root.into(), commands }
    }

    async fn run(&self, program: &str, args: &[&str]) -> Result<CommandOutput, SshdError> {
        match self.commands.run(program, args).await {
            Ok(output) => Ok(output),
            Err(CommandError::NotFound { .. }) => Err(SshdError::NotInstalled),
            Err(error) => Err(SshdError::Run(error)),
        }
    }
}

fn said(output: &CommandOutput) -> String {
    const SHOWN_MAX: usize = 300;
    let text = String::from_utf8_lossy(&output.stderr);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN_MAX).collect()
}

impl Sshd for HostSshd {
    fn check(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(async move {
            // sshd refuses even to check without this folder, which its unit makes only while it runs.
            let separation = self.root.join("run/sshd");
            if !separation.exists()
                && let Err(err) = kit::fs::create_dir(&separation, 0o755)
            {
                tracing::debug!(err = %kit::chain(&err), "privilege separation folder not made");
            }
            let output = self.run("sshd", &["-t"]).await?;
            if output.success() { Ok(()) } else { Err(SshdError::Config { said: said(&output) }) }
        })
    }

    fn trusted_ca_file(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            let output = self.run("sshd", &["-T"]).await.ok().filter(CommandOutput::success)?;
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines()
                .find_map(|line| line.strip_prefix("trustedusercakeys "))
                .map(|file| file.trim().to_owned())
        })
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(async move {
            for unit in UNITS {
                let state = self.run("systemctl", &["show", "--property=LoadState", "--value", unit]).await?;
                if state.stdout.trim_ascii() != b"loaded" {
                    continue;
                }
                // Nothing to do for one that is not running, as under socket activation between two logins.
                let output = self.run("systemctl", &["try-reload-or-restart", unit]).await?;
                return match output.success() {
                    true => Ok(()),
                    false => Err(SshdError::Reload { said: said(&output) }),
                };
            }
            Err(SshdError::Reload { said: "systemd has no unit for it".into() })
        })
    }
}

/// An sshd that takes whatever it is given.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSshd;

impl Sshd for NoSshd {
    fn trusted_ca_file(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(futures::future::ready(None))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(futures::future::ready(Ok(())))
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), SshdError>> {
        Box::pin(futures::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests;
