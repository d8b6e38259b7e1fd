use api::{nodes, reservations};
use kit::{ManualClock, SeededRng};
use model::{ErrorCode, Timestamp};
use serde_json::json;

use super::*;
use crate::testing::{Answer, Stub};

fn client(stub: &Stub) -> Client {
    let config = Config::new(stub.url()).token("bct_test");
    let clock = ManualClock::at(Timestamp::from_micros(0));
    Client::new(config, Arc::new(clock), Arc::new(SeededRng::new(1))).expect("loopback needs no roots")
}

fn row(name: &str) -> &'static MethodRow {
    api::find(name).expect("it is in the table")
}

#[tokio::test]
async fn a_call_goes_to_its_route_with_the_token() {
    let stub = Stub::script(vec![Answer::json(json!({"items": []}))]);
    let list = nodes::ListNodes::default();
    let answer = client(&stub).call::<nodes::List>(&list).await.expect("it is answered");
    assert!(answer.items.is_empty());
    let asked = stub.asked();
    assert_eq!(asked[0].line, "POST /api/compute/nodes/list");
    assert_eq!(asked[0].header("authorization"), Some("Bearer bct_test"));
    assert_eq!(asked[0].body, json!({}));
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_details() {
    let refusal = Answer::error(ErrorCode::NotFound, "no node sim-9", json!({"kind": "node"}));
    let stub = Stub::script(vec![refusal]);
    let error = client(&stub)
        .call_value(row("nodes.get"), json!({"node": "sim-9"}))
        .await
        .expect_err("it is refused");
    let refusal = error.refusal().expect("the server said it");
    assert_eq!((refusal.code(), refusal.status), (ErrorCode::NotFound, 404));
    assert_eq!(refusal.problem.details["kind"], "node");
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn a_read_outlives_a_broken_connection_and_a_restart() {
    let unavailable = Answer::error(ErrorCode::Unavailable, "starting", json!({})).header("retry-after", "1");
    let stub = Stub::script(vec![Answer::dropped(), unavailable, Answer::json(json!({"items": []}))]);
    let answer = client(&stub).call_value(row("nodes.list"), json!({})).await;
    assert_eq!(answer.expect("the third try is answered"), json!({"items": []}));
    assert_eq!(stub.asked().len(), 3);
}

#[tokio::test]
async fn a_create_without_a_key_is_sent_once() {
    let stub = Stub::script(vec![Answer::dropped()]);
    let create = json!({"pool": "gpu", "gpus": 1});
    let error =
        client(&stub).call_value(row("reservations.create"), create).await.expect_err("nobody answered");
    assert!(matches!(error, ClientError::Broken { .. }), "{error:?}");
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn a_create_with_a_key_is_repeated_as_it_was() {
    let stub = Stub::script(vec![Answer::dropped(), Answer::error(ErrorCode::Conflict, "taken", json!({}))]);
    let create = json!({"pool": "gpu", "gpus": 1, "idempotencyKey": "k"});
    let error =
        client(&stub).call_value(row("reservations.create"), create).await.expect_err("it is refused");
    assert_eq!(error.refusal().map(Refusal::code), Some(ErrorCode::Conflict));
    let asked = stub.asked();
    assert_eq!((asked.len(), &asked[0].body), (2, &asked[1].body));
}

#[tokio::test]
async fn tries_end_and_the_last_refusal_is_told() {
    let stub = Stub::script(vec![Answer::error(ErrorCode::RateLimited, "slow down", json!({}))]);
    let error = client(&stub).call_value(row("nodes.list"), json!({})).await.expect_err("it is refused");
    assert_eq!(error.refusal().map(Refusal::code), Some(ErrorCode::RateLimited));
    assert_eq!(stub.asked().len(), crate::retry::TRIES_MAX as usize);
}

#[tokio::test]
async fn what_is_not_the_api_is_not_believed() {
    for answer in [Answer::text(200, "<html>"), Answer::text(404, "<html>"), Answer::text(302, "")] {
        let stub = Stub::script(vec![answer]);
        let error =
            client(&stub).call_value(row("nodes.list"), json!({})).await.expect_err("that is no answer");
        assert!(matches!(error, ClientError::Answer { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_answer_of_another_shape_is_an_error_of_its_method() {
    let stub = Stub::script(vec![Answer::json(json!({"id": 5}))]);
    let request = serde_json::from_value(json!({"pool": "gpu", "gpus": 1})).expect("it is a request");
    let error =
        client(&stub).call::<reservations::Create>(&request).await.expect_err("that is no reservation");
    assert!(error.to_string().contains("reservations.create"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_a_connection_error_with_its_cause() {
    let url = Stub::script(vec![]).url().to_owned();
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let client =
        Client::new(Config::new(url), Arc::new(clock), Arc::new(SeededRng::new(1))).expect("it is valid");
    let error = client.call_value(row("nodes.list"), json!({})).await.expect_err("nobody listens");
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
}

#[test]
fn a_ca_file_must_hold_authorities() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, "nothing here").expect("it can be written");
    let config = Config::new("https://a.example").ca_file(&path);
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
    let made = Client::new(config, clock.clone(), Arc::new(SeededRng::new(1)));
    assert!(matches!(made.err(), Some(ConfigError::NoRoots { .. })));
    let missing = Config::new("https://a.example").ca_file(folder.path().join("none.pem"));
    let made = Client::new(missing, clock, Arc::new(SeededRng::new(1)));
    assert!(matches!(made.err(), Some(ConfigError::Roots { .. })));
}
