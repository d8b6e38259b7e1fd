//! Questions for secrets: carried to a worker and back as they are, and in nobody's way.

use model::{AllocationId, InstanceId, SecretId};
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::proto::common::{IntentSignature, NodeSignature};
use wire::secret::Asked;

use super::*;

fn question(machine: &Machine, n: u8) -> SecretRequest {
    let asked = Asked {
        request_id: [n; 16],
        node_id: machine.node_id,
        instance_id: InstanceId::from_uuid(Uuid::from_u128(1)),
        allocation_id: AllocationId::from_uuid(Uuid::from_u128(2)),
        secret_id: SecretId::from_uuid(Uuid::from_u128(3)),
        one_time_key: vec![4; 91],
        at: Timestamp::from_millis(1_772_323_200_000),
    };
    let signature = NodeSignature { value: vec![5; 64].into(), key_sha256: vec![6; 32].into() };
    SecretRequest { body: asked.render().into(), signature: Some(signature) }
}

async fn answered(stream: &mut Stream) -> SecretAnswer {
    stream
        .until(|frame| match frame {
            Out::SecretAnswer(answer) => Some(answer),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn a_question_and_its_answer_pass_as_they_are_and_the_session_goes_on_meanwhile() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    let asked = question(&machine, 1);
    stream.send(In::SecretRequest(asked.clone()));
    let item = bench.store.next_request().await;
    assert_eq!(item.request.kind, InboxKind::Secret);
    assert_eq!(item.request.peer_serial.as_deref(), Some(machine.serial.as_str()));
    assert_eq!(SecretRequest::decode(item.request.request.as_slice()).unwrap(), asked);
    // While a worker thinks, everything else is answered.
    stream.beat(1, 4);
    stream.until(|frame| matches!(frame, Out::HeartbeatAck(_)).then_some(())).await;
    let command_id = bench.enqueue(machine.node_id, CommandKind::InventoryRefresh);
    assert_eq!(commanded(&mut stream).await, (command_id, 1));
    let answer = SecretAnswer {
        request_id: vec![1; 16].into(),
        body: vec![7; 90_000].into(),
        signature: Some(IntentSignature { value: vec![8; 500].into() }),
    };
    item.answer(InboxAnswer::Reply(answer.encode_to_vec()));
    assert_eq!(answered(&mut stream).await, answer);
}

#[tokio::test]
async fn a_question_that_is_refused_here_is_told_to_come_later_since_no_worker_signed_for_it() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let mut stream = bench.open(&machine).await;
    stream.send(In::SecretRequest(question(&machine, 1)));
    bench.store.next_request().await.answer(InboxAnswer::Refused("the signature does not verify".to_owned()));
    let answer = answered(&mut stream).await;
    assert_eq!((&answer.request_id[..], answer.body.is_empty()), (&[1; 16][..], true));
    assert_eq!(answer.signature, None);
}
