//! One condition: an operator, an attribute and values.

use std::slice;

use crate::net::Net;
use crate::number::Number;
use crate::operator::{Comparison, Operator, Over};
use crate::template::Template;
use crate::truth::{Truth, Unknown};
use crate::value::{Attributes, Value};

/// A condition of a statement, as parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub(crate) operator: Operator,
    pub(crate) attribute: Box<str>,
    pub(crate) values: Values,
}

/// The values, in the type the operator compares. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Values {
    Texts(Box<[Template]>),
    Numbers(Box<[Number]>),
    Times(Box<[i64]>),
    /// Of `Bool` and `Null`.
    Bools(Box<[bool]>),
    Nets(Box<[Net]>),
}

impl Condition {
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The full name of the attribute.
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// Whether the condition holds for these attributes. Allocates nothing.
    pub fn evaluate(&self, attributes: &Attributes<'_>) -> Truth {
        let value = attributes.get(&self.attribute).filter(|value| !matches!(value, Value::Null));
        if self.operator.comparison == Comparison::Null {
            return self.presence(value.is_some());
        }
        let Some(value) = value else {
            return if self.operator.if_exists { Truth::True } else { Truth::Unknown(Unknown::Missing) };
        };
        let elements = match value {
            Value::List(elements) => elements.as_slice(),
            single => slice::from_ref(single),
        };
        let each = elements.iter().map(|element| self.compare(element, attributes));
        match self.operator.over {
            Over::One => self.compare(value, attributes),
            Over::Any => Truth::any(each),
            Over::All => Truth::all(each),
        }
    }

    fn presence(&self, present: bool) -> Truth {
        match &self.values {
            Values::Bools(absent) => absent.contains(&!present).into(),
            Values::Texts(_) | Values::Numbers(_) | Values::Times(_) | Values::Nets(_) => {
                Truth::Unknown(Unknown::WrongType)
            }
        }
    }

    /// Holds a single value against the condition's values.
    fn compare(&self, value: &Value<'_>, attributes: &Attributes<'_>) -> Truth {
        let comparison = self.operator.comparison;
        let relation = comparison.relation();
        let matched = match &self.values {
            Values::Texts(templates) => match value {
                Value::Str(text) => {
                    let ignore_case = comparison.ignores_case();
                    Truth::any(
                        templates.iter().map(|template| template.matches(text, attributes, ignore_case)),
                    )
                }
                _ => Truth::Unknown(Unknown::WrongType),
            },
            Values::Numbers(numbers) => match value {
                Value::Num(given) => numbers.iter().any(|number| relation.holds(*given, *number)).into(),
                _ => Truth::Unknown(Unknown::WrongType),
            },
            Values::Times(times) => match value.time() {
                Some(given) => times.iter().any(|time| relation.holds(given, *time)).into(),
                None => Truth::Unknown(Unknown::WrongType),
            },
            Values::Bools(bools) => match value {
                Value::Bool(given) => bools.contains(given).into(),
                _ => Truth::Unknown(Unknown::WrongType),
            },
            Values::Nets(nets) => match value.address() {
                Some(given) => nets.iter().any(|net| net.contains(given)).into(),
                None => Truth::Unknown(Unknown::WrongType),
            },
        };
        if comparison.negated() { matched.not() } else { matched }
    }
}
