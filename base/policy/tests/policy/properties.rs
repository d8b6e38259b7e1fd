//! What holds for every set of policies and every request, over a vocabulary small enough that patterns, values and
//! requests meet often.

use policy::{Attributes, Compiled, Document, Effect, PolicyRef, Reason, Request};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value as Json, json};

use super::reference::{self, Facts};
use super::{bind, document, sid};

const ATTRIBUTES: [&str; 4] = ["resource.a", "resource.b", "principal.x", "principal.y"];

fn texts() -> impl Strategy<Value = String> + Clone {
    select(vec!["a", "b", "ab", "a*", "*", "${principal.x}", "a${principal.y}?", "${resource.a}*", "?"])
        .prop_map(str::to_owned)
}

fn one_or_many(value: impl Strategy<Value = Json> + Clone) -> impl Strategy<Value = Json> {
    prop_oneof![value.clone(), prop::collection::vec(value, 1..3).prop_map(Json::from)]
}

/// A whole condition operator with its values.
fn test() -> impl Strategy<Value = (String, Json)> {
    let string = (
        select(vec!["StringEquals", "StringNotEquals", "StringLike", "StringNotLike"]),
        one_or_many(texts().prop_map(Json::from)),
    );
    let numeric = (
        select(vec![
            "NumericEquals",
            "NumericNotEquals",
            "NumericLessThan",
            "NumericLessThanEquals",
            "NumericGreaterThan",
            "NumericGreaterThanEquals",
        ]),
        one_or_many(select(vec![json!(0), json!(1), json!(1.5), json!(-2)])),
    );
    let boolean = (Just("Bool"), one_or_many(any::<bool>().prop_map(Json::from)));
    let over = select(vec!["", "", "ForAnyValue:", "ForAllValues:"]);
    let suffix = select(vec!["", "", "IfExists"]);
    prop_oneof![
        4 => (over, prop_oneof![string, numeric, boolean], suffix)
            .prop_map(|(over, (name, values), suffix)| (format!("{over}{name}{suffix}"), values)),
        1 => any::<bool>().prop_map(|absent| ("Null".to_owned(), json!(absent))),
    ]
}

fn conditions() -> impl Strategy<Value = Json> {
    prop::collection::vec((test(), select(ATTRIBUTES.to_vec())), 0..3).prop_map(|tests| {
        let mut conditions = Map::new();
        for ((operator, values), attribute) in tests {
            conditions.insert(operator, json!({ attribute: values }));
        }
        conditions.into()
    })
}

fn statement() -> impl Strategy<Value = Json> {
    let action =
        select(vec!["*", "c:*", "c:i:*", "c:i:get", "c:i:g?t", "c:*:get", "c:n:get", "*:get", "c:i:ge*"]);
    let resource =
        select(vec!["*", "i/*", "i/a", "i/?", "i/${principal.x}", "*/${resource.a}*", "n/${principal.y}"]);
    (
        select(vec!["allow", "allow", "deny"]),
        prop::collection::vec(action, 1..3),
        prop::collection::vec(resource, 1..3),
        conditions(),
    )
        .prop_map(|(effect, actions, resources, conditions)| {
            json!({ "effect": effect, "actions": actions, "resources": resources, "conditions": conditions })
        })
}

fn documents() -> impl Strategy<Value = Vec<Json>> {
    let document = prop::collection::vec(statement(), 1..6).prop_map(|mut statements| {
        for (at, statement) in statements.iter_mut().enumerate() {
            statement["sid"] = json!(format!("S{at}"));
        }
        json!({ "statements": statements })
    });
    prop::collection::vec(document, 0..4)
}

fn facts() -> impl Strategy<Value = Facts> {
    let single = prop_oneof![
        4 => select(vec!["a", "b", "ab", "*", ""]).prop_map(Json::from),
        2 => select(vec![json!(0), json!(1), json!(1.5), json!(-2), json!(3)]),
        2 => any::<bool>().prop_map(Json::from),
        1 => Just(Json::Null),
    ];
    let value =
        prop_oneof![3 => single.clone(), 1 => prop::collection::vec(single, 0..3).prop_map(Json::from)];
    prop::collection::btree_map(select(ATTRIBUTES.to_vec()).prop_map(str::to_owned), value, 0..4)
}

#[derive(Debug, Clone)]
struct Asked {
    action: &'static str,
    resource: &'static str,
    facts: Facts,
}

fn asked() -> impl Strategy<Value = Asked> {
    let action = select(vec!["c:i:get", "c:i:create", "c:n:get", "iam:get", "c:i"]);
    let resource = select(vec!["i/a", "i/b", "i/ab", "n/a", "n/*", "i/"]);
    (action, resource, facts()).prop_map(|(action, resource, facts)| Asked { action, resource, facts })
}

impl Asked {
    fn attributes(&self) -> Attributes<'static> {
        let json = Json::Object(self.facts.clone().into_iter().collect());
        Attributes::from_json(&json).expect("the vocabulary is well formed")
    }
}

