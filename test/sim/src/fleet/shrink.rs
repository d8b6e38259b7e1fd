//! A shorter list of faults that still breaks something: halves first, then one by one, within a bound in time.

use std::time::{Duration, Instant};

use super::chaos::{Planned, deal};
use super::scenario::Text;
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

/// A scenario of its own, which says what it breaks.
pub fn render(config: &Config, script: Vec<Planned>, broken: &[String]) -> String {
    let says: String = broken.iter().map(|line| format!("# {line}\n")).collect();
    let config = Config { script: Some(script), ..config.clone() };
    format!("{says}{}", Text(&config))
}
