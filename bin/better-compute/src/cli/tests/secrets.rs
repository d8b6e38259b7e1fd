//! Values go from a file to the wire, and are shown nowhere on the way.

use super::*;

const VALUE: &str = "hunter2 and more\n";

fn kept() -> Answer {
    let at = "2026-03-01T11:00:00Z";
    Answer::json(json!({
        "id": id::<model::SecretId>(1), "tenant": {"id": id::<model::TenantId>(1), "name": "acme"}, "name": "web",
        "version": 1, "sizeBytes": 17, "createdAt": at, "updatedAt": at, "ageSeconds": 5,
    }))
}

#[test]
fn a_value_comes_from_a_file_or_standard_input_and_is_shown_to_nobody() {
    let stub = Stub::script(vec![kept(), kept(), kept()]);
    let person = Person::at(&stub).typing(VALUE);
    let file = person.home.path().join("value");
    std::fs::write(&file, VALUE).expect("it can be written");
    let path = file.display().to_string();
    let from_file = person.run_words(&["secrets", "put", "web", "--file", &path]);
    let typed = person.run("secrets put web --file -");
    std::fs::write(&file, [0, 255, 10]).expect("it can be written");
    let bytes = person.run_words(&["secrets", "put", "web", "--file", &path]);
    for outcome in [&from_file, &typed, &bytes] {
        assert_eq!(outcome.code, 0, "{}", outcome.err);
        assert!(!outcome.out.contains("hunter2") && !outcome.err.contains("hunter2"), "{outcome:?}");
    }
    let bodies: Vec<Value> = stub.asked().iter().map(|asked| asked.body.clone()).collect();
    let text = json!({"name": "web", "value": VALUE});
    assert_eq!(bodies, [text.clone(), text, json!({"name": "web", "value": "AP8K", "encoding": "base64"})]);
}

#[test]
fn no_argument_holds_a_value() {
    let stub = Stub::script(vec![]);
    let person = Person::at(&stub);
    for words in [
        ["secrets", "put", "web", "--set", "{\"value\": \"hunter2\"}"],
        ["instances", "create", "--pool=vps", "--set", "{\"userData\": \"hunter2\"}"],
        ["secrets", "put", "web", "--value", "hunter2"],
    ] {
        let outcome = person.run_words(&words);
        assert_eq!(outcome.code, 2, "{outcome:?}");
    }
    let missing = person.run("secrets put web --file /does/not/exist");
    assert_eq!(missing.code, 2, "{missing:?}");
    assert!(stub.asked().is_empty());
}

#[test]
fn user_data_is_a_file_or_a_reference_and_is_not_said_again() {
    let refused = || Answer::error(ErrorCode::NotFound, "no flavor small", json!({}));
    let stub = Stub::script(vec![refused(), refused()]);
    let person = Person::at(&stub);
    let file = person.home.path().join("user-data");
    std::fs::write(&file, VALUE).expect("it can be written");
    let path = file.display().to_string();
    let create =
        ["instances", "create", "--pool", "vps", "--flavor", "small", "--image", "debian", "--user-data"];
    let outcome = person.run_words(&[&create[..], &[path.as_str()]].concat());
    assert_ne!(outcome.code, 0);
    assert!(!outcome.err.contains("hunter2"), "{}", outcome.err);
    person.run_words(&[&create[..], &["secret://web"]].concat());
    assert_eq!(stub.asked()[0].body["userData"], VALUE);
    assert_eq!(stub.asked()[1].body["userData"], "secret://web");

    std::fs::write(&file, [0, 255]).expect("it can be written");
    let bytes = person.run_words(&[&create[..], &[path.as_str()]].concat());
    assert!(bytes.code == 2 && bytes.err.contains("secrets put"), "{bytes:?}");
    std::fs::write(&file, "x".repeat(65_537)).expect("it can be written");
    let long = person.run_words(&[&create[..], &[path.as_str()]].concat());
    assert!(long.code == 2 && long.err.contains("65537 bytes"), "{long:?}");
    assert_eq!(stub.asked().len(), 2, "neither was sent");
}
