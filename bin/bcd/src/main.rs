//! `bcd`, the daemon on every machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    bcd::commands::main(None)
}
