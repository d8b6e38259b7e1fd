//! What a session and a spec come to.

use pki::Purpose;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{Ack, CommandState, Drain, HeartbeatAck, NodeSpec, Refusal, RevocationNotice};

use super::rig::*;
use crate::engine::*;
use crate::journal::JournalStore;
use crate::testing::{Deployment, at, at_ms, command_id};
use model::SectionState;

#[test]
fn a_spec_is_journaled_converged_reported_and_enforced_offline() {
    let mut rig = at_generation_one();
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, spec("b")), None);
    rig.frame(Gateway::DesiredState(delivered));
    assert_eq!(rig.effects, [Effect::Converge]);
    rig.tick_to(2);
    let status = statuses(&mut rig).pop().unwrap();
    assert_eq!((status.applied_generation, status.observed_generation), (2, 1));
    rig.step(Input::Passed(pass(2, SectionState::Progressing, vec![])));
    rig.tick_to(4);
    let status = statuses(&mut rig).pop().unwrap();
    assert_eq!(
        (status.applied_generation, status.observed_generation),
        (2, 1),
        "a retryable section holds it back"
    );
    rig.step(Input::Passed(pass(2, SectionState::Failed, vec![])));
    rig.tick_to(6);
    let status = statuses(&mut rig).pop().unwrap();
    assert_eq!(status.observed_generation, 2, "a terminal one does not");
    rig.restart();
    rig.act();
    assert_eq!(rig.effects, [Effect::Converge], "before any session");
    assert_eq!(rig.engine.held().unwrap().spec, spec("b"));
    let hello = rig.greet();
    assert_eq!((hello.applied_generation, hello.fresh), (2, false));
    assert!(!hello.applied_spec_body.is_empty() && hello.applied_spec_signature.is_some());
}

#[test]
fn a_pass_over_an_older_spec_moves_nothing_but_its_reports_count() {
    let mut rig = at_generation_one();
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, spec("b")), None);
    rig.frame(Gateway::DesiredState(delivered));
    rig.take_sent();
    rig.step(Input::Passed(pass(1, SectionState::Converged, vec![bound("a")])));
    let sent = rig.take_sent();
    assert!(sent.iter().any(|frame| matches!(frame.frame, Some(Frame::Events(_)))));
    rig.tick_to(5);
    assert_eq!(statuses(&mut rig).pop().unwrap().observed_generation, 1);
}

#[test]
fn an_allocation_report_is_signed_numbered_and_sent_until_acknowledged() {
    let mut rig = at_generation_one();
    rig.step(Input::Passed(pass(1, SectionState::Converged, vec![bound("a")])));
    let events = |rig: &mut Rig| -> Vec<wire::proto::agent::NodeEvent> {
        rig.take_sent()
            .into_iter()
            .filter_map(|frame| match frame.frame {
                Some(Frame::Events(batch)) => Some(batch.events),
                _ => None,
            })
            .flatten()
            .collect()
    };
    let sent = events(&mut rig);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].seq, 1);
    let signature = pki::Signature::from_bytes(&sent[0].signature.as_ref().unwrap().value).unwrap();
    rig.identity.key.verifying_key().verify(Purpose::AttestedReport, &sent[0].report, &signature).unwrap();
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.take_sent();
    rig.open();
    let again = events(&mut rig);
    assert_eq!(again.iter().map(|event| event.seq).collect::<Vec<_>>(), [1]);
    assert!(again[0].age_ms >= 99_000, "{}", again[0].age_ms);
    rig.frame(Gateway::Ack(Ack {
        journal_id: rig.store.id().to_string(),
        event_seq: 1,
        command_ids: vec![],
    }));
    assert!(rig.store.load().unwrap().events.is_empty());
}

#[test]
fn an_ack_for_another_journal_acknowledges_nothing() {
    let mut rig = at_generation_one();
    rig.step(Input::Passed(pass(1, SectionState::Converged, vec![bound("a")])));
    rig.frame(Gateway::Ack(Ack { journal_id: "jrn_other".into(), event_seq: 1, command_ids: vec![] }));
    assert_eq!(rig.store.load().unwrap().events.len(), 1);
}

