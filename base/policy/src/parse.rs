//! JSON text to a [`Document`], refusing everything the language does not define.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::attribute;
use crate::condition::{Condition, Values};
use crate::document::{Document, Effect, Statement, VERSION};
use crate::error::{ParseError, Problem, nearest, pointer_token, quote};
use crate::json::Json;
use crate::limits::{
    ACTIONS_MAX, CONDITIONS_MAX, DOCUMENT_BYTES_MAX, PATTERN_BYTES_MAX, RESOURCES_MAX, SID_BYTES_MAX,
    STATEMENTS_MAX, VALUES_MAX,
};
use crate::operator::{Kind, Operator};
use crate::template::{Syntax, Template};
use crate::{instant, net::Net};

type Result<T> = std::result::Result<T, ParseError>;

pub(crate) fn document(bytes: &[u8]) -> Result<Document> {
    let at = Path::Root;
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return at.fail(Problem::TooLong { bytes: bytes.len(), bytes_max: DOCUMENT_BYTES_MAX });
    }
    let json: Json = match serde_json::from_slice(bytes) {
        Ok(json) => json,
        Err(error) => return at.fail(Problem::NotJson { detail: error.to_string() }),
    };
    let fields = Fields::read(&json, at, &["version", "statements"])?;
    if let Some((version, at)) = fields.find("version") {
        let given = text(version, at)?;
        if given != VERSION {
            let meant = Some(VERSION.to_owned());
            return at.fail(Problem::UnknownName { what: "version", given: quote(given), meant });
        }
    }
    let (statements, at) = fields.require("statements")?;
    let mut sids = BTreeSet::new();
    let mut parsed = Vec::new();
    for (index, json) in list(statements, at, "statements", STATEMENTS_MAX)?.iter().enumerate() {
        let at = Path::Index(&at, index);
        let statement = statement(json, at)?;
        if !sids.insert(statement.sid.clone()) {
            return Path::Key(&at, "sid").fail(Problem::RepeatedSid { sid: statement.sid.into() });
        }
        parsed.push(Arc::new(statement));
    }
    Ok(Document { statements: parsed.into() })
}

fn statement(json: &Json, at: Path<'_>) -> Result<Statement> {
    let fields = Fields::read(json, at, &["sid", "effect", "actions", "resources", "conditions"])?;
    let (value, at) = fields.require("sid")?;
    let sid = sid(text(value, at)?).or_else(|problem| at.fail(problem))?;
    let (value, at) = fields.require("effect")?;
    let effect = effect(text(value, at)?).or_else(|problem| at.fail(problem))?;
    let (value, at) = fields.require("actions")?;
    let actions = texts(value, at, "actions", ACTIONS_MAX, action)?;
    let (value, at) = fields.require("resources")?;
    let resources = texts(value, at, "resources", RESOURCES_MAX, resource)?;
    let conditions = match fields.find("conditions") {
        Some((value, at)) => conditions(value, at)?,
        None => Box::default(),
    };
    Ok(Statement { sid, effect, actions, resources, conditions })
}

fn sid(given: &str) -> std::result::Result<Box<str>, Problem> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if given.is_empty() || given.len() > SID_BYTES_MAX || !given.bytes().all(plain) {
        let expected = format!("1 to {SID_BYTES_MAX} letters, digits, - and _");
        return Err(Problem::Malformed { what: "sid", given: quote(given), expected });
    }
    Ok(given.into())
}

fn effect(given: &str) -> std::result::Result<Effect, Problem> {
    match given {
        "allow" => Ok(Effect::Allow),
        "deny" => Ok(Effect::Deny),
        _ => {
            let meant = nearest(given, ["allow", "deny"]);
            Err(Problem::UnknownName { what: "effect", given: quote(given), meant })
        }
    }
}

/// An action without a service would match nothing, which in a deny statement is a hole.
fn action(given: &str) -> std::result::Result<Template, Problem> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b":_.-*?".contains(&byte);
    if given != "*" && !(given.contains(':') && given.bytes().all(plain)) {
        let expected = "a pattern such as \"compute:instances:*\", or \"*\"".to_owned();
        return Err(Problem::Malformed { what: "action", given: quote(given), expected });
    }
    Template::parse(given, Syntax::Wildcards)
}

