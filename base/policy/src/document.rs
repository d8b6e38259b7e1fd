//! A parsed policy. Holding one means it is well formed and within [`crate::limits`].

use std::fmt;
use std::sync::Arc;

use crate::condition::Condition;
use crate::error::ParseError;
use crate::parse;
use crate::template::Template;
use crate::truth::Truth;
use crate::value::Attributes;

/// The language version a document may name; without a `version` it is this one.
pub const VERSION: &str = "2026-01-01";

/// A policy document, checked and with its patterns compiled. Parse once per policy version and keep it; a clone
/// shares the statements.
#[derive(Debug, Clone)]
pub struct Document {
    pub(crate) statements: Arc<[Arc<Statement>]>,
}

impl Document {
    /// Parses a document from JSON text.
    ///
    /// # Errors
    /// The first thing found wrong: see [`crate::Problem`].
    pub fn parse(json: impl AsRef<[u8]>) -> Result<Self, ParseError> {
        parse::document(json.as_ref())
    }

    /// In the order of the text. At least one.
    pub fn statements(&self) -> impl ExactSizeIterator<Item = &Statement> {
        self.statements.iter().map(Arc::as_ref)
    }
}

/// What a statement, or a decision, does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    Allow,
    Deny,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Allow => "allow",
            Effect::Deny => "deny",
        })
    }
}

/// A statement of a document.
#[derive(Debug)]
pub struct Statement {
    pub(crate) sid: Box<str>,
    pub(crate) effect: Effect,
    pub(crate) actions: Box<[Template]>,
    pub(crate) resources: Box<[Template]>,
    pub(crate) conditions: Box<[Condition]>,
}

impl Statement {
    /// Unique in its document.
    pub fn sid(&self) -> &str {
        &self.sid
    }

    pub fn effect(&self) -> Effect {
        self.effect
    }

    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    pub(crate) fn matches_action(&self, action: &str) -> bool {
        let no_variables = Attributes::new();
        self.actions.iter().any(|pattern| pattern.matches(action, &no_variables, false) == Truth::True)
    }

    pub(crate) fn matches_resource(&self, resource: &str, attributes: &Attributes<'_>) -> Truth {
        Truth::any(self.resources.iter().map(|pattern| pattern.matches(resource, attributes, false)))
    }

    /// Whether the statement applies to a request whose action it matches.
    pub(crate) fn applies(&self, resource: &str, attributes: &Attributes<'_>) -> bool {
        self.counts(self.matches_resource(resource, attributes))
            && self.conditions.iter().all(|condition| self.counts(condition.evaluate(attributes)))
    }

    /// What is unknown denies: it counts for a deny and against an allow.
    pub(crate) fn counts(&self, truth: Truth) -> bool {
        match truth {
            Truth::True => true,
            Truth::False => false,
            Truth::Unknown(_) => self.effect == Effect::Deny,
        }
    }
}
