//! Contexts, logging in, and whose token goes where.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn whoami() -> Answer {
    Answer::json(json!({"user": {"name": "alice", "tenant": {"name": "acme"}}}))
}

#[test]
fn a_login_keeps_the_token_in_a_file_of_its_own() {
    let stub = Stub::script(vec![whoami(), Answer::json(json!({"items": []}))]);
    let person = Person::new().typing("bct_abcdefghijkl\n");
    let outcome = person.run(&format!("login --token-stdin --url {} --context prod", stub.url()));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert!(outcome.err.contains("you are alice of acme"), "{}", outcome.err);
    assert_eq!(stub.asked()[0].header("authorization"), Some("Bearer bct_abcdefghijkl"));
    let config = std::fs::read_to_string(person.config()).expect("it was written");
    assert!(!config.contains("bct_") && config.contains("current = \"prod\""), "{config}");
    let token = person.home.path().join(".config/better-compute/tokens/prod");
    assert_eq!((mode(&person.config()), mode(&token)), (0o600, 0o600));

    person.run("nodes list");
    assert_eq!(stub.asked()[1].header("authorization"), Some("Bearer bct_abcdefghijkl"));
    let shown = person.run("context show");
    assert!(shown.out.contains("token        present") && !shown.out.contains("bct_"), "{}", shown.out);
}

#[test]
fn a_token_that_the_server_does_not_know_is_not_kept() {
    let stub = Stub::script(vec![Answer::error(ErrorCode::Unauthenticated, "unknown token", json!({}))]);
    let person = Person::new().typing("bct_abcdefghijkl\n");
    let outcome = person.run(&format!("login --token-stdin --url {}", stub.url()));
    assert_eq!(outcome.code, 4);
    assert!(!person.config().exists());
}

#[test]
fn what_is_no_token_is_refused_without_being_said() {
    let person = Person::new().typing("hunter2\n");
    let outcome = person.run("login --token-stdin --url http://127.0.0.1:1 --no-check");
    assert_eq!(outcome.code, 2);
    assert!(!outcome.err.contains("hunter2"), "{}", outcome.err);
}

#[test]
fn a_token_does_not_go_to_another_server() {
    let (kept, other) =
        (Stub::script(vec![whoami()]), Stub::script(vec![Answer::json(json!({"items": []}))]));
    let person = Person::new().typing("bct_abcdefghijkl\n");
    person.run(&format!("login --token-stdin --url {}", kept.url()));
    let person = person.var("BETTER_COMPUTE_URL", other.url());
    assert_eq!(person.run("nodes list").code, 0);
    assert_eq!(other.asked()[0].header("authorization"), None);
    let token = person.home.path().join("token");
    std::fs::write(&token, "bct_other_token\n").expect("it can be written");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let person = person.var("BETTER_COMPUTE_TOKEN_FILE", &token.display().to_string());
    person.run("nodes list");
    assert_eq!(other.asked()[1].header("authorization"), Some("Bearer bct_other_token"));
}

#[test]
fn a_token_file_that_others_can_read_is_refused() {
    let person = Person::new();
    let token = person.home.path().join("token");
    std::fs::write(&token, "bct_other_token\n").expect("it can be written");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let person = person
        .var("BETTER_COMPUTE_URL", "http://127.0.0.1:1")
        .var("BETTER_COMPUTE_TOKEN_FILE", &token.display().to_string());
    let outcome = person.run("nodes list");
    assert_eq!(outcome.code, 1);
    assert!(outcome.err.contains("chmod 600"), "{}", outcome.err);
}

#[test]
fn contexts_are_listed_used_and_suggested() {
    let person = Person::new();
    std::fs::create_dir_all(person.config().parent().expect("it has one")).expect("it can be made");
    let contexts = Contexts {
        current: Some("dev".to_owned()),
        contexts: ["dev", "prod"]
            .map(|name| {
                (
                    name.to_owned(),
                    Context {
                        url: format!("https://{name}.example"),
                        token_file: None,
                        ca_file: None,
                        tenant: None,
                    },
                )
            })
            .into(),
    };
    contexts.save(&person.config()).expect("it can be written");
    assert_eq!(person.run("context list").out, "* dev   https://dev.example\n  prod  https://prod.example\n");
    assert_eq!(person.run("context use prod").code, 0);
    assert!(person.run("context show").out.contains("https://prod.example"));
    let outcome = person.run("context use prodd");
    assert_eq!(outcome.code, 2);
    assert!(outcome.err.contains("did you mean \"prod\"?"), "{}", outcome.err);
}

#[test]
fn the_tenant_of_a_context_is_used_where_one_may_be_given() {
    let stub = Stub::script(vec![Answer::json(json!({"items": []}))]);
    let person = Person::new();
    let tenant = id::<model::TenantId>(5);
    let context =
        Context { url: stub.url().to_owned(), token_file: None, ca_file: None, tenant: Some(tenant.clone()) };
    let contexts =
        Contexts { current: Some("a".to_owned()), contexts: BTreeMap::from([("a".to_owned(), context)]) };
    contexts.save(&person.config()).expect("it can be written");
    person.run("quotas list");
    person.run("sites list");
    let other = id::<model::TenantId>(6);
    person.run(&format!("quotas list --tenant {other}"));
    let asked = stub.asked();
    assert_eq!(asked[0].body, json!({"tenant": tenant}));
    assert_eq!(asked[1].body, json!({}));
    assert_eq!(asked[2].body, json!({"tenant": other}));
}

#[test]
fn without_a_server_the_next_step_is_told() {
    let outcome = Person::new().run("nodes list");
    assert_eq!(outcome.code, 1);
    assert!(outcome.err.contains("better-compute login --url"), "{}", outcome.err);
}

#[test]
fn a_config_that_is_not_understood_is_not_ignored() {
    let person = Person::new();
    std::fs::create_dir_all(person.config().parent().expect("it has one")).expect("it can be made");
    kit::fs::write_atomic(&person.config(), b"curent = \"dev\"\n", 0o600).expect("it can be written");
    let outcome = person.run("nodes list");
    assert_eq!(outcome.code, 1);
    assert!(outcome.err.contains("curent"), "{}", outcome.err);
}
