//! What commands come to.

use pki::Purpose;
use sha2::{Digest, Sha256};
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{Ack, AttestedResult, Cancel, CommandState};

use super::rig::*;
use crate::engine::*;
use crate::journal::JournalStore;
use crate::testing::{at_ms, command_id};
use model::SectionState;

#[test]
fn a_command_goes_from_delivery_to_an_acknowledged_result() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    assert_eq!(rig.take_runs(), [command_id(1)]);
    assert_eq!(states(&rig.take_updates()), [CommandState::Acked, CommandState::Running]);
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    let updates = rig.take_updates();
    assert_eq!(states(&updates), [CommandState::Succeeded]);
    assert_eq!(updates[0].boot_id, "boot-1");
    assert!(updates[0].signature.is_none(), "inventory.refresh is not attested");
    rig.frame(Gateway::Ack(Ack { command_ids: vec![command_id(1).to_string()], ..Ack::default() }));
    rig.restart();
    assert!(rig.greet().unacked_results.is_empty());
}

#[test]
fn a_result_is_sent_again_until_it_is_acknowledged() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    rig.restart();
    let hello = rig.greet();
    assert_eq!(states(&hello.unacked_results), [CommandState::Succeeded]);
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    assert_eq!(rig.greet().unacked_results.len(), 1);
}

#[test]
fn a_result_that_came_between_hello_and_welcome_is_sent_after_the_welcome() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    rig.tick_to(100);
    rig.take_sent();
    rig.effects.clear();
    assert!(rig.greet().unacked_results.is_empty());
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    rig.take_sent();
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    assert_eq!(states(&rig.take_updates()), [CommandState::Succeeded]);
}

#[test]
fn a_duplicate_delivery_runs_nothing_whatever_the_stage() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::GpuReset);
    assert_eq!(rig.take_runs().len(), 1);
    rig.take_sent();
    deliver(&mut rig, 1, CommandKind::GpuReset);
    assert_eq!(states(&rig.take_updates()), [CommandState::Running]);
    rig.step(Input::Finished { id: command_id(1), outcome: Outcome::failed("gpu-busy", "held") });
    let first = rig.take_updates();
    deliver(&mut rig, 1, CommandKind::GpuReset);
    assert_eq!(rig.take_updates(), first, "the very same bytes");
    assert!(rig.take_runs().is_empty());
}

#[test]
fn an_attested_result_carries_the_nodes_signature_over_what_it_says() {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::DiagNvml);
    let result = wire::proto::agent::command_result::Result::DiagNvml(Default::default());
    rig.step(Input::Finished { id: command_id(1), outcome: Outcome::Succeeded(result) });
    let update = rig.take_updates().pop().unwrap();
    let statement = AttestedResult {
        command_id: update.command_id.clone(),
        state: update.state,
        result_sha256: Sha256::digest(&update.result).to_vec().into(),
        node_id: rig.identity.node_id.to_string(),
    };
    let signature = update.signature.unwrap();
    let key = rig.identity.key.verifying_key();
    assert_eq!(&signature.key_sha256[..], key.pin().as_bytes());
    let signature = pki::Signature::from_bytes(&signature.value).unwrap();
    key.verify(Purpose::AttestedResult, &bytes(&statement), &signature).unwrap();
}

#[test]
fn workers_and_credits_bound_a_lane_and_busy_is_not_remembered() {
    let mut rig = at_generation_one();
    for n in 1..=17 {
        deliver(&mut rig, n, CommandKind::InventoryRefresh);
    }
    assert_eq!(rig.take_runs().len(), 4, "the control lane has four workers");
    let updates = rig.take_updates();
    let busy: Vec<_> = updates.iter().filter(|update| update.state() == CommandState::Busy).collect();
    assert_eq!(busy.len(), 1);
    assert_eq!(
        (busy[0].command_id.clone(), busy[0].reason.as_str()),
        (command_id(17).to_string(), "no-credit")
    );
    assert_eq!(rig.store.entry(command_id(17)).unwrap(), None);
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    assert_eq!(rig.take_runs(), [command_id(5)], "the next in order gets the worker");
    deliver(&mut rig, 17, CommandKind::InventoryRefresh);
    assert!(states(&rig.take_updates()).contains(&CommandState::Acked), "its credit came back");
}

