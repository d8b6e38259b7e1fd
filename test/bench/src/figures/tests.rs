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
fn a_long_run_is_looked_at_ten_seconds_at_a_time() {
    let at = |second: u64| Sample { at: Duration::from_secs(second), took: Duration::ZERO };
    // One a second for ten minutes, and none for ten seconds of them.
    let samples = (0..600).filter(|second| !(50..60).contains(second)).map(at).collect();
    assert_eq!(Run::new("a run", Duration::from_secs(600), samples).slowest(), 0.0);
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

#[test]
fn a_figure_is_judged_by_its_value_or_by_its_ratio() {
    let rate = Figure::of("decisions", 300_000.0, "/s").at_least(200_000.0, 500_000.0);
    assert_eq!(rate.verdict(), Verdict::Gate);
    assert_eq!(Figure { value: 500_000.0, ..rate.clone() }.verdict(), Verdict::Goal);
    assert_eq!(Figure { value: 199_999.0, ..rate }.verdict(), Verdict::Missed);

    let memory = Figure::of("memory", 24.0, "KiB").at_most(40.0, 24.0);
    assert_eq!(memory.verdict(), Verdict::Goal);
    assert_eq!(Figure { value: 40.1, ..memory }.verdict(), Verdict::Missed);

    let appends = Figure::of("appends", 600.0, "/s").ratio_at_least(0.6, 0.95);
    assert_eq!(appends.verdict(), Verdict::Missed, "a ratio needs a bound");
    assert_eq!(appends.clone().beside("raw", 1000.0).verdict(), Verdict::Gate);
    assert_eq!(appends.beside("raw", 0.0).verdict(), Verdict::Missed);
    assert_eq!(Figure::of("context", 1.0, "").verdict(), Verdict::Context);
}

#[test]
fn a_figure_reads_back_as_it_was_written() {
    let runs = [run(&[(10, 1), (990, 3)])];
    let figure =
        Figure::rate("appends", "/s", &runs).beside("raw", 4.0).ratio_at_least(0.6, 0.95).note("2 fsyncs");
    let line = serde_json::to_string(&figure).expect("figures are plain");
    assert_eq!(Figure::read_all(&line).expect("what was written"), std::slice::from_ref(&figure));
    assert!(Figure::read_all("{}").is_err());
    assert_eq!(
        figure.to_string(),
        "figure  appends: 2/s | bound raw: 4/s | ratio 0.5 | p50 1.0 ms | p99 3.0 ms | slowest 0/s \
         | gate ≥ 0.6 of the bound | goal ≥ 0.95 of the bound | verdict MISSED | note 2 fsyncs"
    );
}

#[test]
fn numbers_are_shown_with_few_digits() {
    let shown = |value: f64| Figure::of("f", value, "").cells()[1].clone();
    let table = [
        (1_234_567.8, "1,234,568"),
        (999.6, "1,000"),
        (-1234.0, "-1,234"),
        (12.34, "12.3"),
        (0.333, "0.33"),
        (0.02, "0.02"),
        (0.0, "0"),
        (100.0, "100"),
        (20.0, "20"),
    ];
    for (value, text) in table {
        assert_eq!(shown(value), text);
    }
}
