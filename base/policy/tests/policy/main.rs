//! The language from outside: tables for every operator, an independent interpreter to compare with, and the
//! promises a decision makes.

mod allocations;
mod operators;
mod policies;
mod properties;
mod reference;

use policy::{Attributes, Compiled, Document, Effect, Policy, PolicyRef, Reason, Request, StatementRef};
use serde_json::{Value as Json, json};

#[global_allocator]
static COUNTING: allocations::Counting = allocations::Counting;

/// Parses a document that the test knows to be well formed.
fn document(json: &Json) -> Document {
    match Policy::parse(json.to_string()) {
        Ok(document) => document,
        Err(error) => panic!("{error}: {json}"),
    }
}

/// Binds one policy named "p".
fn bind(json: &Json) -> Compiled {
    Compiled::compile(&[(PolicyRef::from("p"), &document(json))])
}

/// A document of one statement on everything, with these conditions.
fn on_everything(effect: &str, conditions: &Json) -> Json {
    json!({ "statements": [
        { "sid": "One", "effect": effect, "actions": ["*"], "resources": ["*"], "conditions": conditions }
    ]})
}

/// What a set answers to `do:it` on `some/thing`.
fn decide(compiled: &Compiled, attributes: &Attributes<'_>) -> Effect {
    compiled.decide(&Request { action: "do:it", resource: "some/thing", attributes }).effect
}

/// The sid that decided.
fn sid<'c>(reason: Reason<'c>) -> Option<&'c str> {
    match reason {
        Reason::ExplicitDeny(StatementRef { sid, .. }) | Reason::Allowed(StatementRef { sid, .. }) => {
            Some(sid)
        }
        Reason::NoMatch => None,
    }
}
