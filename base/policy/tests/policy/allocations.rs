#![allow(unsafe_code)]
//! A decision allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use policy::{Attributes, Compiled, Number, PolicyRef, Request, Value};
use serde_json::json;

/// The system's allocator, counting per thread, so that tests running beside this one do not show.
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down has nothing left to measure.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every method hands its arguments unchanged to the system's allocator, which upholds the contract; counting
// touches a constant-initialised thread-local without a destructor and so never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds `alloc_zeroed`'s contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: every block comes from the system's allocator, and the caller upholds `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: every block comes from the system's allocator, and the caller upholds `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

fn allocations_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let result = work();
    (ALLOCATIONS.get() - before, result)
}

#[test]
fn the_counter_counts() {
    let (allocations, _) = allocations_of(|| std::hint::black_box(vec![1u8; 100]));
    assert_eq!(allocations, 1);
}

/// Every operator, with every prefix and suffix, over several policies.
fn every_operator() -> Compiled {
    let documents: Vec<_> = policy::Operator::all()
        .zip(0..)
        .map(|(operator, at)| {
            let values = match operator.comparison.name() {
                name if name.starts_with("String") => {
                    json!(["x", "${principal.tenantId}", "a*b?${principal.none}"])
                }
                name if name.starts_with("Numeric") => json!([1, 0.5]),
                name if name.starts_with("Date") => json!("2026-01-01T00:00:00Z"),
                "Bool" | "Null" => json!(true),
                _ => json!(["10.0.0.0/8", "2001:db8::/32"]),
            };
            let statement = |sid: &str, effect: &str, attribute: &str| {
                json!({
                    "sid": sid, "effect": effect, "actions": ["do:*", "do:i?", "*:it"],
                    "resources": ["some/${principal.tenantId}*", "some/*"],
                    "conditions": { operator.to_string(): { attribute: values } }
                })
            };
            let attributes =
                ["text", "number", "bool", "time", "ip", "texts", "null", "none", "rfc3339", "garbage"];
            let statements: Vec<_> = attributes
                .iter()
                .flat_map(|name| ["allow", "deny"].map(|effect| (effect, name)))
                .map(|(effect, name)| {
                    statement(&format!("{effect}-{name}"), effect, &format!("resource.{name}"))
                })
                .collect();
            (PolicyRef::from(format!("p{at}")), crate::document(&json!({ "statements": statements })))
        })
        .collect();
    Compiled::compile(&documents.iter().map(|(name, document)| (name.clone(), document)).collect::<Vec<_>>())
}

fn every_type() -> Attributes<'static> {
    Attributes::new()
        .with("principal.tenantId", "thing")
        .with("resource.text", "aXbY")
        .with("resource.number", Number::from(1))
        .with("resource.bool", true)
        .with("resource.time", Value::Time(5))
        .with("resource.ip", std::net::IpAddr::from([10, 0, 0, 1]))
        .with("resource.texts", ["x", "y", "*"].into_iter().collect::<Value<'_>>())
        .with("resource.null", Value::Null)
        .with("resource.rfc3339", "2026-01-01T00:00:00.25+01:00")
        .with("resource.garbage", "2026-01-01T99:00:00Z")
}

#[test]
fn a_decision_allocates_nothing() {
    let compiled = every_operator();
    let attributes = every_type();
    let request = Request { action: "do:it", resource: "some/thing", attributes: &attributes };
    // Explaining evaluates every condition there is: that the set reaches all of them is checked on its traces.
    let traces = compiled.explain(&request);
    assert!(traces.iter().all(|trace| trace.action && trace.conditions.len() == 1));
    assert!(traces.iter().any(|trace| trace.applies) && traces.iter().any(|trace| !trace.applies));

    let (allocations, decision) = allocations_of(|| compiled.decide(&request));
    assert_eq!(allocations, 0, "{decision:?}");
    let empty = Attributes::new();
    let request = Request { action: "do:it", resource: "other", attributes: &empty };
    let (allocations, decision) = allocations_of(|| compiled.decide(&request));
    assert_eq!(allocations, 0, "{decision:?}");
}

#[test]
fn evaluating_any_condition_allocates_nothing() {
    let attributes = every_type();
    for operator in policy::Operator::all() {
        for attribute in
            ["text", "number", "bool", "time", "ip", "texts", "null", "none", "rfc3339", "garbage"]
        {
            let values = match operator.comparison.name() {
                name if name.starts_with("String") => {
                    json!(["${principal.tenantId}", "a*b?${principal.none}"])
                }
                name if name.starts_with("Numeric") => json!(1),
                name if name.starts_with("Date") => json!("2026-01-01T00:00:00Z"),
                "Bool" | "Null" => json!(true),
                _ => json!(["10.0.0.0/8", "2001:db8::/32"]),
            };
            let conditions = json!({ operator.to_string(): { format!("resource.{attribute}"): values } });
            let document = crate::document(&crate::on_everything("allow", &conditions));
            let statement = document.statements().next().expect("one statement");
            let (allocations, truth) = allocations_of(|| statement.conditions()[0].evaluate(&attributes));
            assert_eq!(allocations, 0, "{operator} {attribute} {truth:?}");
        }
    }
}