#[test]
fn one_resource_is_one_command_at_a_time_across_lanes_and_in_order() {
    let mut rig = at_generation_one();
    let keyed = |rig: &mut Rig, n: u128, kind: CommandKind, key: &str| {
        let mut body = rig.deployment.command_body(NODE, command_id(n), kind);
        body.resource_keys = vec![key.into()];
        let command = rig.deployment.signed_command(&body);
        rig.frame(Gateway::Command(command));
    };
    keyed(&mut rig, 1, CommandKind::GpuReset, "GPU-1");
    keyed(&mut rig, 2, CommandKind::LogsCollect, "GPU-1");
    keyed(&mut rig, 3, CommandKind::DiagNvml, "GPU-1");
    keyed(&mut rig, 4, CommandKind::DiagNvml, "GPU-2");
    assert_eq!(rig.take_runs(), [command_id(1), command_id(4)]);
    rig.step(Input::Finished { id: command_id(1), outcome: Outcome::failed("x", "y") });
    assert_eq!(rig.take_runs(), [command_id(3)], "lanes are served in their order");
    rig.step(Input::Finished { id: command_id(3), outcome: Outcome::failed("x", "y") });
    assert_eq!(rig.take_runs(), [command_id(2)]);
}

#[test]
fn a_deadline_that_passes_in_the_queue_is_final() {
    let mut rig = at_generation_one();
    for n in 1..=5 {
        deliver(&mut rig, n, CommandKind::InventoryRefresh);
    }
    rig.take_updates();
    rig.take_runs();
    rig.seconds = 3601;
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    let updates = rig.take_updates();
    assert!(rig.take_runs().is_empty());
    let rejected = updates.iter().find(|update| update.state() == CommandState::Rejected).unwrap();
    assert_eq!(
        (rejected.command_id.clone(), rejected.reason.as_str()),
        (command_id(5).to_string(), "EXPIRED")
    );
}

#[test]
fn a_command_waits_for_the_spec_it_presupposes() {
    let mut rig = at_generation_one();
    let mut body = rig.deployment.command_body(NODE, command_id(1), CommandKind::GpuReset);
    body.min_generation = 2;
    let command = rig.deployment.signed_command(&body);
    rig.frame(Gateway::Command(command.clone()));
    let asked = rig.take_sent();
    assert!(asked.iter().any(
        |frame| matches!(&frame.frame, Some(Frame::SpecRequest(request)) if request.have_generation == 1)
    ));
    assert!(rig.take_runs().is_empty());
    rig.frame(Gateway::Command(command));
    assert!(rig.take_updates().is_empty(), "once is enough");
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, spec("b")), None);
    rig.frame(Gateway::DesiredState(delivered));
    assert_eq!(rig.take_runs(), [command_id(1)]);
}

#[test]
fn a_spec_that_never_comes_makes_the_command_stale() {
    let mut rig = at_generation_one();
    let mut body = rig.deployment.command_body(NODE, command_id(1), CommandKind::GpuReset);
    (body.min_generation, body.not_after_ms) = (2, at_ms(50));
    let command = rig.deployment.signed_command(&body);
    rig.frame(Gateway::Command(command));
    assert!(rig.engine.deadline() <= Duration::from_secs(1), "it looks again soon");
    rig.take_sent();
    rig.tick_to(51);
    let updates = rig.take_updates();
    assert_eq!(updates.iter().map(|update| update.reason.as_str()).collect::<Vec<_>>(), ["STALE_GENERATION"]);
}

