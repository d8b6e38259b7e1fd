//! The condition operators, one table: a new one is a variant of [`Comparison`].

use std::fmt;

use crate::error::{Problem, nearest, quote};

/// A condition operator as a policy names it: `[ForAnyValue:|ForAllValues:]Comparison[IfExists]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator {
    pub comparison: Comparison,
    pub over: Over,
    /// An absent attribute makes the condition hold.
    pub if_exists: bool,
}

/// Which elements of an attribute must pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// No prefix: the attribute must be a single value.
    One,
    /// `ForAnyValue:`
    Any,
    /// `ForAllValues:`
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    StringEquals,
    StringNotEquals,
    StringEqualsIgnoreCase,
    StringNotEqualsIgnoreCase,
    StringLike,
    StringNotLike,
    NumericEquals,
    NumericNotEquals,
    NumericLessThan,
    NumericLessThanEquals,
    NumericGreaterThan,
    NumericGreaterThanEquals,
    DateEquals,
    DateNotEquals,
    DateLessThan,
    DateLessThanEquals,
    DateGreaterThan,
    DateGreaterThanEquals,
    Bool,
    IpAddress,
    NotIpAddress,
    Null,
}

/// What the values of an operator are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Time,
    Bool,
    Net,
    Presence,
}

impl Kind {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Kind::Text => "a text",
            Kind::Number => "a number",
            Kind::Time => "a time",
            Kind::Bool => "true or false",
            Kind::Net => "an address",
            Kind::Presence => "true or false",
        }
    }
}

/// How an ordered attribute must stand to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Relation {
    pub(crate) fn holds<T: Ord>(self, attribute: T, value: T) -> bool {
        match self {
            Relation::Equal => attribute == value,
            Relation::Less => attribute < value,
            Relation::LessOrEqual => attribute <= value,
            Relation::Greater => attribute > value,
            Relation::GreaterOrEqual => attribute >= value,
        }
    }
}

impl Comparison {
    pub const ALL: [Comparison; 22] = [
        Comparison::StringEquals,
        Comparison::StringNotEquals,
        Comparison::StringEqualsIgnoreCase,
        Comparison::StringNotEqualsIgnoreCase,
        Comparison::StringLike,
        Comparison::StringNotLike,
        Comparison::NumericEquals,
        Comparison::NumericNotEquals,
        Comparison::NumericLessThan,
        Comparison::NumericLessThanEquals,
        Comparison::NumericGreaterThan,
        Comparison::NumericGreaterThanEquals,
        Comparison::DateEquals,
        Comparison::DateNotEquals,
        Comparison::DateLessThan,
        Comparison::DateLessThanEquals,
        Comparison::DateGreaterThan,
        Comparison::DateGreaterThanEquals,
        Comparison::Bool,
        Comparison::IpAddress,
        Comparison::NotIpAddress,
        Comparison::Null,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Comparison::StringEquals => "StringEquals",
            Comparison::StringNotEquals => "StringNotEquals",
            Comparison::StringEqualsIgnoreCase => "StringEqualsIgnoreCase",
            Comparison::StringNotEqualsIgnoreCase => "StringNotEqualsIgnoreCase",
            Comparison::StringLike => "StringLike",
            Comparison::StringNotLike => "StringNotLike",
            Comparison::NumericEquals => "NumericEquals",
            Comparison::NumericNotEquals => "NumericNotEquals",
            Comparison::NumericLessThan => "NumericLessThan",
            Comparison::NumericLessThanEquals => "NumericLessThanEquals",
            Comparison::NumericGreaterThan => "NumericGreaterThan",
            Comparison::NumericGreaterThanEquals => "NumericGreaterThanEquals",
            Comparison::DateEquals => "DateEquals",
            Comparison::DateNotEquals => "DateNotEquals",
            Comparison::DateLessThan => "DateLessThan",
            Comparison::DateLessThanEquals => "DateLessThanEquals",
            Comparison::DateGreaterThan => "DateGreaterThan",
            Comparison::DateGreaterThanEquals => "DateGreaterThanEquals",
            Comparison::Bool => "Bool",
            Comparison::IpAddress => "IpAddress",
            Comparison::NotIpAddress => "NotIpAddress",
            Comparison::Null => "Null",
        }
    }

    /// Whether it holds when none of its values matches, rather than when one does.
    pub const fn negated(self) -> bool {
        match self {
            Comparison::StringNotEquals
            | Comparison::StringNotEqualsIgnoreCase
            | Comparison::StringNotLike
            | Comparison::NumericNotEquals
            | Comparison::DateNotEquals
            | Comparison::NotIpAddress => true,
            Comparison::StringEquals
            | Comparison::StringEqualsIgnoreCase
            | Comparison::StringLike
            | Comparison::NumericEquals
            | Comparison::NumericLessThan
            | Comparison::NumericLessThanEquals
            | Comparison::NumericGreaterThan
            | Comparison::NumericGreaterThanEquals
            | Comparison::DateEquals
            | Comparison::DateLessThan
            | Comparison::DateLessThanEquals
            | Comparison::DateGreaterThan
            | Comparison::DateGreaterThanEquals
            | Comparison::Bool
            | Comparison::IpAddress
            | Comparison::Null => false,
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        match self {
            Comparison::StringEquals
            | Comparison::StringNotEquals
            | Comparison::StringEqualsIgnoreCase
            | Comparison::StringNotEqualsIgnoreCase
            | Comparison::StringLike
            | Comparison::StringNotLike => Kind::Text,
            Comparison::NumericEquals
            | Comparison::NumericNotEquals
            | Comparison::NumericLessThan
            | Comparison::NumericLessThanEquals
            | Comparison::NumericGreaterThan
            | Comparison::NumericGreaterThanEquals => Kind::Number,
            Comparison::DateEquals
            | Comparison::DateNotEquals
            | Comparison::DateLessThan
            | Comparison::DateLessThanEquals
            | Comparison::DateGreaterThan
            | Comparison::DateGreaterThanEquals => Kind::Time,
            Comparison::Bool => Kind::Bool,
            Comparison::IpAddress | Comparison::NotIpAddress => Kind::Net,
            Comparison::Null => Kind::Presence,
        }
    }

    pub(crate) const fn relation(self) -> Relation {
        match self {
            Comparison::NumericLessThan | Comparison::DateLessThan => Relation::Less,
            Comparison::NumericLessThanEquals | Comparison::DateLessThanEquals => Relation::LessOrEqual,
            Comparison::NumericGreaterThan | Comparison::DateGreaterThan => Relation::Greater,
            Comparison::NumericGreaterThanEquals | Comparison::DateGreaterThanEquals => {
                Relation::GreaterOrEqual
            }
            Comparison::StringEquals
            | Comparison::StringNotEquals
            | Comparison::StringEqualsIgnoreCase
            | Comparison::StringNotEqualsIgnoreCase
            | Comparison::StringLike
            | Comparison::StringNotLike
            | Comparison::NumericEquals
            | Comparison::NumericNotEquals
            | Comparison::DateEquals
            | Comparison::DateNotEquals
            | Comparison::Bool
            | Comparison::IpAddress
            | Comparison::NotIpAddress
            | Comparison::Null => Relation::Equal,
        }
    }

    pub(crate) const fn ignores_case(self) -> bool {
        matches!(self, Comparison::StringEqualsIgnoreCase | Comparison::StringNotEqualsIgnoreCase)
    }

    pub(crate) const fn takes_wildcards(self) -> bool {
        matches!(self, Comparison::StringLike | Comparison::StringNotLike)
    }
}

