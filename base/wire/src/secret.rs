//! A node's request for a secret and its answer, between bytes and values. Whether to believe either is for whoever asks.

use model::{AllocationId, Id, InstanceId, NodeId, SecretId, Timestamp};
use prost::Message;

use crate::DecodeError;
use crate::limits::{
    SECRET_ANSWER_BODY_BYTES_MAX, SECRET_BODY_BYTES_MAX, SECRET_REQUEST_BYTES_MAX, TEXT_BYTES_MAX,
};
use crate::proto::agent::secret_answer_body::Outcome;
use crate::proto::agent::{SecretAnswerBody, SecretRequest, SecretRequestBody};

/// What tells a reference from a value that is written out.
pub const SCHEME: &str = "secret://";
/// DER of a P-256 key.
const KEY_BYTES: usize = 91;

/// Tells one request from every other.
pub type RequestId = [u8; 16];

/// As it is the key id of the box that answers it.
pub fn kid(request_id: &RequestId) -> String {
    request_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a spec names a secret by. The id stays when its value is replaced.
pub fn reference(id: SecretId) -> String {
    format!("{SCHEME}{id}")
}

pub fn of_reference(text: &str) -> Option<SecretId> {
    text.strip_prefix(SCHEME)?.parse().ok()
}

/// What a node asks for, and for which instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub request_id: RequestId,
    pub node_id: NodeId,
    pub instance_id: InstanceId,
    pub allocation_id: AllocationId,
    pub secret_id: SecretId,
    /// SubjectPublicKeyInfo.
    pub one_time_key: Vec<u8>,
    pub at: Timestamp,
}

impl Asked {
    /// The bytes that the node signs.
    pub fn render(&self) -> Vec<u8> {
        SecretRequestBody {
            request_id: self.request_id.to_vec().into(),
            node_id: self.node_id.to_string(),
            instance_id: self.instance_id.to_string(),
            allocation_id: self.allocation_id.to_string(),
            reference: reference(self.secret_id),
            one_time_key: self.one_time_key.clone().into(),
            at_ms: u64::try_from(self.at.millis()).unwrap_or(0),
        }
        .encode_to_vec()
    }

    fn parse(body: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "secret request";
        let body: SecretRequestBody = crate::decode(WHAT, body, SECRET_BODY_BYTES_MAX)?;
        let invalid = |field| DecodeError::Invalid { what: WHAT, field };
        if body.one_time_key.len() != KEY_BYTES {
            return Err(invalid("one_time_key"));
        }
        let at = i64::try_from(body.at_ms).map_err(|_| invalid("at_ms"))?;
        Ok(Self {
            request_id: body.request_id.as_ref().try_into().map_err(|_| invalid("request_id"))?,
            node_id: id(&body.node_id).ok_or_else(|| invalid("node_id"))?,
            instance_id: id(&body.instance_id).ok_or_else(|| invalid("instance_id"))?,
            allocation_id: id(&body.allocation_id).ok_or_else(|| invalid("allocation_id"))?,
            secret_id: of_reference(&body.reference).ok_or_else(|| invalid("reference"))?,
            one_time_key: body.one_time_key.to_vec(),
            at: Timestamp::from_millis(at),
        })
    }
}

fn id<I: Id>(text: &str) -> Option<I> {
    text.parse().ok()
}

/// The two layers of a request.
pub fn request(bytes: &[u8]) -> Result<(SecretRequest, Asked), DecodeError> {
    let signed: SecretRequest = crate::decode("signed secret request", bytes, SECRET_REQUEST_BYTES_MAX)?;
    let asked = Asked::parse(&signed.body)?;
    Ok((signed, asked))
}

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// A sealed box.
    Sealed(String),
    /// Not until something else is asked for.
    Refused { reason: String, message: String },
    /// Not now.
    Later { reason: String },
}

/// The bytes that a worker signs.
pub fn answer_body(asked: &Asked, answered: Answered) -> Vec<u8> {
    use crate::proto::agent::{SecretLater, SecretRefused};
    let outcome = match answered {
        Answered::Sealed(sealed) => Outcome::Sealed(sealed),
        Answered::Refused { reason, message } => Outcome::Refused(SecretRefused { reason, message }),
        Answered::Later { reason } => Outcome::Later(SecretLater { reason }),
    };
    SecretAnswerBody {
        request_id: asked.request_id.to_vec().into(),
        node_id: asked.node_id.to_string(),
        allocation_id: asked.allocation_id.to_string(),
        reference: reference(asked.secret_id),
        outcome: Some(outcome),
    }
    .encode_to_vec()
}

