//! The sets in Cedar: resources are entities with attributes, kinds of actions are groups of actions.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityUid, PolicySet, Request, RestrictedExpression,
};

use crate::sets::{Action, Asked, Condition, GROUPS, KINDS, Resources, Set, Statement, TENANT, VERBS};

pub struct Engine {
    authorizer: Authorizer,
    policies: PolicySet,
    requests: Vec<(Request, Entities)>,
}

impl Engine {
    pub fn new(set: &Set) -> anyhow::Result<Self> {
        let text: String = set.policies.iter().flat_map(|policy| &policy.statements).map(statement).collect();
        let requests = set.requests.iter().map(request).collect::<anyhow::Result<_>>()?;
        Ok(Self { authorizer: Authorizer::new(), policies: PolicySet::from_str(&text)?, requests })
    }

    pub fn allows(&self, at: usize) -> bool {
        let (request, entities) = &self.requests[at];
        self.authorizer.is_authorized(request, &self.policies, entities).decision() == Decision::Allow
    }
}

fn statement(statement: &Statement) -> String {
    let effect = if statement.allow { "permit" } else { "forbid" };
    let action = match statement.action {
        Action::One { kind, verb } => format!(r#"action == Action::"compute:{kind}:{verb}""#),
        Action::AllOf { kind } => format!(r#"action in Action::"compute:{kind}:*""#),
    };
    let (resource, own) = match statement.resources {
        Resources::All => ("resource".to_owned(), None),
        Resources::Of(what) => (format!("resource is {}", entity_type(what)), None),
        Resources::OwnTenant(what) => (
            format!("resource is {}", entity_type(what)),
            Some("resource.tenantId == principal.tenantId".to_owned()),
        ),
    };
    let all: Vec<String> = own.into_iter().chain(statement.conditions.iter().map(condition)).collect();
    format!("{effect} (principal, {action}, {resource}) when {{ {} }};\n", all.join(" && "))
}

fn entity_type(what: &str) -> &'static str {
    match what {
        "reservation" => "Reservation",
        _ => "Thing",
    }
}

fn condition(condition: &Condition) -> String {
    match condition {
        Condition::TextIs { attribute, values: [value] } => format!(r#"resource.{attribute} == "{value}""#),
        Condition::TextIs { attribute, values } => {
            let listed: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
            format!("[{}].contains(resource.{attribute})", listed.join(", "))
        }
        Condition::AtMost { attribute, value } => format!("resource.{attribute} <= {value}"),
        Condition::Equals { attribute, value } => format!("resource.{attribute} == {value}"),
        Condition::IsTrue { attribute } => format!("resource.{attribute}"),
        Condition::InGroup { group } => format!(r#"principal.groups.contains("{group}")"#),
        Condition::NotFrom { block } => format!(r#"!context.sourceIp.isInRange(ip("{block}"))"#),
    }
}

fn request(asked: &Asked) -> anyhow::Result<(Request, Entities)> {
    let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
    let named = |name: &str, value| (name.to_owned(), value);
    let principal = uid("User", "usr_01")?;
    let resource = uid(entity_type(asked.resource_type), "x_01k5w")?;
    let groups = RestrictedExpression::new_set(GROUPS.map(text));
    let caller = HashMap::from([named("tenantId", text(TENANT)), named("groups", groups)]);
    let texts = asked.texts.iter().map(|(name, value)| named(name, text(value)));
    let numbers =
        asked.numbers.iter().map(|(name, value)| named(name, RestrictedExpression::new_long(*value)));
    let flags = asked.flags.iter().map(|(name, value)| named(name, RestrictedExpression::new_bool(*value)));
    let about = texts.chain(numbers).chain(flags).chain([named("tenantId", text(TENANT))]).collect();
    let mut entities = vec![
        Entity::new(principal.clone(), caller, HashSet::new())?,
        Entity::new(resource.clone(), about, HashSet::new())?,
    ];
    entities.extend(actions()?);
    let source_ip = RestrictedExpression::new_ip(asked.source_ip.to_string());
    let context = Context::from_pairs([named("sourceIp", source_ip)])?;
    let action = uid("Action", &format!("compute:{}:{}", asked.kind, asked.verb))?;
    let request = Request::new(principal, action, resource, context, None)?;
    Ok((request, Entities::from_entities(entities, None)?))
}

/// Every action, in the group of its kind.
fn actions() -> anyhow::Result<Vec<Entity>> {
    let mut made = Vec::new();
    for kind in KINDS {
        let group = uid("Action", &format!("compute:{kind}:*"))?;
        for verb in VERBS {
            let action = uid("Action", &format!("compute:{kind}:{verb}"))?;
            made.push(Entity::new(action, HashMap::new(), HashSet::from([group.clone()]))?);
        }
        made.push(Entity::new(group, HashMap::new(), HashSet::new())?);
    }
    Ok(made)
}

fn uid(entity_type: &str, id: &str) -> anyhow::Result<EntityUid> {
    Ok(EntityUid::from_str(&format!("{entity_type}::{id:?}"))?)
}
