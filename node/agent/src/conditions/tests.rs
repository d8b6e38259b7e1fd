use super::*;
use model::condition::Severity;

fn fact(kind: &str, message: &str) -> Fact {
    Fact {
        kind: kind.into(),
        severity: Severity::Warning,
        device: String::new(),
        reason: "r".into(),
        message: message.into(),
        age: None,
    }
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_fact_that_stays_keeps_its_age() {
    let mut conditions = Conditions::default();
    assert!(conditions.set(Source::Hardware, vec![fact("Xid", "79")], seconds(10)));
    assert!(!conditions.set(Source::Hardware, vec![fact("Xid", "79")], seconds(20)), "nothing new");
    assert_eq!(conditions.render(seconds(25))[0].age_ms, 15_000);
    assert!(
        conditions.set(Source::Hardware, vec![fact("Xid", "63")], seconds(30)),
        "another message is news"
    );
    assert_eq!(conditions.render(seconds(35))[0].age_ms, 25_000, "and still the same fact");
}

#[test]
fn what_a_source_no_longer_says_is_gone_and_others_stay() {
    let mut conditions = Conditions::default();
    conditions.set(Source::Hardware, vec![fact("Xid", "79")], seconds(0));
    conditions.set(Source::Section(2), vec![fact("HoldFailed", "x")], seconds(0));
    assert!(conditions.set(Source::Hardware, vec![], seconds(1)));
    let left = conditions.render(seconds(1));
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].kind, "HoldFailed");
    conditions.keep_sections(|number| number != 2);
    assert!(conditions.render(seconds(1)).is_empty());
}

#[test]
fn a_reporter_may_know_an_age_from_before_this_process() {
    let mut conditions = Conditions::default();
    let old = Fact { age: Some(seconds(500)), ..fact("Xid", "79") };
    conditions.set(Source::Hardware, vec![old], seconds(600));
    assert_eq!(conditions.render(seconds(600))[0].age_ms, 500_000);
}

#[test]
fn too_many_conditions_lose_the_mildest_and_long_texts_are_cut_at_a_character() {
    let mut conditions = Conditions::default();
    let mut facts: Vec<Fact> =
        (0..CONDITIONS_MAX + 10).map(|n| Fact { device: format!("d{n}"), ..fact("A", "m") }).collect();
    facts.push(Fact { severity: Severity::Blocking, ..fact("Z", &"é".repeat(TEXT_BYTES_MAX)) });
    conditions.set(Source::Hardware, facts, seconds(0));
    let rendered = conditions.render(seconds(0));
    assert_eq!(rendered.len(), CONDITIONS_MAX);
    let blocking = rendered.iter().find(|condition| condition.kind == "Z").unwrap();
    assert!(blocking.message.len() <= TEXT_BYTES_MAX && blocking.message.ends_with('é'));
}
