use kernel::ports::delivery::InFlight;
use model::{CommandKind, IncarnationId};
use proptest::prelude::*;
use prost::Message;
use uuid::Uuid;
use wire::proto::agent::node_frame::Frame as In;
use wire::proto::agent::{
    CommandState, CommandUpdate, EventBatch, FreshBinding, FreshStatement, Heartbeat, Hello, InventoryReport,
    InventorySection, NodeEvent, SpecRequest, StatusReport,
};

use super::*;

mod pace;
mod secrets;
mod sequences;

const NODE: NodeId = NodeId::from_uuid(Uuid::from_u128(7));
const JOURNAL: JournalId = JournalId::from_uuid(Uuid::from_u128(8));
const CERT_ENDS: Timestamp = Timestamp::from_millis(1_772_409_600_000);
const TERMS: Terms = Terms {
    gateway_id: GatewayId::from_uuid(Uuid::from_u128(1)),
    versions: Versions::SPOKEN,
    heartbeat: Duration::from_secs(10),
    hello_within: Duration::from_secs(10),
};

fn at(seconds: u64) -> Now {
    let server = Timestamp::from_millis(1_772_323_200_000).saturating_add(Duration::from_secs(seconds));
    Now { monotonic: Duration::from_secs(seconds), server }
}

struct Bench {
    session: Session,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let peer = Peer { node_id: NODE, cert_serial: "ab".to_owned(), cert_ends: CERT_ENDS };
        Self { session: Session::new(peer, at(0)), now: at(0) }
    }

    /// A session that is open, with nothing left to do.
    fn open() -> Self {
        let mut bench = Self::new();
        bench.greet(hello());
        bench.give(Input::Answer(Answer::Open(Ok(Box::new(opened())))));
        assert!(matches!(bench.session.phase, Phase::Open));
        bench
    }

    fn give(&mut self, input: Input) -> Vec<String> {
        let mut effects = Vec::new();
        self.session.handle(&TERMS, input, self.now, &mut effects);
        effects.iter().map(say).collect()
    }

    fn frame(&mut self, frame: In) -> Vec<String> {
        self.give(Input::Frame(NodeFrame { frame: Some(frame) }))
    }

    fn greet(&mut self, hello: Hello) -> Vec<String> {
        self.frame(In::Hello(hello))
    }

    fn opens(&mut self, opened: SessionOpened) -> Vec<String> {
        self.give(Input::Answer(Answer::Open(Ok(Box::new(opened)))))
    }

    fn answer(&mut self, answer: Answer) -> Vec<String> {
        self.give(Input::Answer(answer))
    }
}

/// An effect in a word or two.
fn say(effect: &Effect) -> String {
    match effect {
        Effect::Send(frame) => match frame.frame.as_ref().expect("frames that are sent say something") {
            Out::Welcome(_) => "welcome".to_owned(),
            Out::HeartbeatAck(ack) => format!("beat {}", ack.seq),
            Out::DesiredState(desired) => {
                let generation = desired.body.first().copied().unwrap_or(0);
                if desired.fresh.is_some() {
                    format!("bound spec {generation}")
                } else {
                    format!("spec {generation}")
                }
            }
            Out::Command(command) => format!("command {}", command.delivery_attempt),
            Out::Cancel(cancel) => format!("cancel {}", cancel.reason),
            Out::Ack(ack) => format!("ack {} {}", ack.event_seq, ack.command_ids.len()),
            Out::Drain(_) => "drain".to_owned(),
            Out::Revocation(_) => "revocation".to_owned(),
            Out::InventoryRequest(request) => format!("inventory {}", request.sections.join(",")),
            Out::Refusal(refusal) => format!("refusal {}", refusal.reason),
            Out::OpenTunnel(open) => format!("open tunnel {} bytes", open.ticket.len()),
            Out::SecretAnswer(answer) if answer.body.is_empty() => "no answer".to_owned(),
            Out::SecretAnswer(answer) => format!("answer {} bytes", answer.body.len()),
        },
        Effect::Store(request) => match request {
            Request::Open(_) => "open".to_owned(),
            Request::Updates(updates) => format!("store {} updates", updates.len()),
            Request::Events { events, .. } => format!("store {} events", events.len()),
            Request::Inventory(sections) => format!("store {} sections", sections.len()),
            Request::Secret(_) => "ask secret".to_owned(),
            Request::Spec { bind } => if bind.is_some() { "ask bound spec" } else { "ask spec" }.to_owned(),
        },
        Effect::End(end) => match end {
            End::Said(reason) => format!("end {reason}"),
            other => format!("end {other:?}").to_lowercase(),
        },
    }
}

