//! Being asked to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Returns the name of the first SIGINT or SIGTERM.
pub async fn stop_signal() -> std::io::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Both arms are cancel-safe: a missed signal stays pending in its own stream.
    let name = tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    };
    Ok(name)
}
