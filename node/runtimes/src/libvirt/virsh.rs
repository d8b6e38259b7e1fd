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
