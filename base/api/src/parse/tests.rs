use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{METHODS, commands, nodes, reservations, tokens};

fn refusal<M: Method>(body: Value) -> (String, String) {
    match parse_request::<M>(body.clone()) {
        Ok(_) => panic!("{} took {body}", M::NAME),
        Err(err) => (err.pointer, err.message),
    }
}

#[test]
fn an_unknown_field_names_the_one_that_was_meant() {
    let (pointer, message) = refusal::<reservations::Create>(json!({"pool": "gpu", "gpu": 4}));
    assert_eq!(pointer, "/gpu");
    assert_eq!(message, "unknown field `gpu`, did you mean `gpus`?");
    let (_, message) = refusal::<reservations::Create>(json!({"pool": "gpu", "memoryGib": 4}));
    assert_eq!(message, "unknown field `memoryGib`, did you mean `memoryGiB`?");
}

#[test]
fn memory_is_given_in_one_unit_and_read_in_the_finer() {
    for body in [json!({"pool": "gpu", "memoryMiB": 2048}), json!({"pool": "gpu", "memoryGiB": 2})] {
        assert_eq!(parse_request::<reservations::Create>(body.clone()).unwrap().memory_mib(), 2048);
        assert_eq!(parse_request::<reservations::Explain>(body).unwrap().memory_mib(), 2048);
    }
    let both = json!({"pool": "gpu", "memoryGiB": 1, "memoryMiB": 512});
    for (pointer, _) in
        [refusal::<reservations::Create>(both.clone()), refusal::<reservations::Explain>(both)]
    {
        assert_eq!(pointer, "/memoryMiB");
    }
    let part = json!({"pool": "gpu", "memoryMiB": 0.5});
    assert_eq!(refusal::<reservations::Create>(part).0, "/memoryMiB");
    let nothing = json!({"pool": "gpu", "memoryMiB": 0});
    assert_eq!(refusal::<reservations::Create>(nothing).0, "");
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    for body in [json!(["sim-0"]), json!("sim-0"), json!(null), json!(4)] {
        assert_eq!(refusal::<nodes::Get>(body), (String::new(), "expected a JSON object".to_owned()));
    }
}

#[test]
fn an_unknown_field_inside_is_found_where_it_is() {
    let body = json!({"pool": "gpu", "gpus": 1, "wait": {"timeout": 5}});
    let (pointer, message) = refusal::<reservations::Create>(body);
    assert_eq!((pointer.as_str(), message.contains("timeoutMs")), ("/wait/timeout", true), "{message}");
}

#[test]
fn a_field_unlike_any_other_lists_what_there_is() {
    let (_, message) = refusal::<nodes::Get>(json!({"node": "sim-0", "colour": "blue"}));
    assert_eq!(message, "unknown field `colour`: there is node");
    let (_, message) = refusal::<tokens::Whoami>(json!({"colour": "blue"}));
    assert_eq!(message, "unknown field `colour`: this method takes none");
}

#[test]
fn a_strange_key_is_escaped_in_its_pointer() {
    let (pointer, _) = refusal::<nodes::Get>(json!({"node": "a", "x/y~z": 1}));
    assert_eq!(pointer, "/x~1y~0z");
}

#[test]
fn an_id_of_another_kind_is_refused_by_kind() {
    let pool = model::PoolId::from_uuid(uuid());
    let (pointer, message) = refusal::<nodes::Get>(json!({"node": pool.to_string()}));
    assert_eq!(pointer, "/node");
    assert!(message.contains("is the id of a pool, not of a node"), "{message}");
    let (pointer, message) = refusal::<commands::Get>(json!({"id": pool.to_string()}));
    assert_eq!(pointer, "/id");
    assert!(message.contains("is not a command id"), "{message}");
}

