use serde_json::json;

use super::*;

#[test]
fn the_last_value_of_a_name_stands() {
    let attributes =
        Attributes::new().with("resource.vcpu", 4).with("principal.tenantId", "t1").with("resource.vcpu", 8);
    assert_eq!(attributes.get("resource.vcpu"), Some(&Value::Num(8.into())));
    assert_eq!(attributes.get("resource.gpus"), None);
    let names: Vec<_> = attributes.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn json_becomes_typed_attributes() {
    let json = json!({
        "resource.vcpu": 8,
        "resource.price": 0.1,
        "resource.imageVerified": true,
        "resource.gpuModel": null,
        "principal.groups": ["ops", "dev"],
        "request.time": "1970-01-01T00:00:01Z",
        "request.sourceIp": "10.0.0.1",
    });
    let expected = Attributes::new()
        .with("resource.vcpu", 8)
        .with("resource.price", Number::from_nanos(100_000_000))
        .with("resource.imageVerified", true)
        .with("resource.gpuModel", Value::Null)
        .with("principal.groups", ["ops", "dev"].into_iter().collect::<Value<'_>>())
        .with("request.time", Value::Time(1_000_000))
        .with("request.sourceIp", IpAddr::from([10, 0, 0, 1]));
    assert_eq!(Attributes::from_json(&json), Ok(expected));
}

#[test]
fn json_that_is_no_attribute_is_refused_where_it_stands() {
    let long = "x".repeat(ATTRIBUTE_TEXT_BYTES_MAX + 1);
    let many = vec![0; ATTRIBUTE_ELEMENTS_MAX + 1];
    for (json, pointer) in [
        (json!([]), ""),
        (json!({"vcpu": 8}), "/vcpu"),
        (json!({"resource.a/b": {}}), "/resource.a~1b"),
        (json!({"resource.x": [[1]]}), "/resource.x"),
        (json!({"resource.x": 1e-10}), "/resource.x"),
        (json!({"resource.x": long}), "/resource.x"),
        (json!({"resource.x": many}), "/resource.x"),
        (json!({"request.time": 5}), "/request.time"),
        (json!({"request.sourceIp": "here"}), "/request.sourceIp"),
        (json!({"request.mfa": true}), "/request.mfa"),
    ] {
        let error = Attributes::from_json(&json).expect_err(pointer);
        assert_eq!(error.pointer, pointer, "{error}");
    }
    let crowd: serde_json::Map<_, _> =
        (0..=ATTRIBUTES_MAX).map(|at| (format!("resource.a{at}"), json!(1))).collect();
    assert!(Attributes::from_json(&crowd.into()).is_err());
}

proptest::proptest! {
    #[test]
    fn attributes_are_a_map(entries in proptest::collection::vec(("[a-c]{0,2}[x-z]?(.12345678)?", 0i64..100), 0..40)) {
        let mut attributes = Attributes::new();
        for (name, value) in &entries {
            attributes.set(name.as_str(), *value);
        }
        let map: std::collections::BTreeMap<_, _> = entries.iter().cloned().collect();
        proptest::prop_assert_eq!(attributes.iter().count(), map.len());
        for (name, value) in &map {
            proptest::prop_assert_eq!(attributes.get(name), Some(&Value::from(*value)));
        }
        proptest::prop_assert_eq!(attributes.get("d"), None);
        // However they were put in, equal attributes are equal.
        let reversed = map.iter().rev().fold(Attributes::new(), |all, (name, value)| all.with(name.as_str(), *value));
        proptest::prop_assert_eq!(attributes, reversed);
    }
}
