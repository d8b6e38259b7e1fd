//! The IAM policy language: parse, compile, decide. Pure: no I/O, no clock, no randomness.
//!
//! ```text
//! bytes --Document::parse--> Document --Compiled::compile--> Compiled --decide--> Decision
//!          once per version             once per principal             per request, allocates nothing
//! ```
//!
//! # The document
//!
//! ```json
//! { "version": "2026-01-01",
//!   "statements": [{
//!     "sid": "SmallVms", "effect": "allow",
//!     "actions": ["compute:instances:*"], "resources": ["compute-instance/*"],
//!     "conditions": { "NumericLessThanEquals": { "resource.vcpu": 8 } } }] }
//! ```
//!
//! `version` and `conditions` may be left out; everything else is required. Parsing is strict: an unknown or
//! repeated field, an unknown operator or attribute namespace, a value of the wrong type and anything beyond
//! [`limits`] is a [`ParseError`] that holds a JSON pointer and, where something near exists, what was meant.
//!
//! - **Actions** are patterns such as `compute:instances:*`, matched with regard to case.
//! - **Resources** are patterns such as `compute-instance/*`.
//! - In both, `*` stands for any run of characters (also none, also `/` and `:`) and `?` for exactly one.
//! - **Variables**: in a resource or in a string condition value `${principal.tenantId}` stands for that
//!   attribute's text at decision time. The text is literal: a `*` in it matches only a `*`. Only non-empty text
//!   can be substituted. `${*}`, `${?}` and `${$}` write the character itself.
//!
//! # The decision
//!
//! A statement applies when one of its actions, one of its resources and all of its conditions match. If any deny
//! statement applies the answer is deny; otherwise, if any allow statement applies, allow; otherwise deny. The
//! order of statements and of policies changes neither the effect nor the reason.
//!
//! # Conditions
//!
//! `{ operator: { attribute: value or [values] } }`. The values of one attribute are alternatives; attributes and
//! operators must all hold. A negated operator holds when none of its values matches.
//!
//! | Operators | Values | Attribute |
//! |---|---|---|
//! | `StringEquals`, `StringNotEquals`, `…IgnoreCase`, `StringLike`, `StringNotLike` | text | [`Value::Str`] |
//! | `Numeric` + `Equals`, `NotEquals`, `LessThan[Equals]`, `GreaterThan[Equals]` | number | [`Value::Num`] |
//! | `Date` + the same six | RFC 3339 text | [`Value::Time`], or text in RFC 3339 |
//! | `Bool` | `true`, `false` | [`Value::Bool`] |
//! | `IpAddress`, `NotIpAddress` | address or CIDR block | [`Value::Ip`], or text of an address |
//! | `Null` | `true`: absent, `false`: present | any |
//!
//! Text is compared code point by code point; the `IgnoreCase` operators fold ASCII letters only and take only ASCII
//! values. `*` and `?` are wildcards only under `StringLike` and `StringNotLike`. IPv4 addresses written as
//! IPv6 (`::ffff:10.0.0.1`) count as IPv4.
//!
//! - `…IfExists` holds when the attribute is absent.
//! - `ForAnyValue:` holds when at least one element of a list attribute passes, so not for an empty list;
//!   `ForAllValues:` when every element passes, so also for an empty list. A single value counts as a list of one.
//!   Without a prefix a list is a value of the wrong type.
//!
//! ## What is unknown denies
//!
//! A condition is true, false or *unknown*: its attribute is absent (or null) and the operator is not `…IfExists`
//! or `Null`, or the attribute has the wrong type, or a variable cannot be substituted. This also holds for
//! negated operators and for `ForAllValues:`. An unknown condition **never lets an allow statement apply and never
//! keeps a deny statement from applying**; here the language is stricter than AWS's. A condition that is false
//! still settles the statement, so a deny meant only for requests that carry an attribute says so with
//! `"Null": {"resource.gpuModel": false}`.
//!
//! # Attributes
//!
//! `resource.*` and `principal.*` are open; of `request.*` exactly [`attribute::REQUEST`] exist, with their types.

pub mod attribute;
pub mod compiled;
pub mod condition;
pub mod document;
pub mod error;
mod index;
mod instant;
mod json;
pub mod limits;
mod net;
pub mod number;
pub mod operator;
mod parse;
mod template;
pub mod trace;
pub mod truth;
pub mod value;

pub use compiled::{Compiled, Decision, PolicyRef, Reason, Request, StatementRef};
pub use document::{Document, Effect, Statement};
pub use error::{ParseError, Problem};
pub use number::Number;
pub use operator::{Comparison, Operator, Over};
pub use trace::{ConditionTrace, StatementTrace};
pub use truth::{Truth, Unknown};
pub use value::{Attributes, Value};

/// A policy is its document; this name reads better where it is parsed: `Policy::parse(text)`.
pub type Policy = Document;
