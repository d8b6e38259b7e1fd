//! A node's questions for secrets: carried to a worker as they came, and its answer back. Neither can be read or made here.

use bytes::Bytes;
use prost::Message;
use wire::limits::{SECRET_ANSWER_BYTES_MAX, SECRET_REQUEST_BYTES_MAX, SECRETS_AT_ONCE_MAX};
use wire::proto::agent::gateway_frame::Frame as Out;
use wire::proto::agent::{SecretAnswer, SecretRequest};

use super::{AskedSecret, Effect, Now, Request, Session, Violation, send};

impl Session {
    pub(super) fn secret_request(
        &mut self,
        request: SecretRequest,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let violation = |field| Violation { frame: "secret request", field };
        if request.encoded_len() > SECRET_REQUEST_BYTES_MAX {
            return Err(violation("size"));
        }
        let bytes = request.encode_to_vec();
        let Ok((request, asked)) = wire::secret::request(&bytes) else { return Err(violation("body")) };
        if asked.node_id != self.peer.node_id {
            return Err(violation("node_id"));
        }
        if self.secrets >= SECRETS_AT_ONCE_MAX || !self.pace.secret(now.monotonic) {
            not_now(asked.request_id.to_vec(), effects);
            return Ok(());
        }
        self.secrets += 1;
        let asked = AskedSecret { request, cert_serial: self.peer.cert_serial.clone() };
        effects.push(Effect::Store(Request::Secret(Box::new(asked))));
        Ok(())
    }

    pub(super) fn secret_answered(
        &mut self,
        request_id: Vec<u8>,
        answer: Option<Vec<u8>>,
        effects: &mut Vec<Effect>,
    ) {
        self.secrets = self.secrets.saturating_sub(1);
        let read = |bytes: Vec<u8>| {
            wire::decode::<SecretAnswer>("secret answer", &bytes, SECRET_ANSWER_BYTES_MAX)
                .inspect_err(|err| tracing::error!(err = %err, "a worker's answer does not decode"))
                .ok()
        };
        match answer.and_then(read) {
            Some(answer) => send(effects, Out::SecretAnswer(answer)),
            None => not_now(request_id, effects),
        }
    }
}

/// Says that nobody who could answer did.
fn not_now(request_id: Vec<u8>, effects: &mut Vec<Effect>) {
    let (body, signature) = (Bytes::new(), None);
    send(effects, Out::SecretAnswer(SecretAnswer { request_id: request_id.into(), body, signature }));
}
