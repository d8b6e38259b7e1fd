//! Instances in a spec: each is its own bytes, so that one that cannot be read costs no other.

use prost::Message;

use crate::DecodeError;
use crate::limits::{INSTANCE_BYTES_MAX, INSTANCE_REASON_BYTES_MAX, INSTANCE_TEXT_BYTES_MAX};
use crate::proto::agent::{InstanceSpec, InstanceStatus, InstancesSection};

/// The section of these instances, in the order of their ids, so that the same intent is the same bytes.
pub fn section(mut instances: Vec<InstanceSpec>) -> InstancesSection {
    instances.sort_by(|one, other| one.instance_id.cmp(&other.instance_id));
    InstancesSection { instances: instances.iter().map(|one| one.encode_to_vec().into()).collect() }
}

/// The instances of a section in its order, each as far as it can be read.
pub fn instances(section: &InstancesSection) -> Vec<Result<InstanceSpec, DecodeError>> {
    section.instances.iter().map(|bytes| crate::decode("instance", bytes, INSTANCE_BYTES_MAX)).collect()
}

/// Cut to so many bytes, with a blank for each control character.
fn cut(said: &str, bytes_max: usize) -> String {
    let mut end = said.len().min(bytes_max);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    said[..end].chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// A status with its words within their bounds.
pub fn bounded(status: InstanceStatus) -> InstanceStatus {
    let reason = cut(&status.reason, INSTANCE_REASON_BYTES_MAX);
    let message = cut(&status.message, INSTANCE_TEXT_BYTES_MAX);
    InstanceStatus { reason, message, ..status }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::limits::{INSTANCES_PER_REPORT_MAX, REPORT_BYTES_MAX};
    use crate::proto::agent::{InstancesObserved, NodeReport, NodeSpec, node_report};

    fn spec(id: &str) -> InstanceSpec {
        InstanceSpec { instance_id: id.into(), vcpus: 2, ..InstanceSpec::default() }
    }

    #[test]
    fn the_order_of_instances_does_not_change_the_bytes() {
        assert_eq!(section(vec![spec("a"), spec("b")]), section(vec![spec("b"), spec("a")]));
    }

    #[test]
    fn one_that_cannot_be_read_costs_no_other() {
        let mut section = section(vec![spec("a"), spec("b")]);
        section.instances.insert(1, Bytes::from_static(b"\xff\xff"));
        let read = instances(&section);
        assert_eq!((read[0].as_ref().ok(), read[2].as_ref().ok()), (Some(&spec("a")), Some(&spec("b"))));
        assert!(read[1].is_err());
    }

    #[test]
    fn a_daemon_of_before_sees_that_instances_are_asked_for() {
        let spec = NodeSpec { instances: Some(section(vec![spec("a")])), ..NodeSpec::default() };
        assert!(!crate::spec::section_is_empty(&spec, model::Section::Instances));
        // As such a daemon knew the field: bytes of which it could make nothing.
        let again: NodeSpec = crate::decode("spec", &spec.encode_to_vec(), 1 << 20).unwrap();
        assert_eq!(again, spec);
    }

    #[test]
    fn a_report_of_the_longest_words_fits_an_event() {
        let status = InstanceStatus {
            instance_id: "inst_01k5w0000000000000000000000".into(),
            revision: u64::MAX,
            state: 6,
            reason: "x".repeat(4096),
            message: "\u{7f}é".repeat(4096),
        };
        let status = bounded(status);
        assert!(status.message.len() <= INSTANCE_TEXT_BYTES_MAX && status.message.starts_with(" é"));
        let instances = vec![status; INSTANCES_PER_REPORT_MAX];
        let observed = InstancesObserved { generation: u64::MAX, instances };
        let report = node_report::Report::InstancesObserved(observed);
        let report = NodeReport { node_id: "node_01k5w000000000000000000000".into(), report: Some(report) };
        assert!(report.encoded_len() < REPORT_BYTES_MAX, "{}", report.encoded_len());
    }
}
