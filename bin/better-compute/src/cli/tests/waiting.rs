//! Waiting, watching and streaming.

use super::*;

#[test]
fn waiting_follows_until_it_is_active() {
    let stub = Stub::script(
        ["scheduling", "placed", "active"].map(|state| Answer::json(reservation(state))).to_vec(),
    );
    let outcome = Person::at(&stub).run("reservations create --pool gpu --gpus 4 --wait --query state");
    assert_eq!((outcome.code, outcome.out.as_str()), (0, "\"active\"\n"), "{}", outcome.err);
    let asked = stub.asked();
    assert_eq!(asked[1].line, "POST /api/compute/reservations/get");
    assert_eq!(asked[1].body, json!({"id": id::<model::ReservationId>(1), "wait": {"timeoutMs": 2000}}));
}

#[test]
fn what_was_named_is_followed_by_its_id() {
    let id = id::<model::InstanceId>(1);
    let states = ["deleting", "deleted"]
        .map(|state| Answer::json(json!({"id": id, "state": state, "desiredState": "deleted"})));
    let stub = Stub::script(states.to_vec());
    let outcome = Person::at(&stub).run("instances delete web --yes --wait");
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let asked = stub.asked();
    assert_eq!(
        (asked[0].line.as_str(), &asked[0].body["id"]),
        ("POST /api/compute/instances/delete", &json!("web"))
    );
    assert_eq!(
        (asked[1].line.as_str(), &asked[1].body["id"]),
        ("POST /api/compute/instances/get", &json!(id))
    );
}

#[test]
fn what_settles_otherwise_is_a_failure_with_its_reason() {
    let mut failed = reservation("failed");
    failed["failure"] = "no node came free".into();
    let stub = Stub::script(vec![Answer::json(reservation("scheduling")), Answer::json(failed)]);
    let outcome = Person::at(&stub).run("reservations create --pool gpu --gpus 4 --wait -o json");
    assert_eq!(outcome.code, 1);
    assert_eq!(outcome.err, "error: failed: no node came free\n");
    assert!(outcome.out.contains("\"failed\""), "the answer is printed all the same: {}", outcome.out);
}

#[test]
fn patience_ends_with_a_code_of_its_own() {
    let accepting = || {
        let mut it = node("sim-0", 8, json!([]));
        it["state"] = "accepting".into();
        Answer::json(it)
    };
    let stub = Stub::script(vec![accepting()]);
    let outcome = Person::at(&stub).run("nodes adopt sim-0 --pool gpu --wait --wait-timeout 5");
    assert_eq!(outcome.code, 6, "{}", outcome.err);
    assert!(outcome.err.contains("accepting after 5s"), "{}", outcome.err);
    assert!(
        outcome.err.contains(&format!("better-compute nodes get {}", id::<model::NodeId>(8))),
        "{}",
        outcome.err
    );
}

#[test]
fn a_create_whose_answer_was_lost_is_sent_again_under_its_key() {
    let stub = Stub::script(vec![Answer::dropped(), Answer::json(reservation("scheduling"))]);
    let outcome = Person::at(&stub).run("reservations create --pool gpu --gpus 4");
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let asked = stub.asked();
    assert_eq!(asked[0].body["idempotencyKey"], asked[1].body["idempotencyKey"]);
}

#[test]
fn watching_prints_what_changed_and_ends_with_a_refusal() {
    let page = |name: &str| Answer::json(json!({"items": [{"name": name}]}));
    let end = Answer::error(ErrorCode::AccessDenied, "no", json!({}));
    let stub = Stub::script(vec![page("a"), page("a"), page("b"), end]);
    let outcome = Person::at(&stub).run("sites list --watch --query items[].name");
    assert_eq!(outcome.code, 4);
    assert_eq!(outcome.out, "[\n  \"a\"\n]\n[\n  \"b\"\n]\n");
}

#[test]
fn events_come_one_a_line() {
    let frame = |seq: u64| {
        let event = json!({
            "specversion": "1.0", "id": id::<model::EventId>(seq.into()), "source": "/deployments/x", "type": "node.ready",
            "subject": "node/x", "time": "2026-03-01T12:00:00Z", "seq": seq, "data": {"a": 1},
        });
        format!("id: {seq}\ndata: {event}\n\n")
    };
    let stub = Stub::script(vec![Answer::text(200, &format!("{}{}", frame(1), frame(2)))]);
    let person = Person::at(&stub);
    let outcome = person.run("events stream --type node --count 2 -o json");
    let seqs: Vec<Value> = outcome
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON")["seq"].clone())
        .collect();
    assert_eq!((outcome.code, seqs), (0, vec![json!(1), json!(2)]), "{}", outcome.err);
    assert_eq!(stub.asked()[0].line, "GET /api/compute/events/stream?type=node");
    let people = person.run("events stream --count 1");
    assert!(people.out.starts_with("2026-03-01T12:00:00Z  node.ready"), "{}", people.out);
}
