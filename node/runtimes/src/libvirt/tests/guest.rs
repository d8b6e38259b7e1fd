//! Talking to a guest over its serial console.

use std::time::{Duration, Instant};

use model::InstanceId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::runtime::Runtime;

/// Six seconds on two idle cores, and builds may have both.
const WITHIN: Duration = Duration::from_secs(120);
/// A guest that boots hears nothing yet: it is asked again.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Runs the script in the guest's shell, as soon as there is one, and returns what it prints.
pub async fn ask(runtime: &dyn Runtime, id: InstanceId, script: &str) -> String {
    // The terminal echoes what is typed, where the marks are not yet what they become.
    let line = format!("echo begin-$((40+2)); {script}; echo end-$((40+2))\n");
    let mut console = runtime.console(id).await.expect("the console can be opened");
    let started = Instant::now();
    let mut heard = String::new();
    while started.elapsed() < WITHIN {
        console.write_all(line.as_bytes()).await.expect("the console takes what is typed");
        let asked = Instant::now();
        let mut buffer = [0; 4096];
        while let Some(left) = ANSWERS_WITHIN.checked_sub(asked.elapsed()) {
            match tokio::time::timeout(left, console.read(&mut buffer)).await {
                Ok(Ok(count)) if count > 0 => {
                    heard.push_str(&String::from_utf8_lossy(&buffer[..count]).replace('\r', ""));
                }
                Ok(ended) => panic!("the console ended: {ended:?}; it said:\n{heard}"),
                Err(_) => break,
            }
            if let Some(answer) = between(&heard, "begin-42\n", "end-42\n") {
                return answer.to_owned();
            }
        }
    }
    panic!("the guest does not answer within {WITHIN:?}; its console said:\n{heard}")
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split_once(end).map(|(inside, _)| inside)
}
