use super::*;

#[test]
fn names_in_a_namespace_are_known() {
    for name in
        ["resource.vcpu", "principal.tenantId", "resource.labels.example.com/team", "request.sourceIp"]
    {
        assert_eq!(check(name), Ok(()), "{name}");
    }
}

#[test]
fn other_names_are_refused_with_what_was_meant() {
    for (name, meant) in [
        ("resorce.vcpu", Some("resource.vcpu")),
        ("request.sourceip", Some("request.sourceIp")),
        ("request.now", None),
        ("aws.vcpu", None),
        ("vcpu", None),
        ("", None),
    ] {
        let expected = Problem::UnknownName {
            what: "attribute",
            given: name.to_owned(),
            meant: meant.map(str::to_owned),
        };
        assert_eq!(check(name), Err(expected), "{name}");
    }
    for name in ["resource.", "resource. vcpu", "resource..x", "principal.é", "resource.${x}"] {
        assert!(matches!(check(name), Err(Problem::Malformed { .. })), "{name}");
    }
    assert!(matches!(check(&format!("resource.{}", "a".repeat(200))), Err(Problem::TooLong { .. })));
}

#[test]
fn every_request_attribute_has_a_type_and_passes_the_check() {
    for name in REQUEST {
        assert!(kind(name).is_some() && check(name).is_ok(), "{name}");
    }
}