fn compile(documents: &[Json]) -> Compiled {
    let parsed: Vec<Document> = documents.iter().map(document).collect();
    let name = |at: usize| PolicyRef::from(format!("p{at}"));
    Compiled::compile(
        &parsed.iter().enumerate().map(|(at, document)| (name(at), document)).collect::<Vec<_>>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_compiled_set_decides_as_the_documents_say(documents in documents(), asked in asked()) {
        let compiled = compile(&documents);
        let attributes = asked.attributes();
        let request = Request { action: asked.action, resource: asked.resource, attributes: &attributes };
        let expected = reference::allows(&documents, asked.action, asked.resource, &asked.facts);
        prop_assert_eq!(compiled.decide(&request).is_allowed(), expected);
    }

    #[test]
    fn an_explanation_agrees_with_the_decision(documents in documents(), asked in asked()) {
        let compiled = compile(&documents);
        let attributes = asked.attributes();
        let request = Request { action: asked.action, resource: asked.resource, attributes: &attributes };
        let decision = compiled.decide(&request);
        let traces = compiled.explain(&request);
        let applies = |effect| traces.iter().any(|trace| trace.applies && trace.effect == effect);
        prop_assert_eq!(decision.is_allowed(), applies(Effect::Allow) && !applies(Effect::Deny));
        // Traces are sorted by policy and sid, and the first that applies with the effect decides.
        let first = traces.iter().position(|trace| trace.applies && trace.effect == decision.effect);
        prop_assert_eq!(traces.iter().position(|trace| trace.decides), first);
        prop_assert!(traces.iter().filter(|trace| trace.decides).count() <= 1);
        prop_assert_eq!(first.map(|at| traces[at].sid), sid(decision.reason));
        prop_assert!(traces.is_sorted_by_key(|trace| (trace.policy, trace.sid)));
    }

    #[test]
    fn a_deny_on_everything_always_wins(documents in documents(), asked in asked()) {
        let mut documents = documents;
        documents.insert(documents.len() / 2, super::on_everything("deny", &json!({})));
        let compiled = compile(&documents);
        let attributes = asked.attributes();
        let request = Request { action: asked.action, resource: asked.resource, attributes: &attributes };
        let decision = compiled.decide(&request);
        prop_assert!(matches!(decision.reason, Reason::ExplicitDeny(_)), "{:?}", decision);
        prop_assert!(!decision.is_allowed());
    }

    #[test]
    fn a_statement_that_is_added_as_a_deny_never_allows_more(
        documents in documents(), mut added in statement(), asked in asked()
    ) {
        added["effect"] = json!("deny");
        added["sid"] = json!("Added");
        let attributes = asked.attributes();
        let request = Request { action: asked.action, resource: asked.resource, attributes: &attributes };
        let before = compile(&documents).decide(&request).is_allowed();
        let mut documents = documents;
        documents.push(json!({ "statements": [added] }));
        let after = compile(&documents).decide(&request).is_allowed();
        prop_assert!(before || !after);
    }

    #[test]
    fn the_order_of_statements_changes_nothing(
        statements in prop::collection::vec(statement(), 1..8), swaps in prop::collection::vec(any::<(Index, Index)>(), 0..8), asked in asked()
    ) {
        let mut statements = statements;
        for (at, statement) in statements.iter_mut().enumerate() {
            statement["sid"] = json!(format!("S{at}"));
        }
        let written = bind(&json!({ "statements": statements }));
        for (a, b) in swaps {
            let (a, b) = (a.index(statements.len()), b.index(statements.len()));
            statements.swap(a, b);
        }
        let shuffled = bind(&json!({ "statements": statements }));
        let attributes = asked.attributes();
        let request = Request { action: asked.action, resource: asked.resource, attributes: &attributes };
        prop_assert_eq!(written.decide(&request), shuffled.decide(&request));
        prop_assert_eq!(written.explain(&request).len(), shuffled.explain(&request).len());
    }

    #[test]
    fn losing_an_attribute_never_allows_more_without_if_exists_or_null(
        documents in documents(), asked in asked(), lost in select(ATTRIBUTES.to_vec())
    ) {
        let mut documents = documents;
        for statement in documents.iter_mut().flat_map(|document| document["statements"].as_array_mut()).flatten() {
            // With these two a policy says itself that absence is fine.
            let conditions = statement["conditions"].as_object_mut().expect("an object");
            conditions.retain(|operator, _| operator != "Null" && !operator.ends_with("IfExists"));
        }
        let compiled = compile(&documents);
        let decide = |asked: &Asked| {
            let attributes = asked.attributes();
            compiled.decide(&Request { action: asked.action, resource: asked.resource, attributes: &attributes }).is_allowed()
        };
        let mut less = asked.clone();
        less.facts.remove(lost);
        prop_assert!(decide(&asked) || !decide(&less));
    }
}