impl Over {
    const fn prefix(self) -> &'static str {
        match self {
            Over::One => "",
            Over::Any => "ForAnyValue:",
            Over::All => "ForAllValues:",
        }
    }
}

impl Operator {
    /// Names are exact, case included. `Null` takes neither prefix nor suffix.
    pub(crate) fn parse(given: &str) -> Result<Self, Problem> {
        let (over, rest) = [Over::Any, Over::All]
            .into_iter()
            .find_map(|over| given.strip_prefix(over.prefix()).map(|rest| (over, rest)))
            .unwrap_or((Over::One, given));
        let (name, if_exists) = match rest.strip_suffix("IfExists") {
            Some(name) => (name, true),
            None => (rest, false),
        };
        let known = Comparison::ALL.into_iter().find(|comparison| comparison.name() == name);
        match known {
            Some(Comparison::Null) if over != Over::One || if_exists => Err(Problem::UnknownName {
                what: "operator",
                given: quote(given),
                meant: Some(Comparison::Null.name().to_owned()),
            }),
            Some(comparison) => Ok(Self { comparison, over, if_exists }),
            None => Err(Problem::UnknownName {
                what: "operator",
                given: quote(given),
                meant: nearest(given, Self::all().map(|operator| operator.to_string())),
            }),
        }
    }

    /// Every operator there is.
    pub fn all() -> impl Iterator<Item = Operator> {
        Comparison::ALL
            .into_iter()
            .flat_map(|comparison| {
                [Over::One, Over::Any, Over::All].into_iter().flat_map(move |over| {
                    [false, true].into_iter().map(move |if_exists| Operator { comparison, over, if_exists })
                })
            })
            .filter(|operator| {
                operator.comparison != Comparison::Null || (operator.over == Over::One && !operator.if_exists)
            })
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.if_exists { "IfExists" } else { "" };
        write!(f, "{}{}{suffix}", self.over.prefix(), self.comparison.name())
    }
}

#[cfg(test)]
mod tests;