#[test]
fn status_is_at_most_one_a_second_and_at_least_one_in_thirty() {
    let mut rig = at_generation_one();
    rig.tick_to(10);
    statuses(&mut rig);
    for state in [SectionState::Progressing, SectionState::Failed, SectionState::Converged] {
        rig.step(Input::Passed(pass(1, state, vec![])));
    }
    assert_eq!(statuses(&mut rig).len(), 0);
    rig.tick_to(11);
    assert_eq!(statuses(&mut rig).len(), 1);
    for second in 12..41 {
        rig.tick_to(second);
        rig.frame(Gateway::HeartbeatAck(HeartbeatAck { seq: 1, server_time_ms: at_ms(second) }));
    }
    assert_eq!(statuses(&mut rig).len(), 0);
    rig.tick_to(41);
    assert_eq!(statuses(&mut rig).len(), 1);
}

#[test]
fn a_welcome_from_the_past_is_refused_and_the_mark_outlives_the_journal() {
    let mut rig = at_generation_one();
    rig.tick_to(10);
    rig.frame(Gateway::HeartbeatAck(HeartbeatAck { seq: 1, server_time_ms: at_ms(280) }));
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.store = std::sync::Arc::new(crate::journal::MemoryJournal::new(crate::testing::journal_id(2)));
    rig.seconds = 700;
    rig.restart();
    let hello = rig.greet();
    assert!(!hello.fresh, "the generation mark is beside the journal too");
    rig.seconds = 0;
    let mut welcome = rig.welcome();
    welcome.server_time_ms = at_ms(0) - 30_000;
    rig.frame(Gateway::Welcome(welcome));
    assert!(rig.effects.contains(&Effect::Hangup));
}

/// One gateway that lies about the time must not have every honest one refused for as long as the certificate lasts.
#[test]
fn a_gateway_that_states_a_time_far_ahead_keeps_no_other_out() {
    let mut rig = at_generation_one();
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.greet();
    let mut lie = rig.welcome();
    lie.server_time_ms = at_ms(80_000);
    rig.frame(Gateway::Welcome(lie));
    for beat in 1..100 {
        let ack = HeartbeatAck { seq: beat, server_time_ms: at_ms(80_000 + beat * 290) };
        rig.frame(Gateway::HeartbeatAck(ack));
    }
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(200);
    rig.restart();
    rig.greet();
    let honest = rig.welcome();
    rig.frame(Gateway::Welcome(honest));
    assert!(!rig.effects.contains(&Effect::Hangup), "{:?}", rig.effects);
    assert!(rig.engine.server_time(rig.now()) < at(200 + 301));
}

#[test]
fn a_newer_trust_bundle_is_used_once_durable_and_acknowledged_once() {
    let mut rig = at_generation_one();
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.effects.clear();
    let mut newer = Deployment::new(1);
    newer.trust_version = 2;
    rig.greet();
    let mut welcome = rig.welcome();
    welcome.trust_bundle = Some(newer.signed_trust());
    rig.frame(Gateway::Welcome(welcome));
    assert!(matches!(&rig.effects[..], [.., Effect::StoreTrust { version: 2, .. }]), "{:?}", rig.effects);
    rig.tick_to(102);
    assert!(statuses(&mut rig).iter().all(|status| status.trust_version == 0), "not before it is durable");
    rig.step(Input::TrustStored { version: 2 });
    rig.tick_to(104);
    assert_eq!(statuses(&mut rig).iter().map(|status| status.trust_version).max(), Some(2));
    rig.step(Input::Passed(pass(1, SectionState::Failed, vec![])));
    rig.tick_to(106);
    assert_eq!(statuses(&mut rig).iter().map(|status| status.trust_version).max(), Some(0));
}

#[test]
fn a_trust_bundle_nobody_pinned_is_refused() {
    let mut rig = at_generation_one();
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.effects.clear();
    let mut foreign = Deployment::new(2);
    foreign.trust_version = 9;
    rig.greet();
    let mut welcome = rig.welcome();
    welcome.trust_bundle = Some(foreign.signed_trust());
    rig.frame(Gateway::Welcome(welcome));
    assert!(!rig.effects.iter().any(|effect| matches!(effect, Effect::StoreTrust { .. })));
}

