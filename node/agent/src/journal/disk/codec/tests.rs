use super::*;
use crate::journal::{Entry, Marks, Stage, StoredEvent, StoredSpec};
use crate::testing::{at, command_id, incarnation};
use wire::proto::agent::{CommandUpdate, EventClass};

/// One of each kind.
fn writes() -> Vec<Write> {
    let entry = |stage| Entry {
        command_id: command_id(1),
        kind: "gpu.reset".into(),
        incarnation: incarnation(2),
        at: at(3),
        stage,
    };
    let event = StoredEvent {
        seq: 9,
        class: EventClass::Transition,
        report: vec![1; 300].into(),
        signature: vec![2; 64].into(),
        key_sha256: vec![3; 32].into(),
        at: at(4),
    };
    let spec = StoredSpec {
        generation: 5,
        deployment_epoch: 1,
        hash: "sha256:1".into(),
        body: vec![4; 2000].into(),
        signature: vec![5; 64].into(),
        merged: bytes::Bytes::new(),
        accepted_at: at(5),
    };
    vec![
        Write::Entry(entry(Stage::Accepted)),
        Write::Entry(entry(Stage::Running { boot_id: "boot".into() })),
        Write::Entry(entry(Stage::Done { update: Box::new(CommandUpdate::default()) })),
        Write::ResultAcked(command_id(1)),
        Write::RemoveEntry(command_id(1)),
        Write::Event(event),
        Write::RemoveEvent(9),
        Write::EventsAcked(8),
        Write::LastSeq(10),
        Write::Spec(spec),
        Write::Marks(Marks { server_time_ms: 1, generation: 2, deployment_epoch: 3 }),
        Write::Ticket { id: "ticket".into(), until: at(6) },
        Write::RemoveTicket("ticket".into()),
    ]
}

#[test]
fn every_kind_of_write_is_read_as_it_was_written() {
    assert_eq!(decode(&encode(&writes())).unwrap(), writes());
    assert_eq!(decode(&[]).unwrap(), []);
}

#[test]
fn bytes_that_end_early_are_refused() {
    let whole = encode(&writes());
    let ends: Vec<usize> = (0..=writes().len()).map(|count| encode(&writes()[..count]).len()).collect();
    for end in 0..whole.len() {
        assert_eq!(decode(&whole[..end]).is_ok(), ends.contains(&end), "{end} bytes");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]

    #[test]
    fn anything_is_read_or_refused_without_harm(bytes in proptest::collection::vec(0u8..16, 0..512)) {
        let _ = decode(&bytes);
    }
}
