//! Closed sets of words as the API spells them.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A closed set whose members have one spelling each.
pub trait Vocabulary: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// What the set is, for messages: `node state`.
    const WHAT: &'static str;
    fn words() -> Vec<Self>;
    fn word(self) -> &'static str;
}

/// A member of a vocabulary, as its word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word<T>(pub T);

impl<T> From<T> for Word<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T: Vocabulary> fmt::Debug for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.word())
    }
}

impl<T: Vocabulary> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

impl<'de, T: Vocabulary> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Some(found) = T::words().into_iter().find(|known| known.word() == text) {
            return Ok(Self(found));
        }
        let words: Vec<&str> = T::words().into_iter().map(Vocabulary::word).collect();
        let near = crate::parse::near(&text, words.iter().copied());
        let given: String = text.chars().take(64).collect();
        Err(D::Error::custom(match near {
            Some(near) => format!("{given:?} is no {}, did you mean {near:?}?", T::WHAT),
            None => format!("{given:?} is no {}: one of {}", T::WHAT, words.join(", ")),
        }))
    }
}

impl<T: Vocabulary> JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::WHAT.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<&str> = T::words().into_iter().map(Vocabulary::word).collect();
        json_schema!({ "type": "string", "enum": words })
    }
}

macro_rules! of_model {
    ($($type:ty, $what:literal;)*) => {$(
        impl Vocabulary for $type {
            const WHAT: &'static str = $what;
            fn words() -> Vec<Self> {
                <$type>::ALL.to_vec()
            }
            fn word(self) -> &'static str {
                self.name()
            }
        }
    )*};
}

of_model! {
    model::lifecycle::NodeState, "node state";
    model::lifecycle::ReservationState, "reservation state";
    model::lifecycle::CommandState, "command state";
    model::lifecycle::InstanceState, "instance state";
    model::lifecycle::DesiredPower, "desired state";
    model::CommandKind, "command kind";
    model::Lane, "lane";
    model::Role, "role";
}

impl Vocabulary for model::condition::Severity {
    const WHAT: &'static str = "severity";
    fn words() -> Vec<Self> {
        use model::condition::Severity as S;
        vec![S::Info, S::Warning, S::Blocking]
    }
    fn word(self) -> &'static str {
        self.name()
    }
}

/// Declares a closed set of the API's own, with its words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($word => Some($name::$variant),)*
                    _ => None,
                }
            }
        }

        impl $crate::Vocabulary for $name {
            const WHAT: &'static str = $what;
            fn words() -> Vec<Self> {
                vec![$($name::$variant,)*]
            }
            fn word(self) -> &'static str {
                self.name()
            }
        }
    };
}
pub(crate) use words;
