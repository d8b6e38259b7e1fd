//! Calls of `virsh`. Each is bounded in time and in what it may answer; what it says on failure is shown and never judged.

use std::sync::Arc;

use hw::Commands;

use crate::runtime::Trouble;

const VIRSH: &str = "virsh";
/// A few lines tell what went wrong.
const SAID_CHARS_MAX: usize = 500;

pub struct Virsh {
    commands: Arc<dyn Commands>,
    uri: String,
}

impl Virsh {
    pub fn new(commands: Arc<dyn Commands>, uri: String) -> Self {
        Self { commands, uri }
    }

    /// Runs one command of virsh and returns what it prints.
    pub async fn ok(&self, words: &[&str]) -> Result<String, Trouble> {
        let args = [&["--quiet", "--connect", &self.uri], words].concat();
        let done = self
            .commands
            .run(VIRSH, &args)
            .await
            .map_err(|err| Trouble::Unavailable { said: kit::chain(&err) })?;
        if !done.success() {
            return Err(Trouble::Refused { said: said(&done.stderr) });
        }
        String::from_utf8(done.stdout).map_err(|_| Trouble::Unreadable { what: "its answer is no text" })
    }
}

/// What a program complained of, as one line.
pub fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().map(|line| line.strip_prefix("error: ").unwrap_or(line).trim());
    let joined = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    joined.chars().filter(|c| !c.is_control()).take(SAID_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use hw::HostCommands;

    use super::*;

    /// A virsh that never returns from one word.
    fn hangs_at(word: &str) -> (tempfile::TempDir, Virsh) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(VIRSH);
        std::fs::write(
            &path,
            format!("#!/bin/sh\ncase \"$*\" in *{word}*) exec /bin/sleep 600;; esac\necho done\n"),
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let commands = HostCommands::new()
            .with_search_path(dir.path().to_str().unwrap())
            .with_bounds(Duration::from_secs(2), 1000);
        (dir, Virsh::new(Arc::new(commands), "test:///default".into()))
    }

    #[tokio::test]
    async fn a_virsh_that_never_returns_is_left_and_the_next_one_is_asked() {
        let (_dir, virsh) = hangs_at("start");
        let hung = virsh.ok(&["start", "bc-one"]).await.unwrap_err();
        assert!(hung.retryable(), "{hung}");
        assert_eq!(hung.reason(), "RuntimeUnavailable");
        assert!(hung.to_string().contains("no answer within 2000 ms"), "{hung}");
        assert_eq!(virsh.ok(&["list"]).await.unwrap(), "done\n", "others are answered");
    }
}
