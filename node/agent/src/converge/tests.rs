use super::*;
use crate::testing::nth;
use std::sync::{Arc, Mutex};
use wire::proto::agent::{DaemonSection, TelemetrySection};

type Log = Arc<Mutex<Vec<Section>>>;

/// Answers with what it is told and writes down that it was asked.
struct Told {
    section: Section,
    answer: Option<SectionReport>,
    log: Log,
}

impl Converger for Told {
    fn section(&self) -> Section {
        self.section
    }

    fn converge<'a>(&'a mut self, _: &'a NodeSpec, _: &'a ConvergeContext) -> BoxFuture<'a, SectionReport> {
        self.log.lock().unwrap().push(self.section);
        let answer = self.answer.clone();
        Box::pin(async move { answer.expect("told to panic") })
    }
}

fn told(log: &Log, section: Section, answer: Option<SectionReport>) -> Box<dyn Converger> {
    Box::new(Told { section, answer, log: log.clone() })
}

fn context() -> ConvergeContext {
    ConvergeContext {
        node_id: nth(1),
        generation: 3,
        boot_id: "boot".into(),
        first_pass: false,
        cancel: CancellationToken::new(),
        secrets: Default::default(),
    }
}

fn held(spec: NodeSpec, unknown: Vec<u32>) -> HeldSpec {
    HeldSpec { generation: 3, hash: String::new(), spec, unknown }
}

fn run(convergers: &mut [Box<dyn Converger>], held: &HeldSpec) -> PassReport {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(pass(convergers, held, &context()))
}

fn states(report: &PassReport) -> Vec<(u32, SectionState)> {
    report.sections.iter().map(|(number, section)| (*number, section.state)).collect()
}

#[test]
fn sections_are_converged_in_order_whoever_registers_first() {
    let log = Log::default();
    let mut convergers: Vec<_> = Section::ALL
        .iter()
        .rev()
        .map(|section| told(&log, *section, Some(SectionReport::converged())))
        .collect();
    let report = run(&mut convergers, &held(NodeSpec::default(), vec![]));
    assert_eq!(*log.lock().unwrap(), Section::ALL);
    assert!(report.settled());
}

#[test]
fn a_section_nobody_converges_is_fine_when_empty_and_unsupported_when_not() {
    let spec = NodeSpec {
        telemetry: Some(TelemetrySection::default()),
        daemon: Some(DaemonSection { version: "2".into() }),
        ..NodeSpec::default()
    };
    let report = run(&mut [], &held(spec, vec![12]));
    for (number, state) in states(&report) {
        let expected =
            if number == 7 || number == 12 { SectionState::Unsupported } else { SectionState::Converged };
        assert_eq!(state, expected, "section {number}");
    }
    assert!(report.settled(), "unsupported is terminal: the rest of the spec converges");
    let condition = &report.sections[&12].conditions[0];
    assert_eq!((condition.kind.as_str(), condition.reason.as_str()), ("SectionUnsupported", "12"));
}

#[test]
fn a_failing_or_panicking_section_never_holds_back_the_next() {
    let log = Log::default();
    let failed = SectionReport::of(SectionState::Failed).with_reason("overlap", "two holds");
    let mut convergers = vec![
        told(&log, Section::Host, None),
        told(&log, Section::Devices, Some(failed)),
        told(&log, Section::Access, Some(SectionReport::converged())),
    ];
    let report = run(&mut convergers, &held(NodeSpec::default(), vec![]));
    assert_eq!(*log.lock().unwrap(), [Section::Host, Section::Devices, Section::Access]);
    assert_eq!(report.sections[&1].state, SectionState::Progressing);
    assert_eq!(report.sections[&2].state, SectionState::Failed);
    assert_eq!(report.sections[&4].state, SectionState::Converged);
    assert!(!report.settled(), "one section is tried again");
}
