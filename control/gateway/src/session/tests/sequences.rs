//! Whatever comes in whatever order, the session keeps its rules.

use super::*;

/// What may happen to a session, in any order.
fn inputs() -> impl Strategy<Value = Vec<Step>> {
    let text = "[a-z\\x00\\n]{0,12}";
    let step = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Step::Bytes),
        2 => (any::<bool>(), any::<bool>(), 0u32..3, any::<u64>(), 0usize..40).prop_map(Step::from_hello),
        3 => (any::<u64>(), any::<u32>(), text).prop_map(|(seq, credits, lane)| Step::Frame(In::Heartbeat(Heartbeat {
            seq,
            lane_credits: [("control".to_owned(), credits), (lane.clone(), 1)].into(),
            inventory_hashes: [("cpu".to_owned(), "a".repeat(64)), (lane, String::new())].into(),
            last_event_seq: 0,
        }))),
        3 => (0u128..4, -1i32..9, text).prop_map(|(n, state, reason)| {
            let mut update = update(n, CommandState::Busy);
            (update.state, update.reason) = (state, reason);
            Step::Frame(In::CommandUpdate(update))
        }),
        2 => prop::collection::vec((any::<u64>(), -1i32..5, any::<u64>()), 0..4).prop_map(|events| {
            let events = events
                .into_iter()
                .map(|(seq, class, age_ms)| NodeEvent { seq, class, age_ms, ..NodeEvent::default() })
                .collect();
            Step::Frame(In::Events(EventBatch { journal_id: JOURNAL.to_string(), events }))
        }),
        2 => (any::<u64>(), any::<u64>()).prop_map(|(applied, observed)| Step::Frame(In::Status(StatusReport {
            node_id: NODE.to_string(),
            applied_generation: applied,
            observed_generation: observed,
            ..StatusReport::default()
        }))),
        1 => any::<u64>().prop_map(|have_generation| Step::Frame(In::SpecRequest(SpecRequest {
            have_generation,
            reason: String::new(),
        }))),
        2 => (0u8..4, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(n, odd)| {
            // One in four is odd.
            let body = if n == 0 { odd } else { super::secrets::asked(n).render() };
            Step::Frame(In::SecretRequest(SecretRequest { body: body.into(), signature: None }))
        }),
        1 => (0u8..4, any::<Option<Vec<u8>>>()).prop_map(|(n, answer)| Step::Secret(n, answer)),
        4 => (0u8..6, 0u8..4, any::<bool>()).prop_map(|(generation, bound, none)| Step::Spec(generation, bound, none)),
        3 => (0u8..6, 0u128..4).prop_map(|(generation, replay)| Step::Open(generation, replay)),
        2 => (0usize..4, 0u128..4).prop_map(|(count, id)| Step::Updates(count, id)),
        1 => any::<Option<u64>>().prop_map(Step::Events),
        2 => (0u8..6).prop_map(Step::Push),
        2 => (0u128..4).prop_map(Step::Command),
        1 => (0u128..4).prop_map(Step::Cancel),
        2 => (0u64..30).prop_map(Step::Wait),
        1 => Just(Step::Drain),
    ];
    prop::collection::vec(step, 0..40)
}

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant)] // A few dozen at a time.
enum Step {
    Bytes(Vec<u8>),
    Frame(In),
    Open(u8, u128),
    Updates(usize, u128),
    Events(Option<u64>),
    Spec(u8, u8, bool),
    Push(u8),
    Command(u128),
    Cancel(u128),
    Secret(u8, Option<Vec<u8>>),
    Wait(u64),
    Drain,
}

impl Step {
    fn from_hello((ours, fresh, protocol, generation, results): (bool, bool, u32, u64, usize)) -> Self {
        let mut hello = hello();
        if !ours {
            hello.node_id.push('x');
        }
        (hello.fresh, hello.protocol_max, hello.applied_generation) = (fresh, protocol, generation % 4);
        hello.unacked_results = vec![update(1, CommandState::Failed); results];
        Step::Frame(In::Hello(hello))
    }

    fn input(self, now: &mut Now) -> Input {
        match self {
            Step::Bytes(bytes) => Input::Frame(NodeFrame::decode(bytes.as_slice()).unwrap_or_default()),
            Step::Frame(frame) => Input::Frame(NodeFrame { frame: Some(frame) }),
            Step::Open(generation, replay) => {
                let replay = (0..replay).map(command).collect();
                Input::Answer(Answer::Open(Ok(Box::new(SessionOpened {
                    generation: generation.into(),
                    replay,
                    ..opened()
                }))))
            }
            Step::Updates(count, id) => {
                Input::Answer(Answer::Updates { count, acknowledged: vec![command(id).command_id] })
            }
            Step::Events(stored) => Input::Answer(Answer::Events(stored)),
            Step::Spec(generation, bound, none) => Input::Answer(Answer::Spec {
                spec: (!none).then(|| spec(generation)),
                binding: (bound > 0).then(|| binding(generation.wrapping_sub(bound - 1))),
            }),
            Step::Secret(n, answer) => Input::Answer(Answer::Secret { request_id: vec![n; 16], answer }),
            Step::Push(generation) => Input::Spec(spec(generation)),
            Step::Command(n) => Input::Commands(vec![command(n)]),
            Step::Cancel(n) => Input::Cancel(command(n).command_id, "enough".to_owned()),
            Step::Wait(seconds) => {
                *now = Now {
                    monotonic: now.monotonic + Duration::from_secs(seconds),
                    server: now.server.saturating_add(Duration::from_secs(seconds)),
                };
                Input::Tick
            }
            Step::Drain => Input::Drain { reason: "stop", reconnect_after: Duration::ZERO },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_comes_the_core_holds_its_rules(steps in inputs()) {
        let mut bench = Bench::new();
        let (mut ended, mut spoken, mut last_spec) = (false, false, 0);
        for step in steps {
            let input = step.input(&mut bench.now);
            for said in bench.give(input) {
                prop_assert!(!ended, "{said} after the end");
                ended |= said.starts_with("end ");
                let words = said.starts_with("welcome") || said.starts_with("refusal") || said.starts_with("revocation");
                let to_node = !said.starts_with("end ") && !said.starts_with("store ") && !said.starts_with("ask ")
                    && said != "open";
                prop_assert!(spoken || words || !to_node, "{said} before the Welcome");
                spoken |= words;
                if let Some(generation) = said.split_once("spec ").and_then(|(_, n)| n.parse::<u32>().ok()) {
                    prop_assert!(generation >= last_spec, "spec {generation} after {last_spec}");
                    last_spec = generation;
                }
            }
            let _ = (bench.session.lanes(), bench.session.in_flight(), bench.session.spec_sent());
            prop_assert_eq!(bench.session.is_over(), ended);
        }
    }

    #[test]
    fn any_bytes_that_decode_are_taken_or_end_the_session(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
        let mut bench = Bench::open();
        for bytes in frames {
            if let Ok(frame) = NodeFrame::decode(bytes.as_slice()) {
                bench.give(Input::Frame(frame));
            }
        }
    }

    #[test]
    fn no_text_leaves_with_a_control_character(text in any::<String>()) {
        let clean = report::text(&text);
        prop_assert!(clean.len() <= text.len().max(1024) && !clean.chars().any(char::is_control));
    }
}
