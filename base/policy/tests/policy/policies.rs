//! Whole policies, as operators of a cloud write them.

use policy::{Attributes, Compiled, Effect, PolicyRef, Reason, Request, Truth, Unknown};
use serde_json::json;

use super::{bind, document, sid};

#[test]
fn reserve_bounded_h100_allows_8_gpus_and_denies_9() {
    let policy = bind(&json!({ "statements": [{
        "sid": "ReserveBoundedH100", "effect": "allow",
        "actions": ["compute:reservations:create"], "resources": ["compute-reservation/*"],
        "conditions": {
            "StringEquals": { "resource.gpuModel": "H100" },
            "NumericLessThanEquals": { "resource.gpus": 8 }
        }
    }]}));
    let reserve = |model: &'static str, gpus: u32| {
        let attributes = Attributes::new().with("resource.gpuModel", model).with("resource.gpus", gpus);
        let (action, resource) = ("compute:reservations:create", "compute-reservation/rsv_01");
        policy.decide(&Request { action, resource, attributes: &attributes }).effect
    };
    assert_eq!(reserve("H100", 8), Effect::Allow);
    assert_eq!(reserve("H100", 9), Effect::Deny);
    assert_eq!(reserve("H200", 1), Effect::Deny);
}

#[test]
fn bounded_extend_denies_one_hour_more_than_72() {
    let policy = bind(&json!({ "statements": [{
        "sid": "BoundedExtend", "effect": "allow",
        "actions": ["compute:reservations:extend"], "resources": ["compute-reservation/*"],
        "conditions": { "NumericLessThanEquals": { "resource.totalHours": 72 } }
    }]}));
    let extend = |booked: u32, more: u32| {
        let attributes = Attributes::new().with("resource.totalHours", booked + more);
        let (action, resource) = ("compute:reservations:extend", "compute-reservation/rsv_01");
        policy.decide(&Request { action, resource, attributes: &attributes }).effect
    };
    assert_eq!(extend(48, 24), Effect::Allow);
    assert_eq!(extend(72, 1), Effect::Deny);
}

#[test]
fn a_deny_wins_wherever_it_is_written_and_names_itself() {
    let allow = document(&json!({ "statements": [
        { "sid": "All", "effect": "allow", "actions": ["*"], "resources": ["*"] }
    ]}));
    let deny = document(&json!({ "statements": [
        { "sid": "NoWipe", "effect": "deny", "actions": ["compute:machines:wipe"], "resources": ["*"] }
    ]}));
    let (a, b) = (PolicyRef::from("a"), PolicyRef::from("b"));
    let attributes = Attributes::new();
    for policies in [[(a.clone(), &allow), (b.clone(), &deny)], [(b.clone(), &deny), (a.clone(), &allow)]] {
        let compiled = Compiled::compile(&policies);
        let decide =
            |action| compiled.decide(&Request { action, resource: "machine/1", attributes: &attributes });
        let wipe = decide("compute:machines:wipe");
        assert!(matches!(wipe.reason, Reason::ExplicitDeny(by) if by.sid == "NoWipe" && *by.policy == b));
        assert!(!wipe.is_allowed());
        let deploy = decide("compute:machines:deploy");
        assert!(matches!(deploy.reason, Reason::Allowed(by) if by.sid == "All" && *by.policy == a));
        assert!(deploy.is_allowed());
    }
}

#[test]
fn an_empty_set_denies() {
    let attributes = Attributes::new();
    let request = Request { action: "a:b", resource: "c/d", attributes: &attributes };
    let compiled = Compiled::compile(&[]);
    assert_eq!(compiled.decide(&request).effect, Effect::Deny);
    assert_eq!(compiled.decide(&request).reason, Reason::NoMatch);
    assert_eq!(compiled.explain(&request), []);
}

#[test]
fn a_wildcard_in_a_request_is_only_a_character() {
    let policy = bind(&json!({ "statements": [
        { "sid": "One", "effect": "allow", "actions": ["compute:instances:get"], "resources": ["compute-instance/a"] }
    ]}));
    let attributes = Attributes::new();
    for (action, resource, effect) in [
        ("compute:instances:get", "compute-instance/a", Effect::Allow),
        ("compute:instances:*", "compute-instance/a", Effect::Deny),
        ("compute:instances:get", "*", Effect::Deny),
        ("compute:instances:Get", "compute-instance/a", Effect::Deny),
        ("", "", Effect::Deny),
    ] {
        assert_eq!(
            policy.decide(&Request { action, resource, attributes: &attributes }).effect,
            effect,
            "{action}"
        );
    }
}

