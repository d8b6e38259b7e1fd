//! The sets in our language.

use policy::{Attributes, Compiled, Document, PolicyRef, Request, Value};
use serde_json::json;

use crate::sets::{self, Action, Condition, GROUPS, Resources, Set, Statement, TENANT};

pub struct Engine(Compiled);

impl Engine {
    pub fn new(set: &Set) -> anyhow::Result<Self> {
        let documents = set
            .policies
            .iter()
            .map(|policy| {
                let statements: Vec<_> = policy.statements.iter().enumerate().map(statement).collect();
                Ok(Document::parse(json!({ "statements": statements }).to_string())?)
            })
            .collect::<anyhow::Result<Vec<Document>>>()?;
        let named: Vec<_> = documents
            .iter()
            .enumerate()
            .map(|(at, document)| (PolicyRef::from(format!("pol_{at:03}")), document))
            .collect();
        Ok(Self(Compiled::compile(&named)))
    }

    pub fn allows(&self, request: &Request<'_>) -> bool {
        self.0.decide(request).is_allowed()
    }
}

fn statement((at, statement): (usize, &Statement)) -> serde_json::Value {
    let action = match statement.action {
        Action::One { kind, verb } => format!("compute:{kind}:{verb}"),
        Action::AllOf { kind } => format!("compute:{kind}:*"),
    };
    let resource = match statement.resources {
        Resources::All => "*".to_owned(),
        Resources::Of(what) => format!("compute-{what}/*"),
        Resources::OwnTenant(what) => format!("compute-{what}/${{principal.tenantId}}/*"),
    };
    let mut conditions = serde_json::Map::new();
    for one in &statement.conditions {
        let (operator, attribute, value) = condition(*one);
        conditions.insert(operator.to_owned(), json!({ attribute: value }));
    }
    let effect = if statement.allow { "allow" } else { "deny" };
    json!({
        "sid": format!("S{at}"), "effect": effect, "actions": [action], "resources": [resource],
        "conditions": conditions,
    })
}

fn condition(condition: Condition) -> (&'static str, String, serde_json::Value) {
    let resource = |attribute: &str| format!("resource.{attribute}");
    match condition {
        Condition::TextIs { attribute, values } => ("StringEquals", resource(attribute), json!(values)),
        Condition::AtMost { attribute, value } => {
            ("NumericLessThanEquals", resource(attribute), json!(value))
        }
        Condition::Equals { attribute, value } => ("NumericEquals", resource(attribute), json!(value)),
        Condition::IsTrue { attribute } => ("Bool", resource(attribute), json!(true)),
        Condition::InGroup { group } => {
            ("ForAnyValue:StringEquals", "principal.groups".to_owned(), json!(group))
        }
        Condition::NotFrom { block } => ("NotIpAddress", "request.sourceIp".to_owned(), json!(block)),
    }
}

/// A request with what it borrows.
pub struct Asked {
    action: String,
    resource: String,
    attributes: Attributes<'static>,
}

pub fn requests(set: &Set) -> Vec<Asked> {
    set.requests.iter().map(Asked::of).collect()
}

impl Asked {
    fn of(asked: &sets::Asked) -> Self {
        let name = |attribute: &'static str| -> &'static str { format!("resource.{attribute}").leak() };
        let mut attributes = Attributes::new()
            .with("principal.tenantId", TENANT)
            .with("principal.groups", GROUPS.into_iter().collect::<Value<'_>>())
            .with("request.sourceIp", std::net::IpAddr::from(asked.source_ip));
        for (attribute, text) in &asked.texts {
            attributes = attributes.with(name(attribute), *text);
        }
        for (attribute, number) in &asked.numbers {
            attributes = attributes.with(name(attribute), *number);
        }
        for (attribute, flag) in &asked.flags {
            attributes = attributes.with(name(attribute), *flag);
        }
        Self {
            action: format!("compute:{}:{}", asked.kind, asked.verb),
            resource: format!("compute-{}/{TENANT}/x_01k5w", asked.resource_type),
            attributes,
        }
    }

    pub fn request(&self) -> Request<'_> {
        Request { action: &self.action, resource: &self.resource, attributes: &self.attributes }
    }
}
