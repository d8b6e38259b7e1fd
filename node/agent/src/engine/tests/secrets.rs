//! Questions for secrets, and which answers are believed.

use model::{AllocationId, InstanceId, SecretId};
use pki::seal::{self, EncryptionKey};
use pki::{Purpose, SeededEntropy, Signature};
use wire::limits::SECRETS_AT_ONCE_MAX;
use wire::proto::agent::gateway_frame::Frame as Gateway;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::secret::{Answered, Asked};

use super::rig::*;
use crate::engine::*;
use crate::secrets::{SecretTold, SecretValue, SecretWanted};
use crate::testing::{Deployment, nth};
use model::SectionState;

fn wanted(n: u128) -> SecretWanted {
    SecretWanted {
        instance_id: nth::<InstanceId>(n),
        allocation_id: nth::<AllocationId>(100 + n),
        secret_id: nth::<SecretId>(200 + n),
    }
}

impl Rig {
    /// A pass that waits for these; what is asked for.
    fn want(&mut self, wanted: &[SecretWanted]) -> Vec<(SecretRequest, Asked)> {
        let mut report = pass(1, SectionState::Progressing, vec![]);
        report.sections.get_mut(&3).unwrap().secrets = wanted.to_vec();
        self.step(Input::Passed(report));
        let frames = self.take_sent().into_iter();
        let requests = frames.filter_map(|frame| match frame.frame {
            Some(Frame::SecretRequest(request)) => Some(request),
            _ => None,
        });
        requests.map(|request| wire::secret::request(&bytes(&request)).expect("it is one")).collect()
    }

    /// What was told since this was last asked, and whether a pass is due.
    fn heard(&mut self) -> (Vec<(SecretWanted, SecretTold)>, bool) {
        let (mut told, mut wakes) = (Vec::new(), false);
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Told { wanted, told: what } => told.push((wanted, what)),
                Effect::Converge => wakes = true,
                _ => {}
            }
        }
        (told, wakes)
    }

    fn hears_nothing(&mut self) {
        assert_eq!(self.heard(), (Vec::new(), false));
    }
}

fn sealed_to(asked: &Asked, spki: &[u8]) -> Answered {
    let key = EncryptionKey::from_spki_der(spki).unwrap();
    let kid = wire::secret::kid(&asked.request_id);
    Answered::Sealed(seal::seal(b"hunter2", &key, &kid, &SeededEntropy::new(9)).unwrap())
}

fn answer(deployment: &Deployment, asked: &Asked, answered: Answered) -> SecretAnswer {
    let body = wire::secret::answer_body(asked, answered);
    let signature = Some(deployment.sign(Purpose::SecretAnswer, &body));
    SecretAnswer { request_id: asked.request_id.to_vec().into(), body: body.into(), signature }
}

fn value() -> SecretTold {
    SecretTold::Value(SecretValue::new(b"hunter2".to_vec().into()))
}

fn is_later(told: &[(SecretWanted, SecretTold)]) -> bool {
    told.len() == 1 && matches!(told[0].1, SecretTold::Later { .. })
}

#[test]
fn a_question_is_the_nodes_own_and_its_answer_wakes_the_pass_that_waits() {
    let mut rig = at_generation_one();
    let asked = rig.want(&[wanted(1)]);
    let [(request, asked)] = &asked[..] else { panic!("{asked:?}") };
    let signature = request.signature.as_ref().unwrap();
    let key = rig.identity.key.verifying_key();
    assert_eq!(signature.key_sha256.as_ref(), key.pin().as_bytes());
    let value_of = Signature::from_bytes(&signature.value).unwrap();
    assert!(key.verify(Purpose::SecretRequest, &request.body, &value_of).is_ok());
    assert_eq!((asked.node_id, asked.instance_id), (rig.identity.node_id, wanted(1).instance_id));
    assert_eq!(rig.want(&[wanted(1)]), [], "it is asked already");
    rig.effects.clear();

    let good = answer(&rig.deployment.clone(), asked, sealed_to(asked, &asked.one_time_key));
    rig.frame(Gateway::SecretAnswer(good.clone()));
    assert_eq!(rig.heard(), (vec![(wanted(1), value())], true));
    rig.frame(Gateway::SecretAnswer(good));
    rig.hears_nothing();
    assert!(!format!("{:?}", value()).contains("hunter2"));

    let again = rig.want(&[wanted(1)]);
    assert_ne!(again[0].1.request_id, asked.request_id);
    assert_ne!(again[0].1.one_time_key, asked.one_time_key, "each question has a key of its own");
}