#[test]
fn a_rejection_is_remembered_and_repeated() {
    let mut rig = at_generation_one();
    let mut command = rig.deployment.command(NODE, command_id(1), CommandKind::GpuReset);
    command.signature = None;
    rig.frame(Gateway::Command(command));
    let first = rig.take_updates();
    assert_eq!(first[0].reason, "BAD_SIGNATURE");
    assert!(first[0].signature.is_some(), "a rejection of an attested kind is attested too");
    rig.restart();
    assert_eq!(rig.greet().unacked_results, first);
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    rig.take_sent();
    deliver(&mut rig, 1, CommandKind::GpuReset);
    assert_eq!(rig.take_updates(), first, "its id is spent");
}

#[test]
fn a_cancel_stops_what_has_not_begun_and_asks_what_has() {
    let mut rig = at_generation_one();
    for n in 1..=5 {
        deliver(&mut rig, n, CommandKind::InventoryRefresh);
    }
    rig.take_updates();
    rig.take_runs();
    let cancel = |n| Gateway::Cancel(Cancel { command_id: command_id(n).to_string(), reason: "r".into() });
    rig.frame(cancel(5));
    assert_eq!(states(&rig.take_updates()), [CommandState::Cancelled]);
    rig.frame(cancel(1));
    assert_eq!(rig.effects, [Effect::Cancel(command_id(1))]);
    assert!(rig.take_updates().is_empty());
    rig.step(Input::Finished { id: command_id(1), outcome: refreshed() });
    assert_eq!(states(&rig.take_updates()), [CommandState::Succeeded], "what happened is what is reported");
    rig.frame(cancel(1));
    assert_eq!(states(&rig.take_updates()), [CommandState::Succeeded]);
    rig.frame(cancel(99));
    assert!(rig.take_updates().is_empty());
}

#[test]
fn a_deferred_command_can_be_cancelled() {
    let mut rig = at_generation_one();
    let mut body = rig.deployment.command_body(NODE, command_id(1), CommandKind::GpuReset);
    body.min_generation = 2;
    let command = rig.deployment.signed_command(&body);
    rig.frame(Gateway::Command(command));
    rig.frame(Gateway::Cancel(Cancel { command_id: command_id(1).to_string(), reason: "r".into() }));
    assert_eq!(states(&rig.take_updates()), [CommandState::Cancelled]);
    let delivered = rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 2, spec("b")), None);
    rig.frame(Gateway::DesiredState(delivered));
    assert!(rig.take_runs().is_empty());
}

/// A rig whose daemon was restarted while it waited for its machine to go down.
fn restarted_before_the_reboot() -> Rig {
    let mut rig = at_generation_one();
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert_eq!(rig.take_runs(), [command_id(1)]);
    rig.step(Input::Finished { id: command_id(1), outcome: Outcome::Ending });
    assert_eq!(states(&rig.take_updates()), [CommandState::Acked, CommandState::Running]);
    rig.restart();
    rig.commit();
    rig
}

#[test]
fn a_reboot_succeeds_in_the_next_boot() {
    let mut rig = restarted_before_the_reboot();
    rig.boot = "boot-2".into();
    rig.restart();
    rig.commit();
    let hello = rig.greet();
    assert_eq!(states(&hello.unacked_results), [CommandState::Succeeded]);
    assert_eq!(hello.boot_id, "boot-2");
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert!(rig.take_runs().is_empty());
}

#[test]
fn a_reboot_that_has_not_come_is_asked_for_again_in_the_same_boot() {
    let mut rig = restarted_before_the_reboot();
    assert!(rig.greet().unacked_results.is_empty());
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert_eq!(rig.take_runs(), [command_id(1)]);
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert!(rig.take_runs().is_empty(), "it is under way");
    rig.boot = "boot-2".into();
    rig.restart();
    rig.commit();
    assert_eq!(states(&rig.greet().unacked_results), [CommandState::Succeeded]);
}

