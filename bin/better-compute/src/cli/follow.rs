//! Waiting until something has settled, with where it stands on standard error meanwhile.

use std::time::Duration;

use api::MethodRow;
use client::Client;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::text::at;
use super::{Failure, Shell};

/// One look holds at the server for this long, so that a person sees each state it goes through.
const LOOK_MS: u64 = 2_000;
/// Between looks at what no method can hold an answer for.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    NotYet,
    AsAsked,
    Otherwise,
}

/// How a method's outcome is followed.
pub struct Follow {
    /// The method that looks again.
    pub get: &'static str,
    /// The field of its request that names the thing.
    pub by: &'static str,
    pub settled: fn(&Value) -> Settled,
}

/// None for methods that are done when they answer.
pub fn of(method: &str) -> Option<Follow> {
    let reservation = |settled| Some(Follow { get: "reservations.get", by: "id", settled });
    match method {
        "reservations.create" | "reservations.get" => reservation(|v| match at(v, "state").as_str() {
            "active" => Settled::AsAsked,
            "failed" | "released" | "expired" => Settled::Otherwise,
            _ => Settled::NotYet,
        }),
        "reservations.release" => reservation(|v| match at(v, "state").as_str() {
            "released" | "expired" | "failed" => Settled::AsAsked,
            _ => Settled::NotYet,
        }),
        "instances.create"
        | "instances.get"
        | "instances.start"
        | "instances.stop"
        | "instances.reboot"
        | "instances.recover"
        | "instances.forceRelease"
        | "instances.delete" => Some(Follow {
            get: "instances.get",
            by: "id",
            settled: |v| match at(v, "state") {
                state if state == at(v, "desiredState") => Settled::AsAsked,
                state if matches!(state.as_str(), "error" | "lost" | "deleted") => Settled::Otherwise,
                _ => Settled::NotYet,
            },
        }),
        "tenants.get" | "tenants.delete" => Some(Follow {
            get: "tenants.get",
            by: "id",
            settled: |v| match at(v, "state").as_str() {
                "deleting" => Settled::NotYet,
                _ => Settled::AsAsked,
            },
        }),
        "commands.create" | "commands.get" => Some(Follow {
            get: "commands.get",
            by: "id",
            settled: |v| match at(v, "state").as_str() {
                "succeeded" => Settled::AsAsked,
                "failed" | "rejected" | "cancelled" | "expired" => Settled::Otherwise,
                _ => Settled::NotYet,
            },
        }),
        "nodes.adopt" => Some(Follow {
            get: "nodes.get",
            by: "node",
            settled: |v| match at(v, "state").as_str() {
                "ready" => Settled::AsAsked,
                "joined" | "accepting" | "unreachable" => Settled::NotYet,
                _ => Settled::Otherwise,
            },
        }),
        _ => None,
    }
}

/// Looks until it has settled. Gives the last answer, and what became of it.
pub async fn until_settled(
    follow: &Follow,
    client: &Client,
    first: Value,
    patience: Duration,
    shell: &mut Shell,
) -> Result<(Value, Settled), Failure> {
    let row = api::find(follow.get).expect("the table has what is followed by");
    let began = shell.clock.monotonic();
    let spinner = spinner(shell);
    let mut answer = first;
    let id = at(&answer, "id");
    loop {
        let settled = (follow.settled)(&answer);
        if settled != Settled::NotYet {
            spinner.finish_and_clear();
            return Ok((answer, settled));
        }
        spinner.set_message(standing(&answer));
        spinner.tick();
        let left = patience.saturating_sub(shell.clock.monotonic().saturating_sub(began));
        if left.is_zero() {
            spinner.finish_and_clear();
            return Err(timed_out(follow, &answer, patience));
        }
        let mut request = json!({ follow.by: id });
        if super::flags::waits(row) {
            let hold = LOOK_MS.min(u64::try_from(left.as_millis()).unwrap_or(LOOK_MS));
            request["wait"] = json!({ "timeoutMs": hold });
        } else {
            shell.clock.sleep(PAUSE.min(left)).await;
        }
        answer = look(row, client, request).await?;
    }
}

async fn look(row: &'static MethodRow, client: &Client, request: Value) -> Result<Value, Failure> {
    match client.call_value(row, request.clone()).await {
        Ok(answer) => Ok(answer),
        Err(error) => Err(Failure::Call { error, method: row, request }),
    }
}

fn timed_out(follow: &Follow, answer: &Value, patience: Duration) -> Failure {
    let (group, verb) = api::find(follow.get).expect("the table has it").cli();
    let again =
        if super::flags::waits(api::find(follow.get).expect("the table has it")) { " --wait" } else { "" };
    Failure::TimedOut {
        message: format!("{} after {}", standing(answer), super::text::age(patience.as_secs())),
        help: format!("better-compute {group} {verb} {}{again}", at(answer, "id")),
    }
}

/// `scheduling: 6 nodes have too few free GPUs`.
pub fn standing(answer: &Value) -> String {
    let state = at(answer, "state");
    let why = ["failure", "waitingReason", "message", "reason", "has"]
        .iter()
        .map(|name| at(answer, name))
        .find(|why| !why.is_empty());
    match why {
        Some(why) => format!("{state}: {why}"),
        None => state,
    }
}

fn spinner(shell: &Shell) -> ProgressBar {
    let target =
        if shell.errors_is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target).with_style(
        ProgressStyle::with_template("  {spinner} {msg}  {elapsed}").expect("the template is well formed"),
    );
    if shell.errors_is_terminal {
        bar.enable_steady_tick(Duration::from_millis(120));
    }
    bar
}
