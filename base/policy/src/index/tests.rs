use proptest::prelude::*;

use super::*;
use crate::template::Syntax;
use crate::truth::Truth;
use crate::value::Attributes;

fn parsed(patterns: &[String]) -> Vec<Template> {
    patterns
        .iter()
        .map(|text| Template::parse(text, Syntax::Wildcards).expect("actions always parse"))
        .collect()
}

fn matches(template: &Template, action: &str) -> bool {
    template.matches(action, &Attributes::new(), false) == Truth::True
}

proptest! {
    #[test]
    fn the_index_finds_every_pattern_that_matches_and_certain_ones_match(
        patterns in prop::collection::vec("[ab:*?]{0,6}", 0..20),
        action in "[ab:]{0,6}",
    ) {
        let templates = parsed(&patterns);
        let index = Index::build((0..).zip(&templates));
        let mut found = Vec::new();
        index.visit(&action, |hit| found.push(hit));
        for (at, template) in (0..).zip(&templates) {
            let hit = found.iter().find(|hit| hit.statement == at);
            prop_assert!(hit.is_some() || !matches(template, &action), "{:?} {}", template, action);
            prop_assert!(hit.is_none_or(|hit| !hit.certain) || matches(template, &action), "{:?} {}", template, action);
        }
    }
}

#[test]
fn an_action_meets_only_the_patterns_on_its_way() {
    let patterns = ["compute:instances:*", "compute:instances:create", "compute:nodes:*", "iam:*", "*"];
    let templates = parsed(&patterns.map(str::to_owned));
    let index = Index::build((0..).zip(&templates));
    let mut found = Vec::new();
    index.visit("compute:instances:create", |hit| found.push(hit.statement));
    found.sort_unstable();
    assert_eq!(found, [0, 1, 4]);
}
