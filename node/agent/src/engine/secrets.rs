//! Questions for secrets: signed by the node, each with a key of its own, and believed only in a worker's signed answer to that
//! very question.

use std::collections::BTreeMap;
use std::time::Duration;

use pki::Purpose;
use pki::seal::{self, DecryptionKey};
use wire::limits::SECRETS_AT_ONCE_MAX;
use wire::proto::agent::node_frame::Frame;
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::secret::{Answered, Asked, RequestId};

use super::Engine;
use crate::clock::Now;
use crate::dispatch::update::node_signature;
use crate::effect::{Effect, Outgoing};
use crate::entropy::RngEntropy;
use crate::secrets::{SecretTold, SecretValue, SecretWanted};

/// How long an answer may take. A gateway that got none says so a second earlier.
const PATIENCE: Duration = Duration::from_secs(10);

/// Questions that are not answered yet. Those of an earlier process are nobody's: their keys are gone.
#[derive(Default)]
pub(super) struct Questions(BTreeMap<RequestId, Question>);

struct Question {
    wanted: SecretWanted,
    asked: Asked,
    /// Dropped with the question, and wiped.
    key: DecryptionKey,
    until: Duration,
}

impl Questions {
    /// When one of them has waited long enough.
    pub fn deadline(&self) -> Option<Duration> {
        self.0.values().map(|question| question.until).min()
    }
}

fn later(message: impl Into<String>) -> SecretTold {
    SecretTold::Later { message: message.into() }
}

impl Engine {
    /// Asks for what a pass found missing, unless it is asked for already. What is too much at once is wanted again by the next
    /// pass.
    pub(super) fn want_secrets(&mut self, wanted: Vec<SecretWanted>, now: Now) {
        for wanted in wanted {
            if self.questions.0.values().any(|question| question.wanted == wanted) {
                continue;
            }
            if !self.session.is_open() || self.revoked {
                self.told(wanted, later("it is asked for once there is a session with the control plane"));
            } else if self.questions.0.len() < SECRETS_AT_ONCE_MAX {
                self.ask_for(wanted, now);
            }
        }
    }

    fn ask_for(&mut self, wanted: SecretWanted, now: Now) {
        let key = DecryptionKey::generate(&RngEntropy(self.rng.clone()));
        let asked = Asked {
            request_id: self.rng.bytes(),
            node_id: self.node.node_id,
            instance_id: wanted.instance_id,
            allocation_id: wanted.allocation_id,
            secret_id: wanted.secret_id,
            one_time_key: key.encryption_key().spki_der().to_vec(),
            at: self.server_time(now),
        };
        let body = asked.render();
        let signature = Some(node_signature(&self.key, Purpose::SecretRequest, &body));
        let request = SecretRequest { body: body.into(), signature };
        let question = Question { wanted, key, until: now.monotonic + PATIENCE, asked };
        self.questions.0.insert(question.asked.request_id, question);
        self.send(Outgoing::frame(Frame::SecretRequest(request)));
    }

    pub(super) fn secret_answer(&mut self, answer: &SecretAnswer, now: Now) {
        let Ok(request_id) = RequestId::try_from(answer.request_id.as_ref()) else { return };
        // One that is not asked any more may still be answered.
        let Some(question) = self.questions.0.get(&request_id) else { return };
        let told = if answer.body.is_empty() {
            later("no worker of the control plane has answered")
        } else {
            match self.believed(question, answer, now) {
                Ok(told) => told,
                Err(why) => {
                    // The true one may come yet.
                    tracing::warn!(target: "security", why, "an answer to a question for a secret is not believed");
                    return;
                }
            }
        };
        if let Some(question) = self.questions.0.remove(&request_id) {
            let wakes = !matches!(told, SecretTold::Later { .. });
            self.told(question.wanted, told);
            if wakes {
                self.effects.push(Effect::Converge);
            }
        }
    }

    /// What the answer says, when a worker says it, of this question.
    fn believed(&self, question: &Question, answer: &SecretAnswer, now: Now) -> Result<SecretTold, String> {
        let estimate = self.server_time(now);
        let at = self.clock.now(now).unwrap_or(estimate);
        let signature = answer.signature.as_ref().map_or(&[][..], |signature| &signature.value);
        self.verifier
            .verify_bytes(Purpose::SecretAnswer, &answer.body, signature, at)
            .map_err(|refused| refused.to_string())?;
        let answered = wire::secret::answer(&answer.body, &question.asked).map_err(|err| err.to_string())?;
        Ok(match answered {
            Answered::Sealed(sealed) => {
                let kid = wire::secret::kid(&question.asked.request_id);
                let value = seal::open(&sealed, &question.key, &kid).map_err(|err| err.to_string())?;
                SecretTold::Value(SecretValue::new(value))
            }
            Answered::Refused { reason, message } => {
                SecretTold::Refused { message: crate::conditions::cut(&format!("{message} ({reason})")) }
            }
            Answered::Later { reason } => {
                later(crate::conditions::cut(&format!("the control plane does not tell it now ({reason})")))
            }
        })
    }

    /// Gives up on questions that have waited long enough.
    pub(super) fn expire_questions(&mut self, now: Now) {
        self.give_up(
            |question| question.until <= now.monotonic,
            "the control plane has not answered in time",
        );
    }

    /// The connection that they went over is gone, and their answers with it.
    pub(super) fn forget_questions(&mut self) {
        self.give_up(|_| true, "the session ended before it was answered");
    }

    fn give_up(&mut self, which: impl Fn(&Question) -> bool, why: &str) {
        let over: Vec<Question> = self
            .questions
            .0
            .extract_if(.., |_, question| which(question))
            .map(|(_, question)| question)
            .collect();
        for question in over {
            self.told(question.wanted, later(why));
        }
    }

    fn told(&mut self, wanted: SecretWanted, told: SecretTold) {
        self.effects.push(Effect::Told { wanted, told });
    }
}
