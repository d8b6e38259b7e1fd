//! What a refusal looks like, and its exit code.

use super::*;

fn refused(code: ErrorCode, line: &str) -> Outcome {
    let stub = Stub::script(vec![Answer::error(code, "it was refused", json!({}))]);
    Person::at(&stub).run(line)
}

#[test]
fn each_code_has_its_exit_code() {
    use ErrorCode as E;
    for code in ErrorCode::ALL {
        let wanted = match code {
            E::InvalidInput | E::ConfirmationRequired => 2,
            E::NotFound => 3,
            E::Unauthenticated | E::AccessDenied => 4,
            E::Conflict | E::InvalidState => 5,
            _ => 1,
        };
        let outcome = refused(code, "nodes get sim-0");
        assert_eq!(outcome.code, wanted, "{}: {}", code.name(), outcome.err);
        assert!(outcome.err.contains(code.name()), "{}", outcome.err);
        assert!(outcome.out.is_empty(), "{}", outcome.out);
    }
}

#[test]
fn a_lack_of_capacity_says_why_and_what_to_try() {
    let details = json!({
        "groups": [{"nodes": 6, "reason": "have 8 GPUs in all, 16 wanted on one node"}, {"nodes": 1, "reason": "cordoned by alice"}],
        "hints": ["--gpus 8"],
        "explain": "better-compute reservations explain --pool gpu",
    });
    let refusal = Answer::error(
        ErrorCode::CapacityUnavailable,
        "no node in pool \"gpu\" can hold 16 GPUs together",
        details,
    );
    let stub = Stub::script(vec![refusal]);
    let outcome = Person::at(&stub).run("reservations create --pool gpu --gpus 16 --hours 2");
    let wanted = "\
error: no node in pool \"gpu\" can hold 16 GPUs together              CAPACITY_UNAVAILABLE
  6 nodes   have 8 GPUs in all, 16 wanted on one node
  1 node    cordoned by alice
  try       --gpus 8
  explain   better-compute reservations explain --pool gpu --gpus 16
";
    assert_eq!(outcome.err, wanted);
    assert_eq!(outcome.code, 1);
}

#[test]
fn a_refusal_names_the_next_command() {
    let cases = [
        (ErrorCode::Unauthenticated, "nodes get sim-0", "better-compute login --token-stdin"),
        (ErrorCode::AccessDenied, "nodes get sim-0", "better-compute tokens whoami"),
        (ErrorCode::NotFound, "nodes get sim-0", "better-compute nodes list"),
        (ErrorCode::QuotaExceeded, "reservations create --pool gpu --gpus 1", "better-compute quotas list"),
        (ErrorCode::InvalidState, "nodes cordon sim-0", "better-compute nodes get sim-0"),
        (ErrorCode::InvalidInput, "nodes get sim-0", "better-compute nodes get --help"),
    ];
    for (code, line, next) in cases {
        let outcome = refused(code, line);
        assert!(outcome.err.contains(next), "{line}: {}", outcome.err);
    }
}

#[test]
fn what_is_not_found_names_the_list_of_its_kind() {
    let refusal =
        Answer::error(ErrorCode::NotFound, "no policy readers", json!({"kind": "policy", "id": "readers"}));
    let stub = Stub::script(vec![refusal]);
    let outcome = Person::at(&stub).run("bindings put --policy readers --user alice");
    assert!(outcome.err.contains("better-compute policies list"), "{}", outcome.err);
}

#[test]
fn a_name_that_several_have_comes_with_their_ids() {
    let ids = [id::<model::InstanceId>(2), id::<model::InstanceId>(1)];
    let message = "2 instances are called web: give the id of one; better-compute instances list --name web tells them apart";
    let refusal =
        || Answer::error(ErrorCode::InvalidInput, message, json!({"pointer": "/id", "instances": ids}));
    let stub = Stub::script(vec![refusal(), refusal()]);
    for line in ["instances stop web", "console web"] {
        let outcome = Person::at(&stub).run(line);
        assert_eq!(outcome.code, 2, "{line}: {}", outcome.err);
        assert!(outcome.err.contains(message), "{line}: {}", outcome.err);
        assert!(ids.iter().all(|id| outcome.err.contains(id)), "{line}: {}", outcome.err);
    }
    assert_eq!(stub.asked()[1].line, "POST /api/compute/instances/get");
}

#[test]
fn a_fault_of_the_server_gives_the_request_to_quote() {
    let outcome = refused(ErrorCode::Internal, "nodes get sim-0");
    assert!(outcome.err.contains("  request   req_"), "{}", outcome.err);
}

#[test]
fn a_message_of_the_server_does_not_steer_the_terminal() {
    let stub =
        Stub::script(vec![Answer::error(ErrorCode::NotFound, "no node \u{1b}[2J", json!({"x": "\u{7}"}))]);
    let outcome = Person::at(&stub).run("nodes get sim-0");
    assert!(!outcome.err.contains(['\u{1b}', '\u{7}']), "{:?}", outcome.err);
}

