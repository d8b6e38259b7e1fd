//! A node asks for a secret. Here it is established that the node asks, now, over its own connection; whether it may know is for
//! the broker to say. What is not the node's word is not answered: only an answer that a worker signed fails an instance.

use std::time::Duration;

use kernel::Fault;
use kernel::ports::secrets::{SecretAsk, SecretOutcome};
use model::Role;
use pki::{Purpose, Signature, VerifyingKey};
use prost::Message;
use store::{Row, Tx};
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::proto::common::IntentSignature;
use wire::secret::{Answered, Asked};

use super::asker::ASKER_KEY;
use super::renew::current_holder;
use super::{Answer, refused};
use crate::core::Fleet;
use crate::sql;

/// How far a request's time may be from ours, both ways: what is older is not remembered to have been answered.
const AGE_MAX: Duration = Duration::from_secs(10 * 60);

/// Whether the node itself asks.
enum Signer {
    Node,
    /// It is not trusted with anything until a person looked.
    Quarantined,
    Nobody,
}

impl Fleet {
    pub(super) async fn secret(&self, tx: &mut Tx<'_>, row: &Row) -> Result<Answer, Fault> {
        let Some(broker) = self.0.broker.get() else { return refused("this control plane tells no secrets") };
        let (signed, asked) = match wire::secret::request(row.get("request")) {
            Ok(request) => request,
            Err(err) => return refused(err.to_string()),
        };
        let now = tx.now().await?;
        let serial = row.get::<_, Option<&str>>("peer_serial").unwrap_or_default();
        let cert = tx.query_opt(&sql::CERT_BY_SERIAL, &[&serial]).await?;
        let Some(peer) = cert.as_ref().and_then(|cert| current_holder(cert, now)) else {
            return refused("the connection's certificate is unknown, revoked or expired, or its node is");
        };
        if peer.node_id != asked.node_id {
            broker.distrusted(tx, peer.node_id, "other-node").await?;
            return refused("the request names another node than the connection's certificate");
        }
        if peer.role != Role::Node {
            broker.distrusted(tx, peer.node_id, "role").await?;
            return refused("only nodes run what secrets are for");
        }
        let outcome = match self.signer(tx, &signed, &asked).await? {
            Signer::Node if asked.at.since(now) > AGE_MAX || now.since(asked.at) > AGE_MAX => {
                SecretOutcome::Later { reason: "clock" }
            }
            Signer::Node => {
                let ask = SecretAsk {
                    request_id: asked.request_id,
                    node_id: asked.node_id,
                    instance_id: asked.instance_id,
                    allocation_id: asked.allocation_id,
                    secret_id: asked.secret_id,
                    one_time_key: asked.one_time_key.clone(),
                    kid: wire::secret::kid(&asked.request_id),
                };
                broker.answer(tx, &ask).await?
            }
            Signer::Quarantined => SecretOutcome::Later { reason: "quarantined" },
            Signer::Nobody => {
                broker.distrusted(tx, peer.node_id, "bad-signature").await?;
                return refused("the node's signature does not verify");
            }
        };
        let answered = match outcome {
            SecretOutcome::Sealed(sealed) => Answered::Sealed(sealed),
            SecretOutcome::Refused { reason, message } => {
                Answered::Refused { reason: reason.to_owned(), message: message.to_owned() }
            }
            SecretOutcome::Later { reason } => Answered::Later { reason: reason.to_owned() },
        };
        let body = wire::secret::answer_body(&asked, answered);
        let value = self.sign(Purpose::SecretAnswer, &body, now)?.into();
        let answer = SecretAnswer {
            request_id: asked.request_id.to_vec().into(),
            body: body.into(),
            signature: Some(IntentSignature { value }),
        };
        Ok(Answer::Reply(answer.encode_to_vec()))
    }

    async fn signer(&self, tx: &mut Tx<'_>, signed: &SecretRequest, asked: &Asked) -> Result<Signer, Fault> {
        let Some(signature) = &signed.signature else { return Ok(Signer::Nobody) };
        let key: &[u8] = &signature.key_sha256;
        let Some(row) = tx.query_opt(&ASKER_KEY, &[&asked.node_id.uuid(), &key]).await? else {
            return Ok(Signer::Nobody);
        };
        let (Ok(key), Ok(value)) =
            (VerifyingKey::from_spki_der(row.get("spki_der")), Signature::from_bytes(&signature.value))
        else {
            return Ok(Signer::Nobody);
        };
        match key.verify(Purpose::SecretRequest, &signed.body, &value) {
            Ok(()) if row.get("quarantined") => Ok(Signer::Quarantined),
            Ok(()) => Ok(Signer::Node),
            Err(_) => Ok(Signer::Nobody),
        }
    }
}
