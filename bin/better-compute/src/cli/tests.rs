use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use client::testing::{Answer, Stub};
use kit::{ManualClock, SeededRng};
use model::{ErrorCode, Id};
use serde_json::{Value, json};

use super::*;

mod answers;
mod contexts;
mod errors;
mod routes;
mod secrets;
mod ssh_certs;
mod waiting;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no holder panics").clone()).expect("commands write UTF-8")
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no holder panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A command line as a person meets it: a home folder, an environment, a terminal or none.
struct Person {
    home: tempfile::TempDir,
    vars: BTreeMap<String, String>,
    types: String,
    terminal: bool,
    width: usize,
}

/// What a command came to.
#[derive(Debug)]
struct Outcome {
    code: u8,
    out: String,
    err: String,
}

impl Person {
    fn new() -> Person {
        let home = tempfile::tempdir().expect("a temporary folder");
        let vars = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
        Person { home, vars, types: String::new(), terminal: false, width: 500 }
    }

    /// One whose commands go to the stub.
    fn at(stub: &Stub) -> Person {
        Person::new().var("BETTER_COMPUTE_URL", stub.url()).var("BETTER_COMPUTE_TOKEN", "bct_testtesttest")
    }

    fn var(mut self, name: &str, value: &str) -> Person {
        self.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    fn typing(mut self, text: &str) -> Person {
        self.types = text.to_owned();
        self
    }

    fn at_a_terminal(mut self, width: usize) -> Person {
        (self.terminal, self.width) = (true, width);
        self
    }

    fn config(&self) -> std::path::PathBuf {
        self.home.path().join(".config/better-compute/config.toml")
    }

    fn run(&self, line: &str) -> Outcome {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        self.run_words(&words)
    }

    fn run_words(&self, words: &[&str]) -> Outcome {
        let (out, err) = (Buffer::default(), Buffer::default());
        let arguments = std::iter::once("better-compute").chain(words.iter().copied());
        let code = match crate::root().try_get_matches_from(arguments) {
            Err(usage) => {
                write!(err.clone(), "{usage}").expect("a buffer takes it");
                2
            }
            Ok(matches) => {
                let (name, matches) = matches.subcommand().expect("clap requires one");
                let mut shell = self.shell(out.clone(), err.clone());
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(run(name, matches, crate::root, &mut shell))
            }
        };
        Outcome { code, out: out.text(), err: err.text() }
    }

    fn shell(&self, out: Buffer, err: Buffer) -> Shell {
        Shell {
            vars: self.vars.clone(),
            input: Box::new(Cursor::new(self.types.clone().into_bytes())),
            output: Box::new(out),
            errors: Box::new(err),
            input_is_terminal: self.terminal,
            output_is_terminal: self.terminal,
            errors_is_terminal: self.terminal,
            width: self.width,
            clock: Arc::new(ManualClock::at("2026-03-01T12:00:00Z".parse().expect("it is a time"))),
            rng: Arc::new(SeededRng::new(1)),
        }
    }
}

fn id<I: Id>(number: u128) -> String {
    I::from_uuid(uuid::Uuid::from_u128(number)).to_string()
}

fn reservation(state: &str) -> Value {
    let at = "2026-03-01T11:00:00Z";
    json!({
        "id": id::<model::ReservationId>(1), "name": "train", "state": state, "gpus": 4, "vcpu": 32, "memoryGiB": 256,
        "memoryMiB": 262_144,
        "hugepages1Gi": 0, "wholeNode": false, "binding": "hold", "selector": {}, "conditions": [], "attempts": 1,
        "tenant": {"id": id::<model::TenantId>(1), "name": "acme"}, "pool": {"id": id::<model::PoolId>(1), "name": "gpu"},
        "createdBy": {"id": id::<model::UserId>(1), "name": "alice"}, "devices": [], "dryRun": false,
        "createdAt": at, "updatedAt": at, "ageSeconds": 3600,
    })
}

fn node(name: &str, free: u64, conditions: Value) -> Value {
    json!({
        "id": id::<model::NodeId>(free.into()), "name": name, "hostname": name, "role": "node", "state": "ready",
        "schedulable": true, "site": {"id": id::<model::SiteId>(1), "name": "fsn1"},
        "pool": {"id": id::<model::PoolId>(1), "name": "gpu"}, "labels": {},
        "gpus": {"total": 8, "free": free, "unhealthy": 0, "model": "NVIDIA H100 80GB HBM3"},
        "vcpu": {"total": 224, "free": 28 * free}, "memoryGiB": {"total": 2048, "free": 1945},
        "hugepages1Gi": {"total": 0, "free": 0}, "conditions": conditions, "generation": 3, "appliedGeneration": 3,
        "observedGeneration": 3, "sections": [], "agentVersion": "0.1.0", "lastSeenSeconds": 2,
        "createdAt": "2026-02-28T12:00:00Z", "ageSeconds": 86400,
    })
}