#[test]
fn nobody_there_is_said_with_its_cause() {
    let url = Stub::script(vec![]).url().to_owned();
    let outcome = Person::new().var("BETTER_COMPUTE_URL", &url).run("nodes list");
    assert_eq!(outcome.code, 1);
    assert!(outcome.err.starts_with(&format!("error: failed to reach {url}: ")), "{}", outcome.err);
    assert!(outcome.err.contains("better-compute context show"), "{}", outcome.err);
}

#[test]
fn what_takes_something_away_asks() {
    let stub = Stub::by(|_| {
        Answer::json(
            json!({"node": node("sim-0", 8, json!([])), "holds": ["reservation/rsv_x"], "dryRun": false}),
        )
    });
    let outcome = Person::at(&stub).run("nodes revoke sim-0");
    assert_eq!(outcome.code, 2, "{}", outcome.err);
    assert!(stub.asked().is_empty(), "nothing is sent before somebody agreed");

    let wrong = Person::at(&stub).at_a_terminal(100).typing("sim-1\n").run("nodes revoke sim-0");
    assert_eq!(wrong.code, 1);
    assert!(
        wrong.err.contains("holds     reservation/rsv_x") && wrong.err.contains("nothing was done"),
        "{}",
        wrong.err
    );
    assert!(stub.asked().iter().all(|asked| asked.body["dryRun"] == true));

    let right = Person::at(&stub).at_a_terminal(100).typing("sim-0\n").run("nodes revoke sim-0");
    assert_eq!(right.code, 0, "{}", right.err);
    let last = stub.asked().pop().expect("it was sent");
    assert_eq!(last.body, json!({"node": "sim-0", "confirm": "sim-0"}));
}

#[test]
fn yes_answers_for_a_script() {
    let stub = Stub::by(|asked| match asked.line.ends_with("/nodes/get") {
        true => Answer::json(node("sim-0", 8, json!([]))),
        false => Answer::json(json!({"node": node("sim-0", 8, json!([])), "holds": [], "dryRun": false})),
    });
    let id = id::<model::NodeId>(8);
    let outcome = Person::at(&stub).run(&format!("nodes remove {id} --yes"));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert_eq!(stub.asked().pop().expect("it was sent").body, json!({"node": id, "confirm": "sim-0"}));
}

#[test]
fn a_dry_run_does_not_ask() {
    let stub = Stub::script(vec![Answer::json(reservation("active"))]);
    let outcome =
        Person::at(&stub).run(&format!("reservations release {} --dry-run", id::<model::ReservationId>(1)));
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert_eq!(stub.asked()[0].body["dryRun"], true);
}

#[test]
fn an_image_is_deleted_by_its_name_when_somebody_said_yes() {
    let stub = Stub::script(vec![Answer::json(json!({"name": "debian-12", "state": "deleted"}))]);
    let asked = Person::at(&stub).run("images delete debian-12");
    assert_eq!(asked.code, 2, "{}", asked.err);
    assert!(asked.err.contains("--yes") && stub.asked().is_empty(), "{}", asked.err);
    let doubts = Person::at(&stub).at_a_terminal(100).typing("n\n").run("images delete debian-12");
    assert_eq!(doubts.code, 1, "{}", doubts.err);
    assert!(doubts.err.contains("delete debian-12? [y/N]") && stub.asked().is_empty(), "{}", doubts.err);
    let done = Person::at(&stub).at_a_terminal(100).typing("y\n").run("images delete debian-12");
    assert_eq!(done.code, 0, "{}", done.err);
    let sent = stub.asked().pop().expect("it was sent");
    assert_eq!(
        (sent.line.as_str(), sent.body),
        ("POST /api/compute/images/delete", json!({"image": "debian-12"}))
    );
}

#[test]
fn a_pool_is_deleted_by_its_name_when_somebody_said_yes() {
    let stub = Stub::script(vec![Answer::json(json!({"name": "vps", "state": "deleted", "flavors": 2}))]);
    let doubts = Person::at(&stub).at_a_terminal(100).typing("n\n").run("pools delete vps");
    assert!(doubts.err.contains("delete vps? [y/N]") && stub.asked().is_empty(), "{}", doubts.err);
    let done = Person::at(&stub).run("pools delete vps --yes");
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("deleted") && done.out.contains("flavors"), "{}", done.out);
    let sent = stub.asked().pop().expect("it was sent");
    assert_eq!((sent.line.as_str(), sent.body), ("POST /api/compute/pools/delete", json!({"pool": "vps"})));
}

#[test]
fn a_restore_is_confirmed_by_the_deployments_id() {
    let deployment = id::<model::DeploymentId>(1);
    let stub = Stub::by({
        let deployment = deployment.clone();
        move |_| {
            Answer::json(json!({"deploymentId": deployment, "epoch": 4, "observeOnly": {"reason": "older"}}))
        }
    });
    let typed = format!("{deployment}\n");
    let outcome = Person::at(&stub).at_a_terminal(100).typing(&typed).run("system confirm-restore");
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert_eq!(stub.asked().pop().expect("it was sent").body, json!({"confirm": deployment, "epoch": 4}));
    let blind = Person::at(&stub).run("system confirm-restore --yes");
    assert_eq!(blind.code, 2, "a script says which epoch it saw: {}", blind.err);
}