fn hello() -> Hello {
    Hello {
        node_id: NODE.to_string(),
        protocol_min: 1,
        protocol_max: 1,
        agent_version: "1.0.0".to_owned(),
        journal_id: JOURNAL.to_string(),
        incarnation_id: IncarnationId::from_uuid(Uuid::from_u128(9)).to_string(),
        boot_id: "boot-1".to_owned(),
        nonce: vec![3; 32].into(),
        lane_credits: [("control".to_owned(), 4)].into(),
        ..Hello::default()
    }
}

fn opened() -> SessionOpened {
    SessionOpened {
        session_epoch: 11,
        deployment_epoch: 1,
        server_time: at(0).server,
        generation: 0,
        acked_event_seq: 0,
        inventory_sections: Vec::new(),
        trust_bundle: None,
        replay: Vec::new(),
    }
}

fn command(n: u128) -> StoredCommand {
    StoredCommand {
        command_id: CommandId::from_uuid(Uuid::from_u128(n)),
        node_id: NODE,
        kind: CommandKind::InventoryRefresh.name().to_owned(),
        lane: "control".to_owned(),
        body: vec![1],
        signature: vec![2],
        attempt: u32::try_from(n).unwrap(),
        cancel_requested: None,
    }
}

fn update(n: u128, state: CommandState) -> CommandUpdate {
    CommandUpdate {
        command_id: CommandId::from_uuid(Uuid::from_u128(n)).to_string(),
        state: state.into(),
        ..CommandUpdate::default()
    }
}

fn spec(generation: u8) -> StoredSpec {
    StoredSpec { node_id: NODE, generation: generation.into(), body: vec![generation], signature: vec![] }
}

fn binding(generation: u8) -> Vec<u8> {
    let statement = FreshStatement { generation: generation.into(), ..FreshStatement::default() };
    FreshBinding { statement: statement.encode_to_vec().into(), signature: None }.encode_to_vec()
}

#[test]
fn results_and_spec_go_before_what_was_in_flight() {
    let mut bench = Bench::new();
    let mut greeting = hello();
    greeting.unacked_results = vec![update(1, CommandState::Succeeded)];
    assert_eq!(bench.greet(greeting), ["open"]);
    assert!(!bench.session.reads());
    let mut cancelled = command(3);
    cancelled.cancel_requested = Some("enough".to_owned());
    let answer = SessionOpened { generation: 5, replay: vec![command(1), command(2), cancelled], ..opened() };
    assert_eq!(bench.opens(answer), ["welcome", "store 1 updates", "ask spec"]);
    assert!(bench.session.lanes().is_none());
    let acknowledged = vec![command(1).command_id];
    assert_eq!(bench.answer(Answer::Updates { count: 1, acknowledged }), ["ack 0 1"]);
    assert_eq!(
        bench.answer(Answer::Spec { spec: Some(spec(5)), binding: None }),
        ["spec 5", "command 2", "command 3", "cancel enough"]
    );
    assert_eq!(bench.session.lanes().unwrap().credits["control"], 2);
}

