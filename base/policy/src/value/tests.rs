use serde_json::json;

use super::*;

#[test]
fn attributes_stay_sorted_and_the_last_value_stands() {
    let attributes =
        Attributes::new().with("resource.vcpu", 4).with("principal.tenantId", "t1").with("resource.vcpu", 8);
    assert_eq!(attributes.get("resource.vcpu"), Some(&Value::Num(8.into())));
    assert_eq!(attributes.get("resource.gpus"), None);
    assert_eq!(
        attributes.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        ["principal.tenantId", "resource.vcpu"]
    );
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
