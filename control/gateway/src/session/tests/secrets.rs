//! Questions for secrets on a session.

use model::{AllocationId, InstanceId, SecretId};
use wire::limits::SECRETS_AT_ONCE_MAX;
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::secret::Asked;

use super::*;

pub fn asked(n: u8) -> Asked {
    Asked {
        request_id: [n; 16],
        node_id: NODE,
        instance_id: InstanceId::from_uuid(Uuid::from_u128(1)),
        allocation_id: AllocationId::from_uuid(Uuid::from_u128(2)),
        secret_id: SecretId::from_uuid(Uuid::from_u128(3)),
        one_time_key: vec![4; 91],
        at: at(0).server,
    }
}

fn request(asked: &Asked) -> In {
    In::SecretRequest(SecretRequest { body: asked.render().into(), signature: None })
}

fn answer(n: u8, body: &'static [u8]) -> Answer {
    let answer = SecretAnswer { request_id: vec![n; 16].into(), body: body.into(), signature: None };
    Answer::Secret { request_id: vec![n; 16], answer: Some(answer.encode_to_vec()) }
}

#[test]
fn a_question_goes_to_a_worker_and_its_answer_back_and_nothing_waits_for_it() {
    let mut bench = Bench::open();
    assert_eq!(bench.frame(request(&asked(1))), ["ask secret"]);
    assert!(bench.session.reads());
    assert_eq!(bench.frame(In::Heartbeat(Heartbeat { seq: 1, ..Heartbeat::default() })), ["beat 1"]);
    assert_eq!(bench.answer(answer(1, b"signed")), ["answer 6 bytes"]);
    bench.frame(request(&asked(2)));
    assert_eq!(bench.answer(Answer::Secret { request_id: vec![2; 16], answer: None }), ["no answer"]);
    bench.frame(request(&asked(3)));
    let broken = Answer::Secret { request_id: vec![3; 16], answer: Some(vec![0xff]) };
    assert_eq!(bench.answer(broken), ["no answer"]);
}

#[test]
fn more_questions_than_may_be_are_told_to_come_later() {
    let mut bench = Bench::open();
    let most = u8::try_from(SECRETS_AT_ONCE_MAX).unwrap();
    for n in 0..most {
        assert_eq!(bench.frame(request(&asked(n))), ["ask secret"]);
    }
    assert_eq!(bench.frame(request(&asked(most))), ["no answer"]);
    assert!(bench.session.reads(), "it is not read any slower");
    bench.answer(answer(0, b"signed"));
    assert_eq!(bench.frame(request(&asked(most))), ["ask secret"]);
    // One after the other, and far more than a host has instances.
    let mut bench = Bench::open();
    let refused = (0..200).filter(|n| {
        let said = bench.frame(request(&asked(*n)));
        bench.answer(answer(*n, b"signed"));
        said == ["no answer"]
    });
    assert_eq!(refused.count(), 80);
}

#[test]
fn a_question_that_is_none_or_anothers_ends_the_session() {
    let other = Asked { node_id: NodeId::from_uuid(Uuid::from_u128(99)), ..asked(1) };
    for wrong in [
        request(&other),
        In::SecretRequest(SecretRequest { body: vec![0xff; 8].into(), signature: None }),
        In::SecretRequest(SecretRequest { body: vec![0; 8192].into(), signature: None }),
        In::SecretRequest(SecretRequest::default()),
    ] {
        let said = Bench::open().frame(wrong);
        assert!(said[0].starts_with("end violation"), "{said:?}");
    }
}
