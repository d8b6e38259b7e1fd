//! The daemon's recent log and what the machine is, as one redacted text: to a presigned URL, or cut into the result.

use std::sync::Arc;
use std::time::Duration;

use agent::kinds::{CommandContext, KindHandler, Outcome};
use bytes::Bytes;
use futures::future::BoxFuture;
use hw::report::HardwareReport;
use model::CommandKind;
use sha2::{Digest, Sha256};
use wire::proto::agent::command_body::Payload;
use wire::proto::agent::command_result::Result as CommandResult;
use wire::proto::agent::{LogsCollect, LogsCollectResult};

use super::{INVALID_PAYLOAD, wrong_payload};
use crate::logs::LogSource;
use crate::machine::Machine;
use crate::upload::{Upload, UploadError};

/// Seven days.
const SINCE_SECONDS_MAX: u32 = 7 * 24 * 3600;
/// An uploaded bundle: the log is bounded below this, and the rest is small.
const BUNDLE_BYTES_MAX: usize = 16 << 20;
/// A bundle in the result, which has room for twice this.
const INLINE_BYTES_MAX: usize = 256 * 1024;
const UPLOAD_FAILED: &str = "upload-failed";

pub struct Handler {
    pub machine: Arc<Machine>,
    pub logs: Arc<dyn LogSource>,
    pub upload: Arc<dyn Upload>,
}

impl KindHandler for Handler {
    fn kind(&self) -> CommandKind {
        CommandKind::LogsCollect
    }

    fn run(&self, context: CommandContext, payload: Payload) -> BoxFuture<'static, Outcome> {
        let (machine, logs, upload) = (self.machine.clone(), self.logs.clone(), self.upload.clone());
        Box::pin(async move {
            match payload {
                Payload::LogsCollect(asked) => collect(&machine, &*logs, &*upload, &context, &asked).await,
                _ => wrong_payload(),
            }
        })
    }
}

async fn collect(
    machine: &Machine,
    logs: &dyn LogSource,
    upload: &dyn Upload,
    context: &CommandContext,
    asked: &LogsCollect,
) -> Outcome {
    if asked.since_seconds > SINCE_SECONDS_MAX {
        return Outcome::failed(INVALID_PAYLOAD, "logs are collected of 7 days at most");
    }
    let destination = match asked.upload_url.as_str() {
        "" => None,
        url => match upload.destination(url) {
            Ok(destination) => Some(destination),
            Err(err) => return Outcome::failed(INVALID_PAYLOAD, err.to_string()),
        },
    };
    let since = match asked.since_seconds {
        0 => SINCE_SECONDS_MAX,
        seconds => seconds,
    };
    let facts = facts(machine, context).await;
    let log = logs.recent(Duration::from_secs(since.into()));
    let max = if destination.is_some() { BUNDLE_BYTES_MAX } else { INLINE_BYTES_MAX };
    // Redacted before it is cut: half a secret at the edge would not be known for one.
    let bundle = Bytes::from(join(&pki::redact::redact(&facts), &pki::redact::redact(&log), max));
    if context.cancel.is_cancelled() {
        return Outcome::Cancelled;
    }
    let mut result = LogsCollectResult {
        size_bytes: bundle.len() as u64,
        sha256: Bytes::copy_from_slice(&Sha256::digest(&bundle)),
        bundle: Bytes::new(),
    };
    let Some(destination) = destination else {
        result.bundle = bundle;
        return Outcome::Succeeded(CommandResult::LogsCollect(result));
    };
    // Cancel-safe: a dropped upload is one whose connection broke, and a bundle replaces one of an earlier try.
    let uploaded = tokio::select! {
        uploaded = upload.put(destination, bundle) => uploaded,
        () = context.cancel.cancelled() => return Outcome::Cancelled,
    };
    match uploaded {
        Ok(()) => Outcome::Succeeded(CommandResult::LogsCollect(result)),
        Err(err @ UploadError::Destination(_)) => Outcome::failed(INVALID_PAYLOAD, err.to_string()),
        Err(err) => Outcome::failed(UPLOAD_FAILED, format!("failed to {}", kit::chain(&err))),
    }
}

async fn facts(machine: &Machine, context: &CommandContext) -> String {
    let inventory = machine.collect().await;
    let samples = machine.hardware().gpu_samples().await;
    let mut text = format!("node     {}\nboot     {}\n", context.node_id, context.boot_id);
    text.push_str(&HardwareReport::new((*inventory).clone(), samples).text());
    for fact in machine.conditions() {
        let severity = fact.severity.name();
        text.push_str(&format!(
            "{} {severity} {} {} {}\n",
            fact.kind, fact.device, fact.reason, fact.message
        ));
    }
    text
}

/// Facts first, then as much of the log's end as fits, from the beginning of a line on.
pub(super) fn join(facts: &str, log: &str, max: usize) -> String {
    const HEAD: &str = "--- log\n";
    let mut out: String = tail_or_head(facts, max / 2, true).to_owned();
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out.push_str(HEAD);
    let room = max.saturating_sub(out.len());
    let end = tail_or_head(log, room, false);
    match end.len() < log.len() {
        true => out.push_str(end.split_once('\n').map_or("", |(_, whole)| whole)),
        false => out.push_str(end),
    }
    out
}

/// At most `max` bytes of one end, cut between characters.
fn tail_or_head(text: &str, max: usize, head: bool) -> &str {
    if text.len() <= max {
        return text;
    }
    if head {
        let end = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        return &text[..end];
    }
    let least = text.len() - max;
    let start = (least..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[start..]
}
