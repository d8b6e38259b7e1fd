//! What answers look like.

use super::*;

fn listing() -> Stub {
    let xid = json!([{
        "kind": "Xid", "severity": "blocking", "device": "GPU-5f1c2a9e-1", "reason": "xid-79",
        "message": "79, fell off the bus", "since": "2026-03-01T11:56:00Z", "sinceSeconds": 240,
    }]);
    let mut cordoned = node("sim-2", 8, json!([]));
    cordoned["schedulable"] = false.into();
    cordoned["cordon"] =
        json!({"by": "alice", "reason": "firmware", "since": "2026-03-01T10:00:00Z", "sinceSeconds": 7200});
    Stub::script(vec![Answer::json(
        json!({"items": [node("sim-0", 8, json!([])), node("sim-1", 7, xid), cordoned]}),
    )])
}

#[test]
fn nodes_are_a_table() {
    let outcome = Person::at(&listing()).run("nodes list");
    let wanted = "\
NAME   STATE   POOL  GPUS     FREE  CPU FREE  MEM FREE  LAST SEEN  CONDITIONS
sim-0  ready   gpu   8× H100  8     224/224   1.9/2.0T  2s
sim-1  ready!  gpu   8× H100  7     196/224   1.9/2.0T  2s         Xid on GPU-5f1c…: 79, fell off the bus 4m ago
sim-2  ready!  gpu   8× H100  8     224/224   1.9/2.0T  2s         cordoned by alice 2h ago (firmware)
";
    assert_eq!(outcome.out, wanted);
    assert_eq!(outcome.err, "");
}

#[test]
fn a_table_fits_its_terminal() {
    let outcome = Person::at(&listing()).at_a_terminal(90).var("NO_COLOR", "1").run("nodes list");
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert_eq!(lines.len(), 4, "one line each:\n{}", outcome.out);
    for line in lines {
        assert!(line.chars().count() <= 90, "{line}");
    }
    assert!(outcome.out.contains('…'), "{}", outcome.out);
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let coloured = |person: Person| person.run("nodes list").out.contains('\u{1b}');
    assert!(coloured(Person::at(&listing()).at_a_terminal(200)));
    assert!(!coloured(Person::at(&listing())));
    assert!(!coloured(Person::at(&listing()).at_a_terminal(200).var("NO_COLOR", "1")));
    assert!(!coloured(Person::at(&listing()).at_a_terminal(200).var("TERM", "dumb")));
}

#[test]
fn a_wide_table_tells_more() {
    let outcome = Person::at(&listing()).run("nodes list -o wide");
    let head = outcome.out.lines().next().unwrap_or_default();
    assert!(head.contains("SITE") && head.contains("GENERATION") && head.contains("ID"), "{head}");
    assert!(outcome.out.contains("3/3/3"), "{}", outcome.out);
}

#[test]
fn json_and_yaml_are_the_answer_itself() {
    let answer = json!({"items": [{"id": "x", "new": {"field": [1, 2]}}], "cursor": "c"});
    let stub = Stub::script(vec![Answer::json(answer.clone())]);
    let outcome = Person::at(&stub).run("nodes list -o json");
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).expect("it is JSON"), answer);
    assert_eq!(outcome.err, "");
    let outcome = Person::at(&stub).run("nodes list -o yaml");
    assert_eq!(serde_norway::from_str::<Value>(&outcome.out).expect("it is YAML"), answer);
    assert!(outcome.out.contains("cursor: c\n"), "{}", outcome.out);
}

#[test]
fn a_query_picks() {
    let stub = listing();
    let outcome = Person::at(&stub).run("nodes list --query items[].name");
    assert_eq!(
        serde_json::from_str::<Value>(&outcome.out).expect("it is JSON"),
        json!(["sim-0", "sim-1", "sim-2"])
    );
    let bad = Person::at(&stub).run("nodes list --query items[");
    assert_eq!((bad.code, stub.asked().len()), (2, 1), "{}", bad.err);
}

#[test]
fn one_thing_is_told_fact_by_fact() {
    let stub = Stub::script(vec![Answer::json(reservation("scheduling"))]);
    let outcome = Person::at(&stub).run(&format!("reservations get {}", id::<model::ReservationId>(1)));
    assert!(outcome.out.starts_with("id "), "{}", outcome.out);
    assert!(outcome.out.contains("state              scheduling\n"), "{}", outcome.out);
    assert!(outcome.out.contains("created at         1h ago (2026-03-01T11:00:00Z)\n"), "{}", outcome.out);
    assert!(outcome.out.contains("memory (GiB)       256\n"), "{}", outcome.out);
    assert!(
        outcome.out.contains(&format!("pool               gpu ({})\n", id::<model::PoolId>(1))),
        "{}",
        outcome.out
    );
    assert!(!outcome.out.contains("\nage "), "created at says it: {}", outcome.out);
}

#[test]
fn an_empty_list_says_so_and_prints_nothing() {
    let stub = Stub::script(vec![Answer::json(json!({"items": []}))]);
    let outcome = Person::at(&stub).run("nodes list");
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("", "none\n"));
}

#[test]
fn a_page_says_that_there_is_more_and_all_fetches_it() {
    let pages = || {
        vec![
            Answer::json(json!({"items": [{"name": "a"}], "cursor": "next"})),
            Answer::json(json!({"items": [{"name": "b"}]})),
        ]
    };
    let outcome = Person::at(&Stub::script(pages())).run("sites list");
    assert!(outcome.err.contains("--cursor next"), "{}", outcome.err);
    let stub = Stub::script(pages());
    let outcome = Person::at(&stub).run("sites list --all --query items[].name");
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).expect("it is JSON"), json!(["a", "b"]));
    assert_eq!(stub.asked()[1].body, json!({"limit": 200, "cursor": "next"}));
}

#[test]
fn a_secret_goes_alone_to_standard_output() {
    let token = json!({"id": id::<model::TokenId>(1), "expiresInSeconds": 3600});
    let stub = Stub::script(vec![Answer::json(json!({"token": token, "secret": "bct_thesecret"}))]);
    let outcome = Person::at(&stub).run("tokens create ci");
    assert_eq!(outcome.out, "bct_thesecret\n");
    assert!(outcome.err.contains("lasts 1h") && !outcome.err.contains("thesecret"), "{}", outcome.err);
}

#[test]
fn an_explanation_reads_like_the_refusal() {
    let answer = json!({
        "pool": {"id": id::<model::PoolId>(1), "name": "gpu"}, "fits": false, "summary": "no node in pool \"gpu\" fits",
        "groups": [{"nodes": 2, "verdict": "busy", "reason": "4 GPUs free, 8 wanted"}], "hints": ["--gpus 4"],
        "nodes": [{"node": {"id": "n", "name": "sim-0"}, "verdict": "busy", "reasons": ["4 GPUs free", "no NVLink"]}],
    });
    let stub = Stub::script(vec![Answer::json(answer)]);
    let outcome = Person::at(&stub).run("reservations explain --pool gpu --gpus 8");
    let wanted = "\
no node in pool \"gpu\" fits
  2 nodes   4 GPUs free, 8 wanted
  try       --gpus 4

sim-0  busy    4 GPUs free; no NVLink
";
    assert_eq!(outcome.out, wanted);
}
