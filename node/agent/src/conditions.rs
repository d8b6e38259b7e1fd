//! The node's condition set, put together from everyone who knows facts, each with its age.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::limits::{CONDITIONS_MAX, TEXT_BYTES_MAX};
use wire::proto::common::Condition;

use crate::converge::Fact;

/// Who says so. Each owns its facts whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Agent,
    Hardware,
    Section(u32),
}

/// What makes two reports one fact.
type Key = (String, String, String);

#[derive(Debug, Default)]
pub struct Conditions {
    by_source: BTreeMap<Source, BTreeMap<Key, (Fact, Duration)>>,
}

impl Conditions {
    /// Replaces what `source` says; a fact that stays keeps its age. True when something other than ages changed.
    pub fn set(&mut self, source: Source, facts: Vec<Fact>, now: Duration) -> bool {
        let before = self.by_source.remove(&source).unwrap_or_default();
        let mut after = BTreeMap::new();
        for fact in facts {
            let key = (fact.kind.clone(), fact.device.clone(), fact.reason.clone());
            let since = match (fact.age, before.get(&key)) {
                (Some(age), _) => now.saturating_sub(age),
                (None, Some((_, since))) => *since,
                (None, None) => now,
            };
            after.insert(key, (fact, since));
        }
        let same = before.len() == after.len()
            && before.iter().zip(&after).all(|((old_key, (old, _)), (new_key, (new, _)))| {
                old_key == new_key && old.severity == new.severity && old.message == new.message
            });
        if !after.is_empty() {
            self.by_source.insert(source, after);
        }
        !same
    }

    /// Forgets sections that the spec no longer has.
    pub fn keep_sections(&mut self, numbers: impl Fn(u32) -> bool) {
        self.by_source.retain(|source, _| match source {
            Source::Section(number) => numbers(*number),
            Source::Agent | Source::Hardware => true,
        });
    }

    /// For the wire: the most severe first when there are more than anyone takes, and in a fixed order.
    pub fn render(&self, now: Duration) -> Vec<Condition> {
        let mut all: Vec<(&Fact, Duration)> = self
            .by_source
            .values()
            .flat_map(|facts| facts.values())
            .map(|(fact, since)| (fact, *since))
            .collect();
        if all.len() > CONDITIONS_MAX {
            all.sort_by_key(|(fact, _)| std::cmp::Reverse(fact.severity));
            all.truncate(CONDITIONS_MAX);
        }
        all.into_iter().map(|(fact, since)| condition(fact, now.saturating_sub(since))).collect()
    }
}

fn condition(fact: &Fact, age: Duration) -> Condition {
    Condition {
        kind: fact.kind.clone(),
        severity: fact.severity.name().to_owned(),
        device: cut(&fact.device),
        reason: cut(&fact.reason),
        message: cut(&fact.message),
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
    }
}

/// At most as long as the other side takes, cut at a character.
pub(crate) fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests;