fn resource(given: &str) -> std::result::Result<Template, Problem> {
    if given != "*" && (!given.contains('/') || given.chars().any(|c| c.is_control() || c.is_whitespace())) {
        let expected = "a pattern such as \"compute-instance/*\", or \"*\"".to_owned();
        return Err(Problem::Malformed { what: "resource", given: quote(given), expected });
    }
    Template::parse(given, Syntax::WildcardsAndVariables)
}

fn conditions(json: &Json, at: Path<'_>) -> Result<Box<[Condition]>> {
    let mut conditions = Vec::new();
    for (name, by_attribute) in object(json, at)? {
        let at = Path::Key(&at, name);
        let operator = Operator::parse(name).or_else(|problem| at.fail(problem))?;
        let by_attribute = object(by_attribute, at)?;
        if by_attribute.is_empty() {
            return at.fail(Problem::Empty { what: "attributes" });
        }
        for (attribute, values) in by_attribute {
            let at = Path::Key(&at, attribute);
            attribute::check(attribute)
                .and_then(|()| suits(operator, attribute))
                .or_else(|problem| at.fail(problem))?;
            let values = self::values(operator, values, at)?;
            conditions.push(Condition { operator, attribute: attribute.as_str().into(), values });
        }
    }
    if conditions.len() > CONDITIONS_MAX {
        let count = conditions.len();
        return at.fail(Problem::TooMany { what: "conditions", count, count_max: CONDITIONS_MAX });
    }
    Ok(conditions.into())
}

fn suits(operator: Operator, attribute: &str) -> std::result::Result<(), Problem> {
    let takes = operator.comparison.kind();
    match attribute::kind(attribute) {
        Some(kind) if takes != Kind::Presence && takes != kind => Err(Problem::WrongOperator {
            operator: operator.to_string(),
            attribute: attribute.to_owned(),
            kind: kind.describe(),
        }),
        _ => Ok(()),
    }
}

/// One value or a list of values, each of the operator's type.
fn values(operator: Operator, json: &Json, at: Path<'_>) -> Result<Values> {
    let comparison = operator.comparison;
    Ok(match comparison.kind() {
        Kind::Text => Values::Texts(each(json, at, |json, at| {
            let given = text(json, at)?;
            bounded(given, at)?;
            let syntax =
                if comparison.takes_wildcards() { Syntax::WildcardsAndVariables } else { Syntax::Variables };
            if comparison.ignores_case() && !given.is_ascii() {
                let expected =
                    "ASCII, since only ASCII letters are compared without regard to case".to_owned();
                return at.fail(Problem::Malformed { what: "value", given: quote(given), expected });
            }
            Template::parse(given, syntax).or_else(|problem| at.fail(problem))
        })?),
        Kind::Number => Values::Numbers(each(json, at, |json, at| match json {
            Json::Number(Some(number)) => Ok(*number),
            Json::Number(None) => at.fail(Problem::Malformed {
                what: "number",
                given: String::new(),
                expected: "a decimal with at most 9 places and 15 significant digits, or an integer"
                    .to_owned(),
            }),
            _ => at.fail(Problem::WrongType { expected: "a number", found: json.type_name() }),
        })?),
        Kind::Time => Values::Times(each(json, at, |json, at| {
            let given = text(json, at)?;
            instant::parse(given).map_or_else(
                || {
                    let expected = "RFC 3339 to the microsecond, like 2026-03-01T12:00:00Z".to_owned();
                    at.fail(Problem::Malformed { what: "time", given: quote(given), expected })
                },
                Ok,
            )
        })?),
        Kind::Bool | Kind::Presence => Values::Bools(each(json, at, |json, at| match json {
            Json::Bool(bool) => Ok(*bool),
            _ => at.fail(Problem::WrongType { expected: "true or false", found: json.type_name() }),
        })?),
        Kind::Net => Values::Nets(each(json, at, |json, at| {
            let given = text(json, at)?;
            Net::parse(given).or_else(|expected| {
                at.fail(Problem::Malformed { what: "address block", given: quote(given), expected })
            })
        })?),
    })
}