#[test]
fn a_node_that_holds_the_newest_spec_is_sent_none() {
    let mut bench = Bench::new();
    let mut greeting = hello();
    greeting.applied_generation = 5;
    bench.greet(greeting);
    assert_eq!(bench.opens(SessionOpened { generation: 5, ..opened() }), ["welcome"]);
    assert_eq!(bench.give(Input::Spec(spec(5))), [""; 0]);
    assert_eq!(bench.give(Input::Spec(spec(6))), ["spec 6"]);
    assert_eq!(bench.give(Input::Spec(spec(6))), [""; 0]);
}

#[test]
fn no_spec_goes_out_below_one_that_did() {
    let mut bench = Bench::open();
    bench.give(Input::Spec(spec(6)));
    let asked = In::SpecRequest(SpecRequest { have_generation: 1, reason: String::new() });
    assert_eq!(bench.frame(asked.clone()), ["ask spec"]);
    // Asked once at a time, and what is pushed meanwhile waits for the answer.
    assert_eq!(bench.frame(asked), [""; 0]);
    assert_eq!(bench.give(Input::Spec(spec(7))), [""; 0]);
    assert_eq!(bench.answer(Answer::Spec { spec: Some(spec(5)), binding: None }), [""; 0]);
    assert_eq!(bench.session.spec_sent().unwrap().1, 6);
    assert_eq!(bench.give(Input::Spec(spec(7))), ["spec 7"]);
}

#[test]
fn a_fresh_node_takes_only_a_bound_spec() {
    let mut bench = Bench::new();
    let mut greeting = hello();
    greeting.fresh = true;
    bench.greet(greeting);
    let replay = vec![command(1)];
    assert_eq!(
        bench.opens(SessionOpened { generation: 2, replay, ..opened() }),
        ["welcome", "ask bound spec"]
    );
    // No worker: the commands do not wait for one for ever.
    assert_eq!(bench.answer(Answer::Spec { spec: Some(spec(2)), binding: None }), ["command 1"]);
    assert_eq!(bench.session.spec_sent().unwrap().1, 0);
    assert_eq!(bench.give(Input::Spec(spec(2))), ["ask bound spec"]);
    for _ in 0..3 {
        let late = Answer::Spec { spec: Some(spec(2)), binding: Some(binding(1)) };
        assert_eq!(bench.answer(late), ["ask bound spec"]);
    }
    assert_eq!(bench.answer(Answer::Spec { spec: Some(spec(2)), binding: Some(binding(1)) }), [""; 0]);
    assert_eq!(bench.give(Input::Spec(spec(2))), ["ask bound spec"]);
    assert_eq!(
        bench.answer(Answer::Spec { spec: Some(spec(2)), binding: Some(binding(2)) }),
        ["bound spec 2"]
    );
    // It says that it took one: from here on it has a mark.
    let status = StatusReport { node_id: NODE.to_string(), applied_generation: 2, ..StatusReport::default() };
    bench.frame(In::Status(status));
    assert_eq!(bench.give(Input::Spec(spec(3))), ["spec 3"]);
}

#[test]
fn nothing_comes_before_the_hello_and_it_comes_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.frame(In::Heartbeat(Heartbeat::default())), ["refusal bad_hello", "end bad_hello"]);
    let mut bench = Bench::new();
    assert_eq!(bench.give(Input::Frame(NodeFrame { frame: None })), ["refusal bad_hello", "end bad_hello"]);
    let mut bench = Bench::open();
    assert!(bench.greet(hello())[0].starts_with("end violation"));
    assert_eq!(bench.greet(hello()), [""; 0]);
    let mut bench = Bench::new();
    bench.greet(hello());
    assert!(bench.frame(In::Heartbeat(Heartbeat::default()))[0].starts_with("end violation"));
}

