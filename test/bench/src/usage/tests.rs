use std::time::Instant;

use super::*;

#[test]
fn our_own_process_takes_memory_and_cpu() {
    let from = Instant::now();
    let mut sum = 0_u64;
    while from.elapsed() < Duration::from_millis(100) {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let usage = of(std::process::id()).unwrap();
    assert!(usage.resident_bytes > 100_000 && usage.threads >= 1, "{usage:?}");
    assert!(usage.cpu >= TICK, "{usage:?}");
    assert!(cpu_of_tree(std::process::id()).unwrap() >= TICK);
}

#[test]
fn a_process_may_have_any_name() {
    let stat = Stat::parse("7 (a) b) S 3 7 7 0 -1 4194304 1 0 0 0 50 25 4 2 20 0 1 0 9 1 1").unwrap();
    assert_eq!((stat.parent, stat.own, stat.ended), (3, 75, 6));
    assert!(Stat::parse("7 (short) S 3").is_err());
}

#[test]
fn a_process_that_is_gone_is_an_error() {
    assert!(of(u32::MAX).is_err());
}
