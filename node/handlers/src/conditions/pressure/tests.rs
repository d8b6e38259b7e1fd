use wire::inventory::{Pressure as Line, PressureLine};

use super::*;

fn report(memory_avg60: u32, steal: u32) -> PressureReport {
    let full = PressureLine { avg60_centi_percent: memory_avg60, ..PressureLine::default() };
    PressureReport {
        memory: Some(Line { some: None, full: Some(full) }),
        steal_centi_percent: Some(steal),
        ..PressureReport::default()
    }
}

fn kinds(judge: &Judge) -> Vec<String> {
    judge.facts().into_iter().map(|fact| fact.kind).collect()
}

#[test]
fn pressure_is_raised_high_and_cleared_low() {
    let mut judge = Judge::default();
    let passes = [(999, false), (1000, true), (999, true), (200, true), (199, false), (999, false)];
    for (level, raised) in passes {
        judge.take(&report(level, 0));
        assert_eq!(kinds(&judge) == ["MemoryPressure"], raised, "at {level}");
    }
}

#[test]
fn stolen_time_is_its_own_fact_and_a_missing_reading_changes_nothing() {
    let mut judge = Judge::default();
    judge.take(&report(0, 2000));
    judge.take(&PressureReport::default());
    assert_eq!(kinds(&judge), ["CpuSteal"]);
}

#[test]
fn a_report_carries_the_short_averages() {
    let line = |avg10| Some(PressureLine { avg10_centi_percent: avg10, ..PressureLine::default() });
    let rendered = render(&PressureReport {
        cpu: Some(Line { some: line(1), full: None }),
        memory: Some(Line { some: line(2), full: line(3) }),
        io: Some(Line { some: line(4), full: line(5) }),
        steal_centi_percent: Some(6),
    });
    let expected = Pressure {
        cpu_some_avg10: 1,
        memory_some_avg10: 2,
        memory_full_avg10: 3,
        io_some_avg10: 4,
        io_full_avg10: 5,
        steal: 6,
    };
    assert_eq!(rendered, expected);
}