#[test]
fn a_hello_is_refused_for_what_is_wrong_in_it() {
    let change = |change: fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        Bench::new().greet(hello)
    };
    assert_eq!(change(|hello| hello.node_id = "node_x".to_owned())[0], "refusal wrong_node");
    assert_eq!(change(|hello| hello.protocol_max = 0)[0], "refusal upgrade_required");
    assert_eq!(
        change(|hello| (hello.protocol_min, hello.protocol_max) = (2, 3))[0],
        "refusal upgrade_required"
    );
    assert_eq!(change(|hello| hello.protocol_max = 9), ["open"]);
    let bad: [fn(&mut Hello); 9] = [
        |hello| hello.journal_id = "jrn_x".to_owned(),
        |hello| hello.incarnation_id = String::new(),
        |hello| hello.boot_id = String::new(),
        |hello| hello.capabilities = vec!["x".to_owned(); 65],
        |hello| hello.in_flight = vec![Default::default(); 1025],
        |hello| hello.unacked_results = vec![Default::default(); 1025],
        |hello| hello.unacked_results = vec![update(1, CommandState::Unspecified)],
        |hello| hello.lane_credits = (0..33).map(|n| (n.to_string(), 1)).collect(),
        |hello| (hello.fresh, hello.nonce) = (true, vec![1; 31].into()),
    ];
    for wrong in bad {
        assert_eq!(change(wrong)[0], "refusal bad_hello");
    }
}

#[test]
fn what_a_hello_says_is_cleaned_and_known_names_only() {
    let mut greeting = hello();
    greeting.boot_id = "boot\u{0}\n1".to_owned();
    greeting.inventory_hashes =
        [("cpu", "a".repeat(64)), ("quantum", "b".repeat(64)), ("gpus", "C".repeat(64))]
            .map(|(name, hash)| (name.to_owned(), hash))
            .into();
    greeting.in_flight = vec![wire::proto::agent::InFlight {
        command_id: command(1).command_id.to_string(),
        state: CommandState::Running.into(),
    }];
    let (facts, _) = hello::parse(greeting, NODE, "ab", Versions::SPOKEN).unwrap();
    assert_eq!(facts.boot_id, "boot  1");
    assert_eq!(facts.inventory_hashes.keys().collect::<Vec<_>>(), ["cpu"]);
    assert_eq!(facts.in_flight, [(command(1).command_id, InFlight::Running)]);
}

#[test]
fn heartbeats_are_answered_while_the_store_is_slow() {
    let mut bench = Bench::open();
    let batch = |seq| {
        let event = NodeEvent { seq, class: 2, ..NodeEvent::default() };
        In::Events(EventBatch { journal_id: JOURNAL.to_string(), events: vec![event] })
    };
    for seq in 1..=3 {
        assert_eq!(bench.frame(batch(seq)), ["store 1 events"]);
        assert_eq!(
            bench.frame(In::Heartbeat(Heartbeat { seq, ..Heartbeat::default() })),
            [format!("beat {seq}")]
        );
    }
    assert!(bench.session.reads());
    bench.frame(batch(4));
    // Enough is under way: the rest waits in the network, and that is not the node's silence.
    assert!(!bench.session.reads());
    bench.now = at(600);
    assert_eq!(bench.give(Input::Tick), [""; 0]);
    assert_eq!(bench.answer(Answer::Events(Some(1))), ["ack 1 0"]);
    assert!(bench.session.reads());
    assert_eq!(bench.give(Input::Tick), [""; 0]);
}

#[test]
fn five_silent_heartbeats_end_a_session() {
    let mut bench = Bench::open();
    bench.now = at(50);
    assert_eq!(bench.give(Input::Tick), [""; 0]);
    bench.now = at(51);
    assert_eq!(bench.give(Input::Tick), ["end silent"]);
    let mut bench = Bench::new();
    bench.now = at(11);
    assert_eq!(bench.give(Input::Tick), ["end silent"]);
}

#[test]
fn a_session_ends_with_its_certificate() {
    let mut bench = Bench::open();
    bench.now = at(86_400);
    bench.frame(In::Heartbeat(Heartbeat::default()));
    assert_eq!(bench.give(Input::Tick), [""; 0]);
    bench.now = at(86_401);
    bench.frame(In::Heartbeat(Heartbeat::default()));
    assert_eq!(bench.give(Input::Tick), ["end certificateover"]);
}