fn each<T>(json: &Json, at: Path<'_>, read: impl Fn(&Json, Path<'_>) -> Result<T>) -> Result<Box<[T]>> {
    match json {
        Json::List(_) => list(json, at, "values", VALUES_MAX)?
            .iter()
            .enumerate()
            .map(|(index, json)| read(json, Path::Index(&at, index)))
            .collect(),
        single => Ok(Box::new([read(single, at)?])),
    }
}

fn texts<T>(
    json: &Json,
    at: Path<'_>,
    what: &'static str,
    count_max: usize,
    read: impl Fn(&str) -> std::result::Result<T, Problem>,
) -> Result<Box<[T]>> {
    let read = |(index, json): (usize, &Json)| {
        let at = Path::Index(&at, index);
        let given = text(json, at)?;
        bounded(given, at)?;
        read(given).or_else(|problem| at.fail(problem))
    };
    list(json, at, what, count_max)?.iter().enumerate().map(read).collect()
}

fn bounded(given: &str, at: Path<'_>) -> Result<()> {
    if given.len() > PATTERN_BYTES_MAX {
        return at.fail(Problem::TooLong { bytes: given.len(), bytes_max: PATTERN_BYTES_MAX });
    }
    Ok(())
}

fn text<'j>(json: &'j Json, at: Path<'_>) -> Result<&'j str> {
    match json {
        Json::Text(text) => Ok(text),
        _ => at.fail(Problem::WrongType { expected: "a text", found: json.type_name() }),
    }
}

fn list<'j>(json: &'j Json, at: Path<'_>, what: &'static str, count_max: usize) -> Result<&'j [Json]> {
    match json {
        Json::List(elements) if elements.is_empty() => at.fail(Problem::Empty { what }),
        Json::List(elements) if elements.len() > count_max => {
            at.fail(Problem::TooMany { what, count: elements.len(), count_max })
        }
        Json::List(elements) => Ok(elements),
        _ => at.fail(Problem::WrongType { expected: "a list", found: json.type_name() }),
    }
}

/// The entries of an object whose keys are all different.
fn object<'j>(json: &'j Json, at: Path<'_>) -> Result<&'j [(String, Json)]> {
    let Json::Object(entries) = json else {
        return at.fail(Problem::WrongType { expected: "an object", found: json.type_name() });
    };
    let mut keys = BTreeSet::new();
    match entries.iter().find(|(key, _)| !keys.insert(key.as_str())) {
        Some((key, _)) => at.fail(Problem::RepeatedField { given: quote(key) }),
        None => Ok(entries),
    }
}

/// The fields of an object that has no others.
struct Fields<'j, 'p> {
    entries: &'j [(String, Json)],
    at: Path<'p>,
}

impl<'j, 'p> Fields<'j, 'p> {
    fn read(json: &'j Json, at: Path<'p>, known: &[&'static str]) -> Result<Self> {
        let entries = object(json, at)?;
        match entries.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            Some((key, _)) => {
                at.fail(Problem::UnknownField { given: quote(key), meant: nearest(key, known) })
            }
            None => Ok(Self { entries, at }),
        }
    }

    fn find(&self, field: &'static str) -> Option<(&'j Json, Path<'_>)> {
        let (_, json) = self.entries.iter().find(|(key, _)| key == field)?;
        Some((json, Path::Key(&self.at, field)))
    }

    fn require(&self, field: &'static str) -> Result<(&'j Json, Path<'_>)> {
        self.find(field).map_or_else(|| self.at.fail(Problem::MissingField { field }), Ok)
    }
}

/// Where in the document we are; written out only for an error.
#[derive(Clone, Copy)]
enum Path<'p> {
    Root,
    Key(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

impl Path<'_> {
    fn fail<T>(&self, problem: Problem) -> Result<T> {
        Err(ParseError { pointer: self.pointer(), problem })
    }

    fn pointer(&self) -> String {
        match self {
            Path::Root => String::new(),
            Path::Key(parent, key) => {
                format!("{}/{}", parent.pointer(), pointer_token(key))
            }
            Path::Index(parent, index) => format!("{}/{index}", parent.pointer()),
        }
    }
}

#[cfg(test)]
mod tests;