/// What a signed body answers to `asked`; an error when it answers to another question.
pub fn answer(body: &[u8], asked: &Asked) -> Result<Answered, DecodeError> {
    const WHAT: &str = "secret answer";
    let body: SecretAnswerBody = crate::decode(WHAT, body, SECRET_ANSWER_BODY_BYTES_MAX)?;
    let invalid = |field| DecodeError::Invalid { what: WHAT, field };
    if body.request_id.as_ref() != asked.request_id {
        return Err(invalid("request_id"));
    }
    if body.node_id != asked.node_id.to_string() {
        return Err(invalid("node_id"));
    }
    if body.allocation_id != asked.allocation_id.to_string() || body.reference != reference(asked.secret_id) {
        return Err(invalid("reference"));
    }
    match body.outcome {
        Some(Outcome::Sealed(sealed)) => Ok(Answered::Sealed(sealed)),
        Some(Outcome::Refused(refused)) => {
            if refused.reason.len() > TEXT_BYTES_MAX || refused.message.len() > TEXT_BYTES_MAX {
                return Err(invalid("refused"));
            }
            Ok(Answered::Refused { reason: refused.reason, message: refused.message })
        }
        Some(Outcome::Later(later)) if later.reason.len() <= TEXT_BYTES_MAX => {
            Ok(Answered::Later { reason: later.reason })
        }
        Some(Outcome::Later(_)) => Err(invalid("later")),
        // Of a newer control plane.
        None => Ok(Answered::Later { reason: "unknown-answer".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nth<I: Id>(n: u8) -> I {
        format!("{}{n:026}", I::PREFIX).parse().unwrap()
    }

    fn asked() -> Asked {
        Asked {
            request_id: [7; 16],
            node_id: nth(1),
            instance_id: nth(2),
            allocation_id: nth(3),
            secret_id: nth(4),
            one_time_key: vec![9; KEY_BYTES],
            at: Timestamp::from_millis(1_772_323_200_000),
        }
    }

    #[test]
    fn a_request_reads_back_and_one_with_anything_wrong_does_not() {
        let asked = asked();
        let signed = SecretRequest { body: asked.render().into(), signature: None }.encode_to_vec();
        assert_eq!(request(&signed).unwrap().1, asked);
        let wrong: [fn(&mut SecretRequestBody); 7] = [
            |body| body.request_id = vec![7; 15].into(),
            |body| body.node_id = "node_x".to_owned(),
            |body| body.instance_id = String::new(),
            |body| body.allocation_id = "inst_01h2xcejqtf2nbrexx3vqjhp41".to_owned(),
            |body| body.reference = "secret://database-password".to_owned(),
            |body| body.one_time_key = vec![9; KEY_BYTES + 1].into(),
            |body| body.at_ms = u64::MAX,
        ];
        for change in wrong {
            let mut body = SecretRequestBody::decode(asked.render().as_slice()).unwrap();
            change(&mut body);
            assert!(Asked::parse(&body.encode_to_vec()).is_err(), "{body:?}");
        }
    }

    #[test]
    fn an_answer_is_to_one_question() {
        let ours = asked();
        let body = answer_body(&ours, Answered::Sealed("box".to_owned()));
        assert_eq!(answer(&body, &ours), Ok(Answered::Sealed("box".to_owned())));
        for other in [
            Asked { request_id: [8; 16], ..asked() },
            Asked { node_id: nth(5), ..asked() },
            Asked { allocation_id: nth(5), ..asked() },
            Asked { secret_id: nth(5), ..asked() },
        ] {
            assert!(answer(&body, &other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn the_largest_answer_fits_its_bounds() {
        // As base64url writes it, with the other parts of a box.
        let sealed = "x".repeat(crate::limits::SECRET_VALUE_BYTES_MAX / 3 * 4 + 2048);
        assert!(answer_body(&asked(), Answered::Sealed(sealed)).len() <= SECRET_ANSWER_BODY_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = request(&bytes);
            let _ = Asked::parse(&bytes);
            let _ = answer(&bytes, &asked());
        }
    }
}
