//! A set of policies bound to a principal, and the decision.

use std::fmt;
use std::sync::Arc;

use crate::document::{Document, Effect, Statement};
use crate::index::{Hit, Index};
use crate::value::Attributes;

/// The caller's name for a policy, such as its id. It comes back in reasons and traces and orders statements of
/// different policies among each other; it carries no other meaning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyRef(Arc<str>);

impl PolicyRef {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for PolicyRef {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is to be decided.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Such as `compute:instances:create`. Literal: a `*` in it is no wildcard.
    pub action: &'a str,
    /// Such as `compute-instance/inst_01k5w…`. Literal as well.
    pub resource: &'a str,
    pub attributes: &'a Attributes<'a>,
}

/// The answer, and the statement that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'c> {
    pub effect: Effect,
    pub reason: Reason<'c>,
}

impl Decision<'_> {
    pub fn is_allowed(&self) -> bool {
        self.effect == Effect::Allow
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason<'c> {
    /// A deny statement applies. Of several, the first by policy and then by sid.
    ExplicitDeny(StatementRef<'c>),
    /// An allow statement applies and no deny statement does. Of several, the first by policy and then by sid.
    Allowed(StatementRef<'c>),
    /// No statement applies.
    NoMatch,
}

/// A statement of a bound policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementRef<'c> {
    pub policy: &'c PolicyRef,
    pub sid: &'c str,
}

/// A set of policies, indexed by action. Immutable; share it in an `Arc` between requests.
///
/// The set is one list of permissions: what limits a principal (a delegation, a boundary) is a set of its own, and the
/// request must be allowed by each.
#[derive(Debug, Default)]
pub struct Compiled {
    /// By policy and sid, so that the order in which policies are bound and written never shows.
    pub(crate) bound: Vec<Bound>,
    denies: Index,
    allows: Index,
}

#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) policy: PolicyRef,
    pub(crate) statement: Arc<Statement>,
}

impl Compiled {
    /// Binds policies. Costs the sorting of their actions; the documents' statements are shared, not copied. An empty
    /// set denies everything.
    pub fn compile(policies: &[(PolicyRef, &Document)]) -> Self {
        let mut bound: Vec<Bound> = policies
            .iter()
            .flat_map(|(policy, document)| {
                let bind = |statement: &Arc<Statement>| Bound {
                    policy: policy.clone(),
                    statement: Arc::clone(statement),
                };
                document.statements.iter().map(bind)
            })
            .collect();
        bound.sort_by(|a, b| (&a.policy, &a.statement.sid).cmp(&(&b.policy, &b.statement.sid)));
        let index = |effect| {
            let of_effect = (0..).zip(&bound).filter(move |(_, bound)| bound.statement.effect == effect);
            Index::build(
                of_effect.flat_map(|(at, bound)| bound.statement.actions.iter().map(move |p| (at, p))),
            )
        };
        let (denies, allows) = (index(Effect::Deny), index(Effect::Allow));
        Self { bound, denies, allows }
    }

    /// Decides. Allocates nothing, and looks only at statements with an action pattern that starts like the action.
    pub fn decide(&self, request: &Request<'_>) -> Decision<'_> {
        if let Some(at) = self.first(&self.denies, request) {
            return Decision { effect: Effect::Deny, reason: Reason::ExplicitDeny(self.statement(at)) };
        }
        match self.first(&self.allows, request) {
            Some(at) => Decision { effect: Effect::Allow, reason: Reason::Allowed(self.statement(at)) },
            None => Decision { effect: Effect::Deny, reason: Reason::NoMatch },
        }
    }

    /// The first statement of the index that applies.
    fn first(&self, index: &Index, request: &Request<'_>) -> Option<u32> {
        let mut first = u32::MAX;
        index.visit(request.action, |Hit { statement: at, certain }| {
            if at >= first {
                return;
            }
            let statement = &self.bound[at as usize].statement;
            if (certain || statement.matches_action(request.action))
                && statement.applies(request.resource, request.attributes)
            {
                first = at;
            }
        });
        (first != u32::MAX).then_some(first)
    }

    fn statement(&self, at: u32) -> StatementRef<'_> {
        let bound = &self.bound[at as usize];
        StatementRef { policy: &bound.policy, sid: &bound.statement.sid }
    }
}
