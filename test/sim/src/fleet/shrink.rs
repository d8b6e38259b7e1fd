//! A shorter list of faults that still breaks something: halves first, then one by one, within a bound in time.

use std::time::{Duration, Instant};

use super::chaos::{Planned, deal};
use super::{Broken, Config, run};

/// The shortest that was found, and what it breaks.
pub async fn shrink(
    broken: &Broken,
    within: Duration,
    progress: &mut (dyn FnMut(String) + Send),
) -> (Vec<Planned>, Broken) {
    let started = Instant::now();
    let mut config = broken.config.clone();
    let all = config.script.clone().unwrap_or_else(|| deal(&config));
    let elapsed = broken.elapsed.saturating_sub(broken.begun);
    let mut kept: Vec<Planned> = all.into_iter().filter(|one| one.at <= elapsed).collect();
    let mut best = broken.clone();
    // What breaks, breaks by then.
    config.time = config.time.min(elapsed + Duration::from_secs(60));
    let mut size = kept.len().div_ceil(2);
    while size > 0 && !kept.is_empty() {
        let mut from = 0;
        while from < kept.len() {
            if started.elapsed() > within {
                return (kept, best);
            }
            let mut fewer = kept.clone();
            fewer.drain(from..(from + size).min(kept.len()));
            match breaks(&config, &fewer).await {
                Some(broken) => {
                    progress(format!("  {} faults break it too", fewer.len()));
                    (kept, best) = (fewer, broken);
                }
                None => from += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    (kept, best)
}

async fn breaks(config: &Config, script: &[Planned]) -> Option<Broken> {
    let config = Config { script: Some(script.to_vec()), ..config.clone() };
    let ended = run(&config, &mut |_| {}).await;
    ended.err()?.downcast_ref::<Broken>().cloned()
}

/// A scenario as text: how to run it, then a fault a line.
pub fn render(config: &Config, script: &[Planned], says: &str) -> String {
    let mut text = String::new();
    for line in says.lines() {
        text.push_str(&format!("# {line}\n"));
    }
    text.push_str(&format!("# {}\n", config.replay()));
    for one in script {
        text.push_str(&format!("{one}\n"));
    }
    text
}

/// The faults of a scenario's text.
pub fn parse(text: &str) -> Result<Vec<Planned>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::parse).collect()
}
