//! What the cryptography of a handshake takes by `openssl speed`, which uses the processor as well as anything does.

use std::process::Command;
use std::time::Duration;

/// Seconds of each operation.
const SECONDS: &str = "1";

/// The server's half of one TLS 1.3 handshake with certificates on both sides: a key pair and an agreement, a signature, and two
/// signatures verified, which are the other's and its certificate's. None where there is no openssl.
pub fn handshake() -> Option<Duration> {
    let [.., agreement] = speed("ecdhx25519")?[..] else { return None };
    let [.., sign, verify] = speed("ecdsap256")?[..] else { return None };
    Some(Duration::from_secs_f64(2.0 / agreement + 1.0 / sign + 2.0 / verify))
}

/// The numbers of the table's last line, which ends in operations a second of processor time.
fn speed(what: &str) -> Option<Vec<f64>> {
    let output = Command::new("openssl").args(["speed", "-seconds", SECONDS, what]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rev().find(|line| line.contains(" bits "))?;
    Some(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}