#[test]
fn a_revoked_node_takes_nothing_new_and_keeps_what_it_holds() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    rig.take_runs();
    rig.frame(Gateway::Revocation(RevocationNotice { reason: "stolen".into() }));
    rig.take_sent();
    deliver(&mut rig, 2, CommandKind::InventoryRefresh);
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, spec("b")), None);
    rig.frame(Gateway::DesiredState(delivered));
    assert!(rig.take_runs().is_empty() && rig.take_updates().is_empty());
    assert_eq!(rig.engine.held().unwrap().spec, spec("a"));
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    assert_eq!(states(&rig.take_updates()), [CommandState::Succeeded], "what runs comes to its end");
    rig.tick_to(5);
    let conditions = statuses(&mut rig).pop().unwrap().conditions;
    assert!(conditions.iter().any(|condition| condition.kind == "Revoked"));
}

#[test]
fn a_drain_moves_the_session_and_nothing_else() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    rig.take_runs();
    rig.frame(Gateway::Drain(Drain { reason: "restart".into(), reconnect_after_ms: 3000 }));
    rig.tick_to(3);
    assert_eq!(rig.effects, [Effect::Hangup, Effect::Dial]);
    rig.step(Input::Connected);
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    rig.take_sent();
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    assert_eq!(states(&rig.take_updates()), [CommandState::Succeeded]);
}

#[test]
fn a_refusal_ends_the_session_and_waits() {
    let mut rig = Rig::new();
    rig.greet();
    rig.effects.clear();
    rig.frame(Gateway::Refusal(Refusal { reason: "revoked".into(), message: String::new() }));
    assert_eq!(rig.effects, [Effect::Hangup]);
    assert_eq!(rig.engine.view(rig.now()).session.last_end, "refused: revoked");
}

#[test]
fn a_late_renewal_is_reported_and_a_done_one_ends_the_report() {
    let mut rig = at_generation_one();
    let conditions = |rig: &mut Rig| -> Vec<(String, String)> {
        let view = rig.engine.view(rig.now());
        view.conditions.into_iter().map(|held| (held.kind, held.reason)).collect()
    };
    rig.tick_to(19 * 3600);
    assert!(conditions(&mut rig).is_empty());
    rig.tick_to(20 * 3600);
    assert_eq!(conditions(&mut rig), [("CertificateExpiring".to_owned(), "renewal-late".to_owned())]);
    rig.tick_to(25 * 3600);
    assert_eq!(conditions(&mut rig), [("CertificateExpiring".to_owned(), "expired".to_owned())]);
    let renewed = rig.deployment.identity(NODE);
    let certificate =
        Certificate { begins: crate::testing::at(25 * 3600), ends: crate::testing::at(49 * 3600) };
    rig.step(Input::Renewed { key: Box::new(renewed.key), certificate });
    assert!(conditions(&mut rig).is_empty());
}

#[test]
fn the_largest_spec_and_results_make_a_hello_that_fits_and_the_rest_follows() {
    let mut rig = at_generation_one();
    for n in 1..=3 {
        deliver(&mut rig, n, CommandKind::InventoryRefresh);
        let result =
            wire::proto::agent::command_result::Result::LogsCollect(wire::proto::agent::LogsCollectResult {
                bundle: vec![1; wire::limits::RESULT_BYTES_MAX - 1024].into(),
                ..Default::default()
            });
        rig.step(Input::Finished { id: command_id(n), outcome: Outcome::Succeeded(result) });
    }
    let room = wire::limits::SPEC_BODY_BYTES_MAX - 1024;
    let large = NodeSpec {
        instances: Some(wire::proto::agent::InstancesSection { instances: vec![vec![7; room].into()] }),
        ..NodeSpec::default()
    };
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, large), None);
    rig.frame(Gateway::DesiredState(delivered));
    assert_eq!(rig.engine.held().unwrap().generation, 2);
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.take_sent();
    let hello = rig.greet();
    assert!(hello.applied_spec_body.len() > room);
    let frame = wire::proto::agent::NodeFrame { frame: Some(Frame::Hello(hello.clone())) };
    assert!(bytes(&frame).len() <= wire::limits::FRAME_BYTES_MAX);
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    let later = rig.take_updates().len();
    assert_eq!(hello.unacked_results.len() + later, 3);
}

#[test]
fn a_gateway_cannot_use_up_the_event_numbers() {
    let mut rig = Rig::new();
    rig.greet();
    let mut welcome = rig.welcome();
    welcome.acked_event_seq = u64::MAX;
    rig.frame(Gateway::Welcome(welcome));
    assert_eq!(rig.engine.view(rig.now()).journal.last_event_seq, 0);
}
