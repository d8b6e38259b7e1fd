//! Patterns with wildcards and variables, matched without allocating.
//!
//! Matching compares at most pattern length times text length, and patterns are bounded, so its time is linear in
//! the text: on a mismatch only the last `*` gives up one more character, never an earlier one. That is enough:
//! what stands between two `*` may as well match as far left as it can.

use crate::attribute;
use crate::error::{Problem, quote};
use crate::truth::{Truth, Unknown};
use crate::value::{Attributes, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Template {
    Exact(Box<str>),
    /// A text and whatever follows it.
    Prefix(Box<str>),
    General(Box<[Piece]>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Box<str>),
    /// `?`: one character.
    One,
    /// `*`: any run of characters; never two in a row.
    Run,
    /// `${name}`: the attribute's text.
    Variable(Box<str>),
}

/// What a template may contain besides text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `*` and `?`: actions.
    Wildcards,
    /// `*`, `?` and `${…}`: resources and `StringLike`.
    WildcardsAndVariables,
    /// `${…}`: the other string operators.
    Variables,
}

impl Template {
    pub(crate) fn parse(text: &str, syntax: Syntax) -> Result<Self, Problem> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let piece = match next {
                '*' if syntax != Syntax::Variables => Piece::Run,
                '?' if syntax != Syntax::Variables => Piece::One,
                '$' if syntax != Syntax::Wildcards && rest.starts_with("${") => {
                    let Some((inner, after)) = rest[2..].split_once('}') else {
                        return Err(Problem::Malformed {
                            what: "variable",
                            given: quote(rest),
                            expected: "a closing \"}\"; a \"$\" itself is written ${$}".to_owned(),
                        });
                    };
                    rest = after;
                    match inner {
                        "*" | "?" | "$" => literal.push_str(inner),
                        name => {
                            attribute::check(name)?;
                            flush(&mut literal, &mut pieces);
                            pieces.push(Piece::Variable(name.into()));
                        }
                    }
                    continue;
                }
                character => {
                    literal.push(character);
                    rest = &rest[character.len_utf8()..];
                    continue;
                }
            };
            rest = &rest[1..];
            flush(&mut literal, &mut pieces);
            if piece != Piece::Run || pieces.last() != Some(&Piece::Run) {
                pieces.push(piece);
            }
        }
        flush(&mut literal, &mut pieces);
        Ok(Self::from_pieces(pieces))
    }

    fn from_pieces(mut pieces: Vec<Piece>) -> Self {
        match pieces.as_mut_slice() {
            [] => Template::Exact("".into()),
            [Piece::Text(text)] => Template::Exact(std::mem::take(text)),
            [Piece::Run] => Template::Prefix("".into()),
            [Piece::Text(text), Piece::Run] => Template::Prefix(std::mem::take(text)),
            _ => Template::General(pieces.into()),
        }
    }

    /// The text every match starts with.
    pub(crate) fn literal_prefix(&self) -> &str {
        match self {
            Template::Exact(text) | Template::Prefix(text) => text,
            Template::General(pieces) => match &pieces[..] {
                [Piece::Text(text), ..] => text,
                _ => "",
            },
        }
    }

    /// Whether the whole text matches. Unknown where a variable has no text to stand for and some text in its
    /// place would match.
    pub(crate) fn matches(&self, text: &str, attributes: &Attributes<'_>, ignore_case: bool) -> Truth {
        match self {
            Template::Exact(exact) if ignore_case => exact.eq_ignore_ascii_case(text).into(),
            Template::Exact(exact) => (**exact == *text).into(),
            Template::Prefix(prefix) => text.starts_with(&**prefix).into(),
            Template::General(pieces) => matches(pieces, text, attributes, ignore_case),
        }
    }
}

fn flush(literal: &mut String, pieces: &mut Vec<Piece>) {
    if !literal.is_empty() {
        pieces.push(Piece::Text(std::mem::take(literal).into()));
    }
}

fn matches(pieces: &[Piece], text: &str, attributes: &Attributes<'_>, ignore_case: bool) -> Truth {
    let mut unresolved = false;
    let (mut piece, mut at) = (0, 0);
    // Where to resume when what follows the last run does not fit: after that run, one character further.
    let mut resume: Option<(usize, usize)> = None;
    let matched = |unresolved| if unresolved { Truth::Unknown(Unknown::Variable) } else { Truth::True };
    loop {
        let step = match pieces.get(piece) {
            None if at == text.len() => return matched(unresolved),
            None => None,
            Some(Piece::Text(literal)) => literal_step(literal, &text[at..], ignore_case),
            Some(Piece::One) => text[at..].chars().next().map(char::len_utf8),
            Some(Piece::Run) if piece + 1 == pieces.len() => return matched(unresolved),
            Some(Piece::Run) => {
                resume = Some((piece, at));
                Some(0)
            }
            Some(Piece::Variable(name)) => match attributes.get(name) {
                Some(Value::Str(value)) if !value.is_empty() => literal_step(value, &text[at..], ignore_case),
                // Whatever it stands for is a run of characters: if not even a run fits, the answer is false.
                _ => {
                    unresolved = true;
                    resume = Some((piece, at));
                    Some(0)
                }
            },
        };
        match (step, resume) {
            (Some(length), _) => (piece, at) = (piece + 1, at + length),
            (None, Some((run, start))) => match text[start..].chars().next() {
                Some(skipped) => {
                    let start = start + skipped.len_utf8();
                    resume = Some((run, start));
                    (piece, at) = (run + 1, start);
                }
                None => return Truth::False,
            },
            (None, None) => return Truth::False,
        }
    }
}

/// The length of `literal` if the text starts with it.
fn literal_step(literal: &str, text: &str, ignore_case: bool) -> Option<usize> {
    let start = text.as_bytes().get(..literal.len())?;
    let same = if ignore_case {
        start.eq_ignore_ascii_case(literal.as_bytes())
    } else {
        start == literal.as_bytes()
    };
    same.then_some(literal.len())
}

#[cfg(test)]
mod tests;