#[test]
fn a_tenant_reaches_only_its_own_resources() {
    let policy = bind(&json!({ "statements": [{
        "sid": "OwnTenant", "effect": "allow", "actions": ["compute:*"],
        "resources": ["compute-tenant/${principal.tenantId}", "compute-tenant/${principal.tenantId}/*"],
        "conditions": { "StringEquals": { "resource.tenantId": "${principal.tenantId}" } }
    }]}));
    let effect = |attributes: &Attributes<'_>, resource: &str| {
        policy.decide(&Request { action: "compute:secrets:manage", resource, attributes }).effect
    };
    let of = |principal: &'static str, owner: &'static str| {
        Attributes::new().with("principal.tenantId", principal).with("resource.tenantId", owner)
    };
    assert_eq!(effect(&of("t1", "t1"), "compute-tenant/t1/x"), Effect::Allow);
    assert_eq!(effect(&of("t1", "t2"), "compute-tenant/t1/x"), Effect::Deny);
    assert_eq!(effect(&of("t1", "t1"), "compute-tenant/t10"), Effect::Deny);
    assert_eq!(effect(&of("*", "*"), "compute-tenant/t1"), Effect::Deny);
    assert_eq!(effect(&of("", ""), "compute-tenant/"), Effect::Deny);
    assert_eq!(effect(&Attributes::new().with("resource.tenantId", "t1"), "compute-tenant/t1"), Effect::Deny);
}

#[test]
fn a_deny_on_a_variable_without_a_value_still_denies_what_it_could_mean() {
    let policy = bind(&json!({ "statements": [
        { "sid": "All", "effect": "allow", "actions": ["*"], "resources": ["*"] },
        { "sid": "NotOwn", "effect": "deny", "actions": ["*"], "resources": ["a/${principal.tenantId}"] }
    ]}));
    let attributes = Attributes::new();
    let reason =
        |resource| policy.decide(&Request { action: "do:it", resource, attributes: &attributes }).reason;
    assert_eq!(sid(reason("a/x")), Some("NotOwn"));
    assert_eq!(sid(reason("b/x")), Some("All"));
}

#[test]
fn a_deny_may_be_limited_to_requests_that_carry_the_attribute() {
    let policy = bind(&json!({ "statements": [
        { "sid": "All", "effect": "allow", "actions": ["*"], "resources": ["*"] },
        { "sid": "NoBig", "effect": "deny", "actions": ["*"], "resources": ["*"], "conditions": {
            "NumericGreaterThan": { "resource.gpus": 8 }, "Null": { "resource.gpus": false } } }
    ]}));
    let reason = |attributes: &Attributes<'_>| {
        sid(policy.decide(&Request { action: "do:it", resource: "a/b", attributes }).reason)
            .map(str::to_owned)
    };
    assert_eq!(reason(&Attributes::new()).as_deref(), Some("All"));
    assert_eq!(reason(&Attributes::new().with("resource.gpus", 8)).as_deref(), Some("All"));
    assert_eq!(reason(&Attributes::new().with("resource.gpus", 9)).as_deref(), Some("NoBig"));
    assert_eq!(reason(&Attributes::new().with("resource.gpus", "9")).as_deref(), Some("NoBig"));
}

#[test]
fn an_explanation_shows_every_statement_and_which_one_decided() {
    let policy = bind(&json!({ "statements": [
        { "sid": "C", "effect": "allow", "actions": ["compute:*"], "resources": ["*"],
          "conditions": { "Bool": { "resource.imageVerified": true }, "NumericLessThan": { "resource.vcpu": 8 } } },
        { "sid": "B", "effect": "deny", "actions": ["iam:*"], "resources": ["iam-role/*"] },
        { "sid": "A", "effect": "allow", "actions": ["compute:*"], "resources": ["compute-instance/*"],
          "conditions": { "NumericLessThan": { "resource.vcpu": [2, 16] } } }
    ]}));
    let attributes = Attributes::new().with("resource.vcpu", 8);
    let request = Request {
        action: "compute:instances:create",
        resource: "compute-instance/1",
        attributes: &attributes,
    };
    let traces = policy.explain(&request);
    let shown: Vec<_> = traces.iter().map(|t| (t.sid, t.action, t.resource, t.applies, t.decides)).collect();
    assert_eq!(
        shown,
        [
            ("A", true, Truth::True, true, true),
            ("B", false, Truth::False, false, false),
            ("C", true, Truth::True, false, false),
        ]
    );
    let conditions: Vec<_> =
        traces[2].conditions.iter().map(|c| (c.operator.to_string(), c.attribute, c.truth)).collect();
    assert_eq!(
        conditions,
        [
            ("Bool".to_owned(), "resource.imageVerified", Truth::Unknown(Unknown::Missing)),
            ("NumericLessThan".to_owned(), "resource.vcpu", Truth::False),
        ]
    );
}

#[test]
fn of_two_versions_bound_under_one_name_the_one_that_applies_decides() {
    let version = |action: &str| {
        document(&json!({ "statements": [
            { "sid": "One", "effect": "allow", "actions": [action], "resources": ["*"] }
        ]}))
    };
    let (old, new) = (version("compute:nodes:get"), version("compute:pools:get"));
    let name = PolicyRef::from("p");
    let compiled = Compiled::compile(&[(name.clone(), &old), (name, &new)]);
    let attributes = Attributes::new();
    let request = Request { action: "compute:pools:get", resource: "pool/1", attributes: &attributes };
    let decides: Vec<_> =
        compiled.explain(&request).iter().map(|trace| (trace.applies, trace.decides)).collect();
    assert_eq!(decides, [(false, false), (true, true)]);
}
