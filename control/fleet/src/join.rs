//! Joining and renewing. A gateway holds none of the keys this takes, so it leaves the request in an inbox and relays the answer.

use std::time::{Duration, SystemTime};

use kernel::events::{self, EventKind};
use kernel::module::{Again, HandleTogether, QueueHandler};
use kernel::{BoxFuture, Fault, ResultExt};
use model::{JoinRequestId, JoinTokenId, NodeId, PoolId, Role, SiteId, Timestamp};
use pki::join::{JoinRequest as Opened, open_join};
use pki::response::JoinResponse;
use pki::signed::SignedMessage;
use pki::spiffe::NodeName;
use pki::trust::TrustBundle;
use prost::Message;
use serde_json::json;
use store::{Op, Row, RowExt, Tx};
use uuid::Uuid;
use wire::limits::{CSR_BYTES_MAX, SEALED_TOKEN_BYTES_MAX, TEXT_BYTES_MAX};
use wire::proto::agent::{JoinDeferred, JoinReply, JoinRequest, SignedJoinResponse, join_reply::Outcome};

use crate::core::{AsEntropy, Fleet};
use crate::{JOIN_CHANNEL, JOIN_QUEUE, sql};

pub mod asker;
mod fresh;
mod renew;
mod secret;

const JOIN_ANSWER: Op = Op::new("join_answer");
/// Requests that are answered together: each waits for the last of them, and has the row of its token meanwhile.
const REQUESTS_MAX: u32 = 16;
/// How soon a machine whose join waits for a person asks again.
const DEFERRED_RETRY_MS: u32 = 5_000;
/// Machines that wait under one token: more than a person looks through, and a bound on what its holder can fill.
const WAITING_MAX: i64 = 1000;
const AGENT_VERSION_CHARS_MAX: usize = 64;
const HARDWARE_KEY_BYTES: usize = 32;
const REQUEST_BYTES_MAX: usize = CSR_BYTES_MAX + SEALED_TOKEN_BYTES_MAX + 4 * TEXT_BYTES_MAX;

/// What goes back to the gateway.
pub(crate) enum Answer {
    /// An encoded reply.
    Reply(Vec<u8>),
    /// For the machine's operator; says nothing that a stranger could use.
    Refused(String),
}

fn refused(why: impl Into<String>) -> Result<Answer, Fault> {
    Ok(Answer::Refused(why.into()))
}

/// What a join token allows, read under its lock.
struct Token {
    site_id: SiteId,
    pool_id: Option<PoolId>,
    deferred: bool,
    expired: bool,
    used_up: bool,
}

/// One text for every way a token can be wrong that a guesser could tell apart.
const TOKEN_UNKNOWN: &str = "the join token is unknown, expired or revoked";
const OBSERVES: &str =
    "the deployment only observes until an operator confirms its database; ask again later";
const TOKEN_USED_UP: &str = "the join token has been used as often as it may be";

impl Fleet {
    /// Answers one inbox row, once.
    pub async fn answer_join(&self, inbox_id: Uuid) -> Result<(), Fault> {
        self.store().tx(JOIN_ANSWER, |tx| Box::pin(self.answer_join_in(tx, inbox_id))).await
    }

    async fn answer_join_in(&self, tx: &mut Tx<'_>, inbox_id: Uuid) -> Result<(), Fault> {
        self.keys()?;
        let Some(row) = tx.query_opt(&sql::INBOX_LOCK, &[&inbox_id]).await? else { return Ok(()) };
        let observes: bool = tx.query_one(&sql::DEPLOYMENT, &[]).await?.get("observe_only");
        let answer = match row.get::<_, &str>("kind") {
            // Goes on whatever is suspected of the database: certificates last a day, and a node whose own has run out is
            // lost to whoever finds out.
            "renew" => self.renew(tx, &row).await?,
            _ if observes => Answer::Refused(OBSERVES.to_owned()),
            "join" => self.join(tx, &row).await?,
            "secret" => self.secret(tx, &row).await?,
            _ => self.bind_fresh(tx, &row).await?,
        };
        let (reply, refusal) = match answer {
            Answer::Reply(reply) => (Some(reply), None),
            Answer::Refused(why) => {
                let source_ip: &str = row.get("source_ip");
                tracing::info!(source_ip, why, "join, renewal or question refused");
                (None, Some(why))
            }
        };
        tx.later(&sql::INBOX_ANSWER, vec![Box::new(inbox_id), Box::new(reply), Box::new(refusal)]);
        tx.notify(JOIN_CHANNEL, inbox_id.hyphenated().to_string());
        Ok(())
    }

