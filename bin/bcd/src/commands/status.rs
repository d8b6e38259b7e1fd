//! `bcd status`.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::config::SOCKET_PATH;
use clap::Args;
use serde_json::Value;

#[derive(Args)]
pub struct StatusArgs {
    /// The running agent's socket.
    #[arg(long, value_name = "PATH", default_value = SOCKET_PATH)]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let status = agent::status::ask(&args.socket).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{}", render(&status));
    }
    Ok(ExitCode::SUCCESS)
}

/// One line a fact, the label in a fixed column.
fn render(status: &Value) -> String {
    let text = |pointer: &str| match status.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let mut page = String::new();
    let mut line = |label: &str, value: String| page.push_str(&format!("{label:<13}{value}\n"));
    line("node", format!("{} (site {}, role {})", text("/nodeId"), text("/siteId"), text("/role")));
    line("boot", text("/bootId"));
    let ended = match text("/session/lastEnd") {
        end if end.is_empty() || end == "-" => String::new(),
        end => format!(", last ended: {end}"),
    };
    line(
        "session",
        format!(
            "{} (epoch {}, clock offset {} ms{ended})",
            text("/session/state"),
            text("/session/epoch"),
            text("/session/clockOffsetMs")
        ),
    );
    line(
        "generation",
        format!("{} applied, {} observed", text("/appliedGeneration"), text("/observedGeneration")),
    );
    for section in array(status, "/sections") {
        let get = |field: &str| section.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let why = [get("reason"), get("message")].join(" ");
        line("  section", format!("{:<11}{:<12} {}", get("section"), get("state"), why.trim()));
    }
    for condition in array(status, "/conditions") {
        let get = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        line("  condition", format!("{} {} {}", get("kind"), get("device"), get("message")));
    }
    for command in array(status, "/running") {
        line("  running", command.to_string());
    }
    line("deferred", text("/deferredCommands"));
    line("journal", text("/journal"));
    line("certificate", format!("valid until {}", text("/certificateNotAfter")));
    line(
        "trust",
        format!(
            "bundle {}, signed intent {}",
            text("/trustVersion"),
            if text("/intentEnforced") == "true" { "enforced" } else { "NOT enforced" }
        ),
    );
    page
}

fn array<'a>(status: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    status.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}
