use std::sync::Arc;

use kit::{SeededRng, SystemClock};
use model::ErrorCode;
use serde_json::json;

use super::*;
use crate::Config;
use crate::testing::{Answer, Stub};

fn frame(seq: u64) -> String {
    let event = json!({
        "specversion": "1.0", "id": model::EventId::from_uuid(Default::default()).to_string(), "source": "/deployments/dep_x",
        "type": "node.ready", "subject": "node/x", "time": "2026-03-01T12:00:00Z", "seq": seq, "data": {},
    });
    format!("id: {seq}\nevent: node.ready\ndata: {event}\n\n")
}

fn client(stub: &Stub) -> Client {
    Client::new(Config::new(stub.url()), Arc::new(SystemClock::new()), Arc::new(SeededRng::new(1)))
        .expect("loopback needs no roots")
}

#[tokio::test]
async fn a_stream_goes_on_after_the_last_event_it_gave() {
    let first = format!(": hello\n\n{}{}", frame(7), frame(8));
    let stub = Stub::script(vec![Answer::text(200, &first), Answer::text(200, &frame(9))]);
    let mut events = client(&stub)
        .events(EventFilter { kind: Some("node".to_owned()), ..EventFilter::default() }, Some(6));
    for seq in 7..=9 {
        assert_eq!(events.next_event().await.expect("it comes").seq, seq);
    }
    let asked = stub.asked();
    assert_eq!(asked[0].line, "GET /api/compute/events/stream?type=node");
    assert_eq!(asked[0].header("last-event-id"), Some("6"));
    assert_eq!(asked[1].header("last-event-id"), Some("8"));
    assert_eq!(events.last_seq(), Some(9));
}

#[tokio::test]
async fn a_refusal_ends_the_stream() {
    let stub = Stub::script(vec![Answer::error(ErrorCode::AccessDenied, "no", json!({}))]);
    let error =
        client(&stub).events(EventFilter::default(), None).next_event().await.expect_err("it is refused");
    assert_eq!(error.refusal().map(crate::Refusal::code), Some(ErrorCode::AccessDenied));
}