#[test]
fn a_revoked_node_is_told_and_then_nothing_more() {
    let mut bench = Bench::open();
    assert_eq!(bench.give(Input::Ended(SessionEnd::Revoked)), ["revocation", "end revoked"]);
    assert_eq!(bench.give(Input::Commands(vec![command(1)])), [""; 0]);
    assert_eq!(bench.frame(In::Heartbeat(Heartbeat::default())), [""; 0]);
}

#[test]
fn the_latest_status_is_kept_with_the_last_word_on_trust() {
    let mut bench = Bench::open();
    let status = |observed_generation, trust_version| {
        let node_id = NODE.to_string();
        In::Status(StatusReport { node_id, observed_generation, trust_version, ..StatusReport::default() })
    };
    bench.frame(status(1, 4));
    bench.frame(status(2, 0));
    let kept = bench.session.take_status().unwrap();
    assert_eq!((kept.observed_generation, kept.trust_version), (2, 4));
    assert!(bench.session.take_status().is_none());
}

#[test]
fn gauges_and_ages_are_no_news() {
    let report = |steal, age_ms, reason: &str| {
        let condition = wire::proto::common::Condition {
            kind: "Xid".to_owned(),
            severity: "warning".to_owned(),
            reason: reason.to_owned(),
            message: "line\nbreak\u{1b}[31m".to_owned(),
            age_ms,
            ..Default::default()
        };
        let pressure = wire::proto::agent::Pressure { steal, ..Default::default() };
        StatusReport {
            node_id: NODE.to_string(),
            pressure: Some(pressure),
            conditions: vec![condition],
            ..StatusReport::default()
        }
    };
    let key = SessionKey { node_id: NODE, epoch: 1 };
    let one = report::status(report(1, 5, "a"), key, at(0).server).unwrap();
    let two = report::status(report(2, u64::MAX, "a"), key, at(0).server).unwrap();
    let three = report::status(report(1, 5, "b"), key, at(0).server).unwrap();
    assert_eq!(one.status_key, two.status_key);
    assert_ne!(one.status_key, three.status_key);
    let applied = StatusReport { applied_generation: 9, observed_generation: 9, ..report(1, 5, "a") };
    let applied = report::status(applied, key, at(0).server).unwrap();
    assert_eq!(applied.status_key, one.status_key, "that a spec was applied is nobody's to look at");
    assert_eq!(one.conditions[0].message, "line break [31m");
    // An impossible age is cut to one that a database can hold.
    assert!(two.conditions[0].since > Timestamp::from_millis(1_400_000_000_000));
}

#[test]
fn a_draining_session_gets_no_more_commands_and_still_reports() {
    let mut bench = Bench::open();
    let drain = Input::Drain { reason: "stop", reconnect_after: Duration::from_secs(1) };
    assert_eq!(bench.give(drain), ["drain"]);
    assert!(bench.session.lanes().is_none());
    assert_eq!(bench.frame(In::CommandUpdate(update(1, CommandState::Succeeded))), ["store 1 updates"]);
    let mut bench = Bench::new();
    let drain = Input::Drain { reason: "stop", reconnect_after: Duration::ZERO };
    assert_eq!(bench.give(drain), ["end stopping"]);
}

#[test]
fn events_of_another_journal_are_passed_over() {
    let mut bench = Bench::open();
    let other = JournalId::from_uuid(Uuid::from_u128(99)).to_string();
    let events = vec![NodeEvent { seq: 1, class: 2, ..NodeEvent::default() }];
    assert_eq!(bench.frame(In::Events(EventBatch { journal_id: other, events })), [""; 0]);
    assert_eq!(bench.answer(Answer::Events(None)), ["end takenover"]);
}