    async fn join(&self, tx: &mut Tx<'_>, row: &Row) -> Result<Answer, Fault> {
        let keys = self.keys()?;
        let request: JoinRequest = match wire::decode("join request", row.get("request"), REQUEST_BYTES_MAX) {
            Ok(request) => request,
            Err(err) => return refused(err.to_string()),
        };
        let now = tx.now().await?;
        let opened = match open_join(&request.sealed_token, &keys.join_encryption, &request.csr_der, now) {
            Ok(opened) => opened,
            Err(err) => return refused(kit::chain(&err)),
        };
        if request.role != opened.role.name() || request.agent_version.len() > AGENT_VERSION_CHARS_MAX {
            return refused("the request does not say what its sealed part says");
        }
        // The same CSR gets the same answer, however often it asks.
        if let Some(cert) = tx.query_opt(&sql::CERT_OF_CSR, &[&opened.csr_sha256.as_slice()]).await? {
            if cert.opt_ts("revoked_at").is_some() || cert.get("expired") {
                return refused("this key's certificate is revoked or expired; join with a new key");
            }
            return Ok(accepted(cert.get("reply")));
        }
        let token = match self.check_token(tx, &opened).await? {
            Ok(token) => token,
            Err(why) => return refused(why),
        };
        if self.is_known_key(tx, &opened.key).await? {
            return refused("this key was certified before, under another request; join with a new key");
        }
        if token.deferred {
            match self.defer(tx, &opened, &request, &token, row.get("source_ip")).await? {
                Deferral::Approved => {}
                Deferral::Wait(id) => return Ok(deferred(id)),
                Deferral::Refused(why) => return refused(why),
            }
        } else if token.expired {
            return refused(TOKEN_UNKNOWN);
        }
        // The token's row is locked since it was checked, so its uses never pass their limit.
        let token_id = opened.token.id();
        if token.used_up || tx.execute(&sql::JOIN_TOKEN_USE, &[&token_id.uuid()]).await? == 0 {
            return refused(TOKEN_USED_UP);
        }
        self.admit(tx, &opened, &token, &request, now).await
    }

    /// Makes the node and its first certificate.
    async fn admit(
        &self,
        tx: &mut Tx<'_>,
        opened: &Opened,
        token: &Token,
        request: &JoinRequest,
        now: Timestamp,
    ) -> Result<Answer, Fault> {
        let node_id: NodeId = self.id();
        let name = self.free_name(tx, &opened.hostname).await?;
        let hardware_key =
            (request.hardware_key.len() == HARDWARE_KEY_BYTES).then(|| request.hardware_key.to_vec());
        tx.execute(
            &sql::NODE_INSERT,
            &[
                &node_id.uuid(),
                &token.site_id.uuid(),
                &opened.role.name(),
                &name,
                &opened.hostname,
                &hardware_key,
            ],
        )
        .await?;
        let holder = Holder { node_id, site_id: token.site_id, role: opened.role };
        let reply = self.issue(tx, &holder, &opened.key, opened.csr_sha256, now).await?;
        if token.deferred {
            let csr = opened.csr_sha256.as_slice();
            tx.execute(&sql::JOIN_REQUEST_ISSUED, &[&csr, &node_id.uuid()]).await?;
        }
        let data = json!({ "name": name, "siteId": token.site_id.to_string() });
        self.emit(tx, EventKind::NodeJoined, node_id, data).await?;
        if let Some(pool_id) = token.pool_id {
            self.adopt(tx, node_id, pool_id, "join token").await?;
        }
        Ok(accepted(&reply))
    }

    /// Locks the token's row until the transaction ends. Whether it has expired is the caller's to judge: for a machine that
    /// waits for a person, or was let in by one, that counts no longer.
    async fn check_token(&self, tx: &mut Tx<'_>, opened: &Opened) -> Result<Result<Token, String>, Fault> {
        let unknown = || Ok(Err(TOKEN_UNKNOWN.to_owned()));
        let token_id: JoinTokenId = opened.token.id();
        let Some(row) = tx.query_opt(&sql::JOIN_TOKEN_LOCK, &[&token_id.uuid()]).await? else {
            return unknown();
        };
        let Ok(stored) = <[u8; 32]>::try_from(row.get::<_, &[u8]>("secret_sha256")) else { return unknown() };
        if pki::token::TokenHash::from_bytes(stored) != opened.token.hash()
            || row.opt_ts("revoked_at").is_some()
        {
            return unknown();
        }
        // Past this line the caller holds the secret, so it may be told more.
        if row.get::<_, &str>("role") != opened.role.name() {
            return Ok(Err(format!("the join token is for role {}", row.get::<_, &str>("role"))));
        }
        Ok(Ok(Token {
            site_id: row.id("site_id"),
            pool_id: row.opt_id("pool_id"),
            deferred: row.get("deferred"),
            expired: row.get("expired"),
            used_up: row.get::<_, i32>("uses") >= row.get::<_, i32>("uses_max"),
        }))
    }

