use api::Problem;
use serde_json::{Map, json};

use super::*;
use crate::Refusal;

fn refused(code: &str, status: u16, retry_after: Option<u64>) -> ClientError {
    let problem = Problem {
        code: code.to_owned(),
        message: String::new(),
        details: Map::new(),
        request_id: String::new(),
        docs: String::new(),
    };
    ClientError::Refused(Box::new(Refusal { status, problem, retry_after }))
}

#[test]
fn only_what_is_safe_to_repeat_is_repeated() {
    let row = |name| api::find(name).expect("it is in the table");
    assert!(repeatable(row("nodes.list"), &json!({})));
    assert!(repeatable(row("reservations.create"), &json!({"idempotencyKey": "k"})));
    assert!(!repeatable(row("reservations.create"), &json!({})));
    assert!(!repeatable(row("nodes.revoke"), &json!({})));
}

#[test]
fn a_change_that_may_have_happened_is_not_repeated() {
    let timeout = ClientError::Timeout { url: String::new() };
    assert_eq!(decide(&timeout, false, 1), Decision::GiveUp);
    assert_eq!(decide(&timeout, true, 1), Decision::Again);
    assert_eq!(decide(&refused("UNAVAILABLE", 503, None), false, 1), Decision::GiveUp);
}

#[test]
fn a_rate_limit_is_waited_out_as_long_as_the_server_says() {
    let limited = refused("RATE_LIMITED", 429, Some(3));
    assert_eq!(decide(&limited, false, 1), Decision::AgainAfter(Duration::from_secs(3)));
    assert_eq!(decide(&refused("RATE_LIMITED", 429, Some(3600)), true, 1), Decision::GiveUp);
}

#[test]
fn an_answer_is_not_argued_with() {
    for (code, status) in
        [("NOT_FOUND", 404), ("CAPACITY_UNAVAILABLE", 503), ("INTERNAL", 500), ("CONFLICT", 409)]
    {
        assert_eq!(decide(&refused(code, status, None), true, 1), Decision::GiveUp, "{code}");
    }
}

#[test]
fn tries_end() {
    assert_eq!(decide(&refused("UNAVAILABLE", 503, None), true, TRIES_MAX), Decision::GiveUp);
}

#[test]
fn a_code_of_a_newer_server_falls_back_to_its_status() {
    let error = refused("SERVER_IS_TIRED", 503, Some(1));
    assert_eq!(decide(&error, true, 1), Decision::AgainAfter(Duration::from_secs(1)));
}
