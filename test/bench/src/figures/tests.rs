use super::*;

fn run(samples: &[(u64, u64)]) -> Run {
    let sample = |&(at, took): &(u64, u64)| Sample {
        at: Duration::from_millis(at),
        took: Duration::from_millis(took),
    };
    Run::new("a run", Duration::from_secs(1), samples.iter().map(sample).collect())
}

#[test]
fn the_slowest_tenth_is_the_one_with_the_fewest() {
    // Two in every tenth, and one in the fourth.
    let at =
        (0..10).flat_map(|tenth| if tenth == 3 { vec![350] } else { vec![tenth * 100, tenth * 100 + 50] });
    let run = run(&at.map(|at| (at, 1)).collect::<Vec<_>>());
    assert_eq!(run.rate(), 19.0);
    assert_eq!(run.slowest(), 10.0);
    assert_eq!(run.of_units(64).slowest(), 640.0);
}

#[test]
fn a_standstill_is_a_tenth_with_nothing() {
    assert_eq!(run(&[(10, 1), (990, 1)]).slowest(), 0.0);
}

#[test]
fn what_ends_with_the_run_counts_in_its_last_tenth() {
    let all: Vec<_> = (1..=10).map(|tenth| (tenth * 100, 1)).collect();
    // The first tenth has none: what ended at 100 ms ended in the second.
    assert_eq!(run(&all).slowest(), 0.0);
    assert_eq!(run(&all[8..]).samples.len(), 2);
}

#[test]
fn percentiles_are_values_that_were_measured() {
    let run = run(&(1..=100).map(|took| (0, took)).collect::<Vec<_>>());
    assert_eq!(run.percentile(50), Duration::from_millis(50));
    assert_eq!(run.percentile(99), Duration::from_millis(99));
    assert_eq!(run.percentile(100), Duration::from_millis(100));
    assert_eq!(super::Run::new("none", Duration::from_secs(1), vec![]).percentile(99), Duration::ZERO);
}

#[test]
fn the_median_is_of_the_rates() {
    let with = |count: usize| run(&vec![(0, 1); count]);
    assert_eq!(median(&[with(5), with(1), with(9)]), 5.0);
    assert_eq!(median(&[]), 0.0);
}

#[test]
fn times_are_shown_in_a_unit_that_fits() {
    assert_eq!(short(Duration::from_nanos(812)), "812 ns");
    assert_eq!(short(Duration::from_micros(150)), "150.0 us");
    assert_eq!(short(Duration::from_micros(4200)), "4.2 ms");
    assert_eq!(short(Duration::from_millis(2500)), "2.50 s");
}