#[test]
fn bounds_name_their_field() {
    let cases = [
        (json!({"pool": "gpu", "gpus": 1025}), "/gpus", "from 0 to 1024"),
        (json!({"pool": "gpu", "gpus": -1}), "/gpus", "from 0 to 1024"),
        (json!({"pool": "gpu", "gpus": 1.5}), "/gpus", "from 0 to 1024"),
        (json!({"pool": "GPU", "gpus": 1}), "/pool", "neither a pool id"),
        (json!({"pool": "gpu", "gpus": 1, "hours": 0}), "/hours", "from 1"),
        (json!({"pool": "gpu", "gpus": 1, "wait": {"timeoutMs": 30_001}}), "/wait/timeoutMs", "30000"),
        (json!({"pool": "gpu", "gpus": 1, "idempotencyKey": ""}), "/idempotencyKey", "1 to 128"),
        (json!({"pool": "gpu", "gpus": 1, "expiresAt": "tomorrow"}), "/expiresAt", "RFC 3339"),
        (json!({"pool": "gpu", "gpus": 1, "binding": "kubernets"}), "/binding", "kubernetes"),
        (json!({"pool": "gpu", "gpus": 1, "selector": {"a b": "c"}}), "/selector", "label key"),
    ];
    for (body, at, says) in cases {
        let (pointer, message) = refusal::<reservations::Create>(body.clone());
        assert_eq!(pointer, at, "{body}: {message}");
        assert!(message.contains(says), "{body}: {message}");
    }
}

#[test]
fn fields_that_exclude_each_other_are_refused_together() {
    let both = json!({"pool": "gpu", "gpus": 1, "hours": 2, "expiresAt": "2026-03-01T12:00:00Z"});
    assert_eq!(refusal::<reservations::Create>(both).0, "/expiresAt");
    let nothing = json!({"pool": "gpu"});
    assert!(refusal::<reservations::Create>(nothing).1.contains("asks for nothing"));
    let payload = json!({"node": "a", "kind": "node.reboot", "payload": {"gpus": ["GPU-1"]}});
    assert_eq!(refusal::<commands::Create>(payload).0, "/payload/gpus");
    let plain = json!({"node": "a", "kind": "logs.collect", "payload": {"uploadUrl": "http://x"}});
    assert_eq!(refusal::<commands::Create>(plain).0, "/payload/uploadUrl");
}

#[test]
fn a_system_label_may_be_asked_for_and_not_set() {
    let asked = json!({"pool": "gpu", "gpus": 1, "selector": {"bc.dev/cap.devices.limits": "1"}});
    assert!(parse_request::<reservations::Create>(asked).is_ok());
    let set = json!({"node": "a", "labels": {"bc.dev/cap.devices.limits": "1"}});
    assert!(refusal::<nodes::Update>(set).1.contains("belongs to the system"));
}

#[test]
fn a_null_takes_a_label_away() {
    let request = parse_request::<nodes::Update>(json!({"node": "a", "labels": {"tier": null}}));
    let labels = request.expect("it is valid").labels.expect("it was given");
    assert_eq!(labels.0.get("tier"), Some(&None));
}

#[test]
fn a_secret_does_not_show_in_debug() {
    assert_eq!(format!("{:?}", crate::Secret::new("bct_x".to_owned())), "[secret]");
}

fn uuid() -> uuid::Uuid {
    uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001)
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = "[a-zA-Z/~_.-]{0,12}|pool|node|gpus|wait|timeoutMs|labels|payload|document|limit|cursor";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,70}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(words, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_body_makes_a_parser_panic_and_each_refusal_points_into_it(body in any_json()) {
        for row in METHODS {
            match (row.parse)(body.clone()) {
                // What was taken is taken again in its canonical form, unchanged.
                Ok(canonical) => prop_assert_eq!((row.parse)(canonical.clone()), Ok(canonical)),
                Err(err) => {
                    prop_assert!(err.message.len() < 2_000, "{}: {}", row.name, err.message);
                    let parent = err.pointer.rsplit_once('/').map_or("", |(parent, _)| parent);
                    prop_assert!(body.pointer(parent).is_some(), "{}: {}", row.name, err.pointer);
                }
            }
        }
    }
}