/// The same, asked again while another command of its resource runs: it waits.
fn waiting_to_ask_again() -> Rig {
    let mut rig = restarted_before_the_reboot();
    rig.greet();
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    for (n, kind) in [(2, CommandKind::GpuReset), (1, CommandKind::NodeReboot)] {
        let mut body = rig.deployment.command_body(NODE, command_id(n), kind);
        body.resource_keys = vec!["gpu-1".into()];
        let command = rig.deployment.signed_command(&body);
        rig.frame(Gateway::Command(command));
    }
    assert_eq!(rig.take_runs(), [command_id(2)]);
    rig.take_updates();
    rig
}

#[test]
fn a_reboot_that_waits_to_be_asked_for_again_is_not_asked_for_in_the_next_boot() {
    let mut rig = waiting_to_ask_again();
    rig.boot = "boot-2".into();
    rig.restart();
    rig.commit();
    let results = rig.greet().unacked_results;
    let reboot = results.iter().find(|update| update.command_id == command_id(1).to_string()).unwrap();
    assert_eq!(reboot.state(), CommandState::Succeeded);
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert!(rig.take_runs().is_empty());
}

#[test]
fn what_an_earlier_process_had_begun_is_interrupted_and_not_cancelled() {
    let mut rig = waiting_to_ask_again();
    rig.frame(Gateway::Cancel(Cancel { command_id: command_id(1).to_string(), reason: "r".into() }));
    let updates = rig.take_updates();
    assert_eq!((updates[0].state(), updates[0].reason.as_str()), (CommandState::Failed, "interrupted"));
}

#[test]
fn what_an_earlier_process_had_begun_and_this_one_stopped_is_interrupted_and_not_cancelled() {
    let mut rig = waiting_to_ask_again();
    rig.step(Input::Finished { id: command_id(2), outcome: Outcome::failed("gpu-busy", "held") });
    assert_eq!(rig.take_runs(), [command_id(1)]);
    rig.take_updates();
    rig.step(Input::Finished { id: command_id(1), outcome: Outcome::Cancelled });
    let updates = rig.take_updates();
    assert_eq!((updates[0].state(), updates[0].reason.as_str()), (CommandState::Failed, "interrupted"));
}

#[test]
fn a_reboot_that_was_begun_and_may_not_run_any_more_is_interrupted() {
    let mut rig = restarted_before_the_reboot();
    rig.seconds += 2 * 3600;
    rig.greet();
    let welcome = rig.welcome();
    rig.frame(Gateway::Welcome(welcome));
    rig.take_updates();
    deliver(&mut rig, 1, CommandKind::NodeReboot);
    assert!(rig.take_runs().is_empty());
    let updates = rig.take_updates();
    assert_eq!((updates[0].state(), updates[0].reason.as_str()), (CommandState::Failed, "interrupted"));
}

#[test]
fn a_full_journal_is_busy_and_says_so() {
    let mut rig = Rig::new();
    rig.limits = Limits { events_max: 1, ..Limits::default() };
    rig.restart();
    let hello = rig.open();
    let delivered =
        rig.deployment.signed_spec(&rig.deployment.spec_body(NODE, 1, spec("a")), Some(&hello.nonce));
    rig.frame(Gateway::DesiredState(delivered));
    rig.step(Input::Passed(pass(1, SectionState::Converged, vec![bound("a")])));
    rig.take_sent();
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    let updates = rig.take_updates();
    assert_eq!((updates[0].state(), updates[0].reason.as_str()), (CommandState::Busy, "journal-full"));
    rig.tick_to(5);
    assert!(statuses(&mut rig).pop().unwrap().conditions.iter().any(|held| held.kind == "JournalFull"));
    rig.frame(Gateway::Ack(Ack {
        journal_id: rig.store.id().to_string(),
        event_seq: 1,
        command_ids: vec![],
    }));
    deliver(&mut rig, 1, CommandKind::InventoryRefresh);
    assert_eq!(rig.take_runs(), [command_id(1)]);
}
