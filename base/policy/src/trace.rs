//! A decision explained statement by statement, for `policies.simulate`.

use crate::compiled::{Compiled, PolicyRef, Reason, Request, StatementRef};
use crate::document::Effect;
use crate::operator::Operator;
use crate::truth::Truth;

/// What became of one statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementTrace<'c> {
    pub policy: &'c PolicyRef,
    pub sid: &'c str,
    pub effect: Effect,
    /// Whether one of its actions matches.
    pub action: bool,
    /// Whether one of its resources matches.
    pub resource: Truth,
    /// In the order of the text.
    pub conditions: Vec<ConditionTrace<'c>>,
    /// Whether it applies: all of the above match, where unknown counts for a deny and against an allow.
    pub applies: bool,
    /// Whether it is the statement the decision names. At most one is.
    pub decides: bool,
}

/// What became of one condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionTrace<'c> {
    pub operator: Operator,
    pub attribute: &'c str,
    pub truth: Truth,
}

impl Compiled {
    /// Every statement of the set, by policy and then by sid, evaluated in full: also conditions of statements that
    /// fail earlier. Costs time and memory in proportion to the set; not for the request path.
    pub fn explain(&self, request: &Request<'_>) -> Vec<StatementTrace<'_>> {
        let decisive = match self.decide(request).reason {
            Reason::ExplicitDeny(statement) | Reason::Allowed(statement) => Some(statement),
            Reason::NoMatch => None,
        };
        let mut traces: Vec<_> = self
            .bound
            .iter()
            .map(|bound| {
                let statement = &bound.statement;
                let action = statement.matches_action(request.action);
                let resource = statement.matches_resource(request.resource, request.attributes);
                let conditions: Vec<_> = statement
                    .conditions
                    .iter()
                    .map(|condition| ConditionTrace {
                        operator: condition.operator,
                        attribute: &condition.attribute,
                        truth: condition.evaluate(request.attributes),
                    })
                    .collect();
                let applies = action
                    && statement.counts(resource)
                    && conditions.iter().all(|condition| statement.counts(condition.truth));
                let (policy, sid, effect) = (&bound.policy, &*statement.sid, statement.effect);
                StatementTrace { policy, sid, effect, action, resource, conditions, applies, decides: false }
            })
            .collect();
        // A policy bound twice has two equal statements; the decision names the first.
        let is_decisive = |trace: &&mut StatementTrace<'_>| {
            trace.applies && decisive == Some(StatementRef { policy: trace.policy, sid: trace.sid })
        };
        if let Some(trace) = traces.iter_mut().find(is_decisive) {
            trace.decides = true;
        }
        traces
    }
}
