//! Whatever a gateway sends, the engine goes on.

use proptest::prelude::*;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::{
    Ack, Cancel, Command, DesiredState, Drain, HeartbeatAck, InventoryRequest, Refusal, RevocationNotice,
    SecretAnswer, Welcome,
};
use wire::proto::common::{IntentSignature, SignedTrustBundle};

use super::rig::*;
use crate::engine::*;
use crate::testing::{at_ms, command_id};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(command_id(1).to_string()), Just("jrn_00000000000000000000000001".to_owned()), ".{0,40}",]
}

fn bytes() -> impl Strategy<Value = bytes::Bytes> {
    proptest::collection::vec(any::<u8>(), 0..200).prop_map(Into::into)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..5, Just(at_ms(0)), Just(at_ms(60)), any::<u64>()]
}

fn welcome() -> impl Strategy<Value = Gateway> {
    (any::<u8>(), number(), number(), text(), number(), any::<u32>(), bytes(), any::<bool>()).prop_map(
        |(protocol, epoch, time, journal, acked, interval, bundle, upgrade_only)| {
            Gateway::Welcome(Welcome {
                protocol: u32::from(protocol % 3),
                session_epoch: epoch,
                server_time_ms: time,
                journal_id: journal.clone(),
                acked_event_seq: acked,
                heartbeat_interval_ms: interval,
                trust_bundle: Some(SignedTrustBundle { value: bundle }),
                inventory_sections: vec![journal],
                upgrade_only,
                ..Welcome::default()
            })
        },
    )
}

fn gateway_frame() -> impl Strategy<Value = Gateway> {
    prop_oneof![
        welcome(),
        (number(), number())
            .prop_map(|(seq, server_time_ms)| Gateway::HeartbeatAck(HeartbeatAck { seq, server_time_ms })),
        (bytes(), bytes()).prop_map(|(body, value)| Gateway::DesiredState(DesiredState {
            body,
            signature: Some(IntentSignature { value }),
            fresh: None
        })),
        (bytes(), bytes()).prop_map(|(body, value)| Gateway::Command(Command {
            body,
            signature: Some(IntentSignature { value }),
            delivery_attempt: 1
        })),
        (text(), text()).prop_map(|(command_id, reason)| Gateway::Cancel(Cancel { command_id, reason })),
        (text(), number(), text()).prop_map(|(journal_id, event_seq, id)| Gateway::Ack(Ack {
            journal_id,
            event_seq,
            command_ids: vec![id]
        })),
        (text(), any::<u32>())
            .prop_map(|(reason, reconnect_after_ms)| Gateway::Drain(Drain { reason, reconnect_after_ms })),
        text().prop_map(|reason| Gateway::Revocation(RevocationNotice { reason })),
        proptest::collection::vec(text(), 0..5)
            .prop_map(|sections| Gateway::InventoryRequest(InventoryRequest { sections })),
        (text(), text()).prop_map(|(reason, message)| Gateway::Refusal(Refusal { reason, message })),
        (bytes(), bytes(), bytes()).prop_map(|(request_id, body, value)| Gateway::SecretAnswer(
            SecretAnswer { request_id, body, signature: Some(IntentSignature { value }) }
        )),
    ]
}

/// A frame, or the connection's coming and going, or time.
#[derive(Debug, Clone)]
enum Happening {
    Frame(Box<Gateway>),
    Real(CommandKind, u8),
    Connected,
    Cut,
    Wait(u8),
    Restart,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => gateway_frame().prop_map(|frame| Happening::Frame(Box::new(frame))),
        3 => (0usize..5, any::<u8>()).prop_map(|(kind, n)| Happening::Real(CommandKind::ALL[kind], n % 8)),
        2 => Just(Happening::Connected),
        1 => Just(Happening::Cut),
        3 => any::<u8>().prop_map(Happening::Wait),
        1 => Just(Happening::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_sequence_of_frames_panics_or_runs_a_command_twice(happenings in proptest::collection::vec(happening(), 1..60)) {
        let mut rig = Rig::new();
        let mut runs = BTreeMap::<CommandId, (CommandKind, u32)>::new();
        rig.open();
        for happening in happenings {
            match happening {
                Happening::Frame(frame) => rig.frame(*frame),
                Happening::Real(kind, n) => {
                    let id = command_id(100 + 10 * u128::from(n) + kind as u128);
                    let command = rig.deployment.command(NODE, id, kind);
                    rig.frame(Gateway::Command(command));
                }
                Happening::Connected => {
                    rig.step(Input::Connected);
                    let welcome = rig.welcome();
                    rig.frame(Gateway::Welcome(welcome));
                }
                Happening::Cut => rig.step(Input::Disconnected { why: "cut".into(), pushback: None }),
                Happening::Wait(seconds) => rig.tick_to(rig.seconds + u64::from(seconds)),
                Happening::Restart => rig.restart(),
            }
            for effect in std::mem::take(&mut rig.effects) {
                if let Effect::Run { id, kind, .. } = effect {
                    runs.entry(id).or_insert((kind, 0)).1 += 1;
                }
            }
        }
        for (id, (kind, count)) in runs {
            // A reboot is asked for again only in the boot that it is to end, which is the one here.
            let again = kind.policy().retry_safe || kind.policy().self_terminating;
            prop_assert!(count <= 1 || again, "{} {id} ran {count} times", kind.name());
        }
        prop_assert!(rig.engine.deadline() <= Duration::from_secs(rig.seconds + 3600));
    }
}
