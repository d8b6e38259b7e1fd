//! What a released protocol may not lose. The recorded descriptors are compared with the current ones: a field may be
//! added, never renumbered, retyped, renamed or removed while its number could be read differently.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

/// Every message field and enum value of a set: `package.Message#3` to what it is.
fn facts(descriptors: &[u8]) -> BTreeMap<String, String> {
    let set = FileDescriptorSet::decode(descriptors).expect("descriptors are what the compiler made");
    let mut facts = BTreeMap::new();
    for file in &set.file {
        let package = file.package();
        for message in &file.message_type {
            message_facts(&format!("{package}.{}", message.name()), message, &mut facts);
        }
        for values in &file.enum_type {
            enum_facts(&format!("{package}.{}", values.name()), values, &mut facts);
        }
        for service in &file.service {
            for method in &service.method {
                let name = format!("{package}.{}/{}", service.name(), method.name());
                let streams = (method.client_streaming(), method.server_streaming());
                facts
                    .insert(name, format!("{} -> {} {streams:?}", method.input_type(), method.output_type()));
            }
        }
    }
    facts
}

fn message_facts(name: &str, message: &DescriptorProto, facts: &mut BTreeMap<String, String>) {
    for field in &message.field {
        let kind = format!("{} {:?} {:?} {}", field.name(), field.r#type(), field.label(), field.type_name());
        facts.insert(format!("{name}#{}", field.number()), kind);
    }
    for nested in &message.nested_type {
        message_facts(&format!("{name}.{}", nested.name()), nested, facts);
    }
    for values in &message.enum_type {
        enum_facts(&format!("{name}.{}", values.name()), values, facts);
    }
}

fn enum_facts(name: &str, values: &EnumDescriptorProto, facts: &mut BTreeMap<String, String>) {
    for value in &values.value {
        facts.insert(format!("{name}={}", value.number()), value.name().to_owned());
    }
}

/// What of `recorded` is gone or different in `current`.
fn broken(recorded: &[u8], current: &[u8]) -> Vec<String> {
    let current = facts(current);
    facts(recorded)
        .into_iter()
        .filter_map(|(name, was)| match current.get(&name) {
            Some(is) if *is == was => None,
            Some(is) => Some(format!("{name} was `{was}` and is `{is}`")),
            None => Some(format!("{name} (`{was}`) is gone")),
        })
        .collect()
}

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/baseline.binpb");

#[test]
fn the_protocol_breaks_no_peer_that_speaks_the_recorded_one() {
    if std::env::var_os("BC_BLESS").is_some() {
        std::fs::write(BASELINE, crate::proto::DESCRIPTORS).expect("the baseline can be written");
    }
    let recorded = std::fs::read(BASELINE).expect("proto/baseline.binpb is part of the repository");
    let broken = broken(&recorded, crate::proto::DESCRIPTORS);
    assert!(
        broken.is_empty(),
        "a peer that speaks the recorded protocol would misread this:\n  {}\n\
         Give the change a new field number instead. What no release has carried may be recorded anew with BC_BLESS=1.",
        broken.join("\n  ")
    );
}

#[test]
fn a_renumbered_field_is_found() {
    let mut set = FileDescriptorSet::decode(crate::proto::DESCRIPTORS).expect("it decodes");
    let message = set
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type)
        .find(|message| message.name() == "Ack")
        .expect("there is an Ack");
    message.field[0].number = Some(99);
    let broken = broken(crate::proto::DESCRIPTORS, &set.encode_to_vec());
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].contains("Ack#1"), "{broken:?}");
}
