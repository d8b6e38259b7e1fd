use prost::Message;

use crate::proto::agent::*;
use crate::spec;

fn hold(id: &str, atoms: &[&str]) -> NodeSpec {
    NodeSpec {
        devices: Some(DevicesSection {
            assignments: vec![DeviceAssignment {
                allocation_id: id.into(),
                atoms: atoms.iter().map(|a| (*a).into()).collect(),
                ..Default::default()
            }],
        }),
        ..Default::default()
    }
}

#[test]
fn the_order_of_parts_does_not_change_the_bytes() {
    let one = spec::merge([hold("a", &["x", "y"]), hold("b", &["z"])]).unwrap();
    let other = spec::merge([hold("b", &["z"]), hold("a", &["y", "x"])]).unwrap();
    assert_eq!(one.encode_to_vec(), other.encode_to_vec());
    assert_eq!(spec::hash(&one), spec::hash(&other));
}

#[test]
fn two_writers_of_one_section_are_refused() {
    let part = NodeSpec { daemon: Some(DaemonSection { version: "1".into() }), ..Default::default() };
    assert_eq!(spec::merge([part.clone(), part]).unwrap_err().section, "daemon");
}

#[test]
fn a_patch_replaces_the_sections_it_sets_and_keeps_the_rest() {
    let mut held = hold("a", &["x"]);
    held.access = Some(AccessSection { ssh_ca_keys: vec!["k".into()], ..Default::default() });
    let body = DesiredStateBody {
        base_generation: 4,
        generation: 5,
        spec: Some(NodeSpec { devices: Some(DevicesSection::default()), ..Default::default() }),
        ..Default::default()
    };
    let next = spec::apply(Some((4, &held)), &body).unwrap();
    assert!(spec::section_is_empty(&next, model::Section::Devices));
    assert_eq!(next.access, held.access);
    assert_eq!(spec::apply(Some((3, &held)), &body), None);
}

#[test]
fn a_section_of_the_future_is_named_by_its_number() {
    // Field 9, length-delimited, three bytes.
    let mut bytes = hold("a", &["x"]).encode_to_vec();
    bytes.extend([9 << 3 | 2, 3, 1, 2, 3]);
    assert_eq!(spec::unknown_sections(&bytes), vec![9]);
    bytes.extend([10 << 3 | 2, 0]);
    assert_eq!(spec::unknown_sections(&bytes), vec![9], "an empty one asks for nothing");
}

#[test]
fn an_oversized_message_is_refused_before_it_is_read() {
    let bytes = vec![0xffu8; 100];
    let err = crate::decode::<CommandBody>("command body", &bytes, 99).unwrap_err();
    assert_eq!(err.to_string(), "command body is 100 bytes, the limit is 99");
    assert!(crate::decode::<CommandBody>("command body", &bytes, 100).is_err());
}

#[test]
fn every_command_kind_has_its_payload_and_its_result() {
    // A kind without a payload variant could be enqueued and never run.
    for kind in model::CommandKind::ALL {
        let payload = crate::command::empty_payload(kind);
        assert_eq!(crate::command::payload_kind(&payload), kind);
    }
}