    /// Whether any request ever got a certificate for this key: a key stays with one node, and a revoked one is done for.
    async fn is_known_key(&self, tx: &mut Tx<'_>, key: &pki::VerifyingKey) -> Result<bool, Fault> {
        Ok(tx.query_opt(&sql::CERT_OF_KEY, &[&key.pin().as_bytes().as_slice()]).await?.is_some())
    }

    /// Where a join that takes a person's word stands. A request belongs to the token it was made with, and outlives that
    /// token's time as long as its machine keeps asking.
    async fn defer(
        &self,
        tx: &mut Tx<'_>,
        opened: &Opened,
        request: &JoinRequest,
        token: &Token,
        source_ip: &str,
    ) -> Result<Deferral, Fault> {
        let csr = opened.csr_sha256.as_slice();
        let token_id = opened.token.id();
        if let Some(row) = tx.query_opt(&sql::JOIN_REQUEST_OF_CSR, &[&csr]).await? {
            if row.id::<JoinTokenId>("join_token_id") != token_id {
                return Ok(Deferral::Refused("this request was made with another join token"));
            }
            let id: JoinRequestId = row.id("join_request_id");
            return Ok(match row.get::<_, &str>("state") {
                "approved" => Deferral::Approved,
                "pending" => {
                    tx.execute(&sql::JOIN_REQUEST_SEEN, &[&id.uuid()]).await?;
                    Deferral::Wait(id)
                }
                "issued" => Deferral::Refused("this request was answered before; join with a new key"),
                _ => Deferral::Refused("an operator rejected this join"),
            });
        }
        if token.expired {
            return Ok(Deferral::Refused(TOKEN_UNKNOWN));
        }
        if token.used_up {
            return Ok(Deferral::Refused(TOKEN_USED_UP));
        }
        let waiting = tx.query_one(&sql::JOIN_REQUESTS_WAITING, &[&token_id.uuid(), &WAITING_MAX]).await?;
        if waiting.get::<_, i64>("waiting") >= WAITING_MAX {
            return Ok(Deferral::Refused("too many machines wait under this join token"));
        }
        let id: JoinRequestId = self.id();
        tx.execute(
            &sql::JOIN_REQUEST_INSERT,
            &[
                &id.uuid(),
                &csr,
                &token_id.uuid(),
                &opened.role.name(),
                &opened.hostname,
                &request.agent_version,
                &source_ip,
            ],
        )
        .await?;
        let data = json!({
            "name": opened.hostname, "siteId": token.site_id.to_string(), "fingerprint": hex(&opened.csr_sha256),
        });
        events::append(tx, self.rng(), EventKind::NodePending, id, None, data).await?;
        Ok(Deferral::Wait(id))
    }

    /// The hostname made a name, with a number when another node has it.
    async fn free_name(&self, tx: &mut Tx<'_>, hostname: &str) -> Result<String, Fault> {
        let base = name_of_hostname(hostname);
        tx.query(&sql::NODE_NAME_LOCK, &[&base]).await?;
        Ok(tx.query_one(&sql::NODE_NAME_FREE, &[&base]).await?.get("name"))
    }

