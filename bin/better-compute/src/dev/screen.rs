//! What `dev` shows: steps as they are done, then one live line on a terminal.

use std::io::{IsTerminal, Write};

pub struct Screen {
    terminal: bool,
    colour: bool,
    live: bool,
}

impl Screen {
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { terminal, colour: terminal && std::env::var_os("NO_COLOR").is_none(), live: false }
    }

    pub fn step(&mut self, what: &str, how: &str) {
        self.clear();
        let mark = if self.colour { "\x1b[32m✓\x1b[0m" } else { "✓" };
        eprintln!("  {mark} {what:<14} {how}");
    }

    /// A line of progress that the next one replaces; on no terminal, nothing.
    pub fn waiting(&mut self, text: &str) {
        if self.terminal {
            self.live(&format!("  … {text}"));
        }
    }

    pub fn ready(&mut self, api: &str, context: &str, memory: bool) {
        self.clear();
        eprintln!();
        eprintln!("  API      {api}     CLI context {context:?} is set");
        eprintln!("  Try      better-compute reservations create --pool gpu --gpus 4 --wait");
        eprintln!("           better-compute nodes list");
        match memory {
            true => eprintln!("  Ctrl-C stops it all and forgets it."),
            false => eprintln!("  Ctrl-C stops it all; your data stays. --memory forgets."),
        }
        eprintln!();
    }

    pub fn is_live(&self) -> bool {
        self.terminal
    }

    pub fn live(&mut self, text: &str) {
        if self.terminal {
            let mut out = std::io::stderr();
            // Back to the line's start, clear it, write: one write, so that it does not flicker.
            let _ = write!(out, "\r\x1b[2K{text}").and_then(|()| out.flush());
            self.live = true;
        }
    }

    pub fn clear(&mut self) {
        if self.live {
            let mut out = std::io::stderr();
            let _ = write!(out, "\r\x1b[2K").and_then(|()| out.flush());
            self.live = false;
        }
    }
}
