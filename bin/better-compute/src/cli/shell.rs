//! What surrounds a command: its streams, its terminal, its environment, time and chance.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use kit::{Clock, OsRng, Rng, SystemClock};

use super::Failure;

/// A table on something that is no terminal is as wide as it needs.
const WIDTH_MAX: usize = 500;

pub struct Shell {
    pub vars: BTreeMap<String, String>,
    pub input: Box<dyn BufRead + Send>,
    pub output: Box<dyn Write + Send>,
    pub errors: Box<dyn Write + Send>,
    pub input_is_terminal: bool,
    pub output_is_terminal: bool,
    pub errors_is_terminal: bool,
    /// Columns of the terminal that output goes to.
    pub width: usize,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

impl Shell {
    /// The process's own.
    pub fn of_process() -> Self {
        let output_is_terminal = io::stdout().is_terminal();
        // What is no UTF-8 can be none of our variables.
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            vars,
            input: Box::new(io::BufReader::new(io::stdin())),
            output: Box::new(io::stdout()),
            errors: Box::new(io::stderr()),
            input_is_terminal: io::stdin().is_terminal(),
            output_is_terminal,
            errors_is_terminal: io::stderr().is_terminal(),
            width: if output_is_terminal { terminal_width() } else { WIDTH_MAX },
            clock: Arc::new(SystemClock::new()),
            rng: Arc::new(OsRng),
        }
    }

    pub fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Colours are for terminals, and for those who did not ask to be spared (no-color.org).
    pub fn colour(&self) -> bool {
        self.output_is_terminal && self.spared_not()
    }

    pub fn colour_errors(&self) -> bool {
        self.errors_is_terminal && self.spared_not()
    }

    fn spared_not(&self) -> bool {
        self.var("NO_COLOR").is_none() && self.var("TERM") != Some("dumb")
    }

    /// A person is there to be asked.
    pub fn interactive(&self) -> bool {
        self.input_is_terminal && self.errors_is_terminal
    }

    pub fn home(&self) -> Option<PathBuf> {
        self.var("HOME").map(PathBuf::from)
    }

    /// To standard output, where programs read.
    pub fn out(&mut self, text: &str) -> Result<(), Failure> {
        match self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush()) {
            Ok(()) => Ok(()),
            // Whoever read has enough, like `head`.
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Quiet(0)),
            Err(err) => Err(Failure::local(format!("failed to write the answer: {err}"))),
        }
    }

    /// A line for people, to standard error. That it cannot be written changes nothing.
    pub fn note(&mut self, line: &str) {
        let _ = writeln!(self.errors, "{line}");
    }

    /// Asks for one line.
    pub fn ask(&mut self, question: &str) -> String {
        let _ = write!(self.errors, "{question}").and_then(|()| self.errors.flush());
        let mut line = String::new();
        // An answer that cannot be read is none.
        let _ = self.input.read_line(&mut line);
        line.trim().to_owned()
    }
}

fn terminal_width() -> usize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => 80,
    }
}