    /// Issues a certificate and stores it with the answer that carries it.
    async fn issue(
        &self,
        tx: &mut Tx<'_>,
        holder: &Holder,
        key: &pki::VerifyingKey,
        csr_sha256: [u8; 32],
        now: Timestamp,
    ) -> Result<Vec<u8>, Fault> {
        let keys = self.keys()?;
        let name = NodeName {
            trust_domain: keys.trust.trust_domain.clone(),
            site_id: holder.site_id,
            role: holder.role,
            node_id: holder.node_id,
        };
        let issued = keys
            .node_ca
            .issue_node(&name, key, now, &AsEntropy(self.rng()))
            .doing("issue a node certificate")?;
        let epoch = tx.query_one(&sql::DEPLOYMENT, &[]).await?.get::<_, i64>("epoch");
        let deployment_epoch = u64::try_from(epoch).unwrap_or(0);
        let trust_bundle = self.bundle_of_epoch(tx, deployment_epoch).await?;
        let response = JoinResponse {
            node_id: holder.node_id,
            site_id: holder.site_id,
            role: holder.role,
            chain: vec![issued.der.clone()],
            csr_sha256,
            trust_bundle,
            served_at: now,
            deployment_id: keys.deployment_id,
            deployment_epoch,
        };
        let reply = response.sign(&keys.join_signing).encode();
        tx.execute(
            &sql::CERT_INSERT,
            &[
                &issued.serial.to_string(),
                &holder.node_id.uuid(),
                &key.spki_der(),
                &issued.spki_pin.as_bytes().as_slice(),
                &SystemTime::from(issued.validity.not_before),
                &SystemTime::from(issued.validity.not_after),
                &csr_sha256.as_slice(),
                &reply,
            ],
        )
        .await?;
        Ok(reply)
    }

    /// The current trust bundle. After a confirmed restore the stored one is of the epoch before, and no node takes an answer
    /// whose bundle is of another epoch than itself: then it is published anew.
    async fn bundle_of_epoch(&self, tx: &mut Tx<'_>, epoch: u64) -> Result<SignedMessage, Fault> {
        let read =
            |row: &Row| SignedMessage::decode(row.get("message")).doing("read the stored trust bundle");
        if let Some(row) = tx.query_opt(&sql::TRUST_BUNDLE, &[]).await? {
            let message = read(&row)?;
            let bundle = TrustBundle::parse(&message.body).doing("read the stored trust bundle")?;
            if bundle.deployment_epoch == epoch {
                return Ok(message);
            }
        }
        self.publish_trust_in(tx).await?;
        read(&tx.query_one(&sql::TRUST_BUNDLE, &[]).await?)
    }
}

enum Deferral {
    Approved,
    Wait(JoinRequestId),
    Refused(&'static str),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whom a certificate is for.
struct Holder {
    node_id: NodeId,
    site_id: SiteId,
    role: Role,
}

fn accepted(signed: &[u8]) -> Answer {
    let value = SignedJoinResponse { value: signed.to_vec().into() };
    Answer::Reply(JoinReply { outcome: Some(Outcome::Accepted(value)) }.encode_to_vec())
}

fn deferred(id: JoinRequestId) -> Answer {
    let deferred = JoinDeferred { join_request_id: id.to_string(), retry_after_ms: DEFERRED_RETRY_MS };
    Answer::Reply(JoinReply { outcome: Some(Outcome::Deferred(deferred)) }.encode_to_vec())
}

/// The first label of a hostname, as a resource name.
fn name_of_hostname(hostname: &str) -> String {
    let label = hostname.split('.').next().unwrap_or_default();
    // Room for a number behind it.
    let mut name: String = label
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(50)
        .collect();
    name = name.trim_matches('-').to_owned();
    if name.is_empty() { "node".to_owned() } else { name }
}

/// The handler of [`JOIN_QUEUE`].
pub struct JoinQueue(pub Fleet);

impl QueueHandler for JoinQueue {
    fn queue(&self) -> &'static str {
        JOIN_QUEUE
    }

    /// It refuses by itself what may not be while the deployment only observes.
    fn acts(&self) -> bool {
        false
    }

    fn handle<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Duration>, Fault>> {
        Box::pin(async move {
            if let Ok(inbox_id) = Uuid::parse_str(key) {
                self.0.answer_join(inbox_id).await?;
            }
            Ok(None)
        })
    }

    fn together(&self) -> Option<&dyn HandleTogether> {
        Some(self)
    }
}

impl HandleTogether for JoinQueue {
    fn keys_max(&self) -> u32 {
        REQUESTS_MAX
    }

    fn handle_all<'a>(
        &'a self,
        tx: &'a mut Tx<'_>,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Again>, Fault>> {
        Box::pin(async move {
            for inbox_id in keys.iter().filter_map(|key| Uuid::parse_str(key).ok()) {
                self.0.answer_join_in(tx, inbox_id).await?;
            }
            Ok(Vec::new())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::name_of_hostname;

    #[test]
    fn a_hostname_becomes_a_resource_name() {
        for (hostname, name) in
            [("gpu-1.example.com", "gpu-1"), ("GPU_1", "gpu-1"), ("-.x", "node"), ("", "node")]
        {
            assert_eq!(name_of_hostname(hostname), name, "{hostname}");
            assert_eq!(model::label::check_name(&name_of_hostname(hostname)), Ok(()));
        }
    }
}
