use super::*;

#[test]
fn the_backoff_doubles_within_its_bounds_and_jitters() {
    let rng = kit::SeededRng::new(1);
    for attempts in [-1, 0, 1, 5, 8, 30, i32::MAX] {
        let bound = Duration::from_secs(1 << u32::try_from(attempts).unwrap_or(0).min(16)).min(BACKOFF_MAX);
        let waits: Vec<Duration> = (0..50).map(|_| backoff(attempts, &rng)).collect();
        assert!(waits.iter().all(|wait| *wait >= bound / 2 && *wait <= bound), "{attempts}: {waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{attempts}");
    }
}