#[test]
fn no_answer_is_believed_that_no_worker_gave_to_this_question() {
    let mut rig = at_generation_one();
    let asked = rig.want(&[wanted(1), wanted(2)]);
    let (asked, other) = (asked[0].1.clone(), asked[1].1.clone());
    rig.effects.clear();
    let deployment = rig.deployment.clone();
    let own_value = || sealed_to(&asked, &asked.one_time_key);
    let good = answer(&deployment, &asked, own_value());

    // A gateway can seal to the key that it sees. It cannot sign.
    let unsigned = SecretAnswer { signature: None, ..good.clone() };
    let strangers = answer(&Deployment::new(7), &asked, own_value());
    let body = good.body.clone();
    let for_another_purpose =
        SecretAnswer { signature: Some(deployment.sign(Purpose::DesiredState, &body)), ..good.clone() };
    let refusal = Answered::Refused { reason: "not-placed".into(), message: String::new() };
    let forged_refusal = SecretAnswer { signature: None, ..answer(&deployment, &asked, refusal) };
    // The answer to another question, under this one's id.
    let anothers = answer(&deployment, &other, sealed_to(&other, &other.one_time_key));
    let exchanged = SecretAnswer { request_id: good.request_id.clone(), ..anothers };
    // Truly signed, and not for us to open.
    let for_another_key = answer(&deployment, &asked, sealed_to(&asked, &other.one_time_key));
    for forged in [unsigned, strangers, for_another_purpose, forged_refusal, exchanged, for_another_key] {
        rig.frame(Gateway::SecretAnswer(forged));
        rig.hears_nothing();
    }
    let unasked = SecretAnswer { request_id: vec![1; 16].into(), ..good.clone() };
    rig.frame(Gateway::SecretAnswer(unasked));
    rig.hears_nothing();
    rig.frame(Gateway::SecretAnswer(good));
    assert_eq!(rig.heard(), (vec![(wanted(1), value())], true), "the true one is still taken");
}

#[test]
fn a_signed_refusal_is_final_and_everything_else_is_only_not_yet() {
    let mut rig = at_generation_one();
    let deployment = rig.deployment.clone();
    let asked = rig.want(&[wanted(1)])[0].1.clone();
    rig.effects.clear();
    let refusal = Answered::Refused { reason: "not-named".into(), message: "it names none".into() };
    rig.frame(Gateway::SecretAnswer(answer(&deployment, &asked, refusal)));
    let (told, wakes) = rig.heard();
    assert!(wakes);
    assert_eq!(told[0].1, SecretTold::Refused { message: "it names none (not-named)".into() });

    let asked = rig.want(&[wanted(1)])[0].1.clone();
    rig.effects.clear();
    rig.frame(Gateway::SecretAnswer(answer(&deployment, &asked, Answered::Later { reason: "rate".into() })));
    let (told, wakes) = rig.heard();
    assert!(is_later(&told) && !wakes, "{told:?}");

    let asked = rig.want(&[wanted(1)])[0].1.clone();
    rig.effects.clear();
    let nobody = SecretAnswer { request_id: asked.request_id.to_vec().into(), ..SecretAnswer::default() };
    rig.frame(Gateway::SecretAnswer(nobody));
    assert!(is_later(&rig.heard().0));
}

#[test]
fn what_is_not_answered_in_time_or_on_its_session_is_given_up() {
    let mut rig = at_generation_one();
    let deployment = rig.deployment.clone();
    let asked = rig.want(&[wanted(1)])[0].1.clone();
    rig.effects.clear();
    rig.tick_to(rig.seconds + 9);
    assert!(rig.heard().0.is_empty());
    assert!(rig.engine.deadline() <= Duration::from_secs(rig.seconds + 1));
    rig.tick_to(rig.seconds + 1);
    assert!(is_later(&rig.heard().0));
    let late = answer(&deployment, &asked, sealed_to(&asked, &asked.one_time_key));
    rig.frame(Gateway::SecretAnswer(late));
    rig.hears_nothing();

    assert_eq!(rig.want(&[wanted(1)]).len(), 1);
    rig.effects.clear();
    rig.step(Input::Disconnected { why: "cut".into(), pushback: None });
    assert!(is_later(&rig.heard().0));
    assert_eq!(rig.want(&[wanted(1)]), [], "there is nobody to ask");
    assert!(is_later(&rig.heard().0));
}

#[test]
fn only_so_many_are_asked_at_once_and_the_rest_follow() {
    let mut rig = at_generation_one();
    let all: Vec<SecretWanted> = (0..20).map(wanted).collect();
    let asked = rig.want(&all);
    assert_eq!(asked.len(), SECRETS_AT_ONCE_MAX);
    let (deployment, first) = (rig.deployment.clone(), asked[0].1.clone());
    rig.frame(Gateway::SecretAnswer(answer(&deployment, &first, sealed_to(&first, &first.one_time_key))));
    assert_eq!(rig.want(&all[1..]).len(), 1);
}
