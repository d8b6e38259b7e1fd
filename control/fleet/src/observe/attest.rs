//! Whether a node said something itself: its own signature, by a key of an unrevoked certificate of its own.

use kernel::Fault;
use model::{CommandId, NodeId};
use pki::{Purpose, Signature, VerifyingKey};
use prost::Message;
use store::{Row, Tx};
use wire::proto::agent::AttestedResult;

use crate::core::Fleet;
use crate::sql;

impl Fleet {
    pub(super) async fn is_signed_by_node(
        &self,
        tx: &mut Tx<'_>,
        node_id: NodeId,
        purpose: Purpose,
        body: &[u8],
        row: &Row,
    ) -> Result<bool, Fault> {
        let (signature, key): (Option<&[u8]>, Option<&[u8]>) = (row.get("signature"), row.get("key_sha256"));
        let Some(key) = key else { return Ok(false) };
        let Some(key) = tx.query_opt(&sql::NODE_KEY, &[&node_id.uuid(), &key]).await? else {
            return Ok(false);
        };
        Ok(verifies(purpose, body, signature, Some(key.get("spki_der"))))
    }
}

/// What of a settled command its node signs.
pub(crate) struct AttestedResultOf<'a> {
    pub command_id: CommandId,
    pub node_id: NodeId,
    /// The wire's number of the state that the node reported.
    pub state: i16,
    pub result_sha256: &'a [u8],
    pub signature: Option<&'a [u8]>,
    /// Of an unrevoked certificate of the node, by the key that the signature names.
    pub spki_der: Option<&'a [u8]>,
}

impl<'a> AttestedResultOf<'a> {
    /// From a row with `result_state`, `result_sha256`, `result_signature` and `result_spki`.
    pub(crate) fn of(command_id: CommandId, node_id: NodeId, row: &'a Row) -> Self {
        Self {
            command_id,
            node_id,
            state: row.get::<_, Option<i16>>("result_state").unwrap_or(0),
            result_sha256: row.get("result_sha256"),
            signature: row.get("result_signature"),
            spki_der: row.get("result_spki"),
        }
    }

    pub(crate) fn holds(&self) -> bool {
        let statement = AttestedResult {
            command_id: self.command_id.to_string(),
            state: i32::from(self.state),
            result_sha256: self.result_sha256.to_vec().into(),
            node_id: self.node_id.to_string(),
        }
        .encode_to_vec();
        verifies(Purpose::AttestedResult, &statement, self.signature, self.spki_der)
    }
}

pub(super) fn verifies(
    purpose: Purpose,
    body: &[u8],
    signature: Option<&[u8]>,
    spki_der: Option<&[u8]>,
) -> bool {
    let (Some(signature), Some(spki_der)) = (signature, spki_der) else { return false };
    let (Ok(signature), Ok(key)) = (Signature::from_bytes(signature), VerifyingKey::from_spki_der(spki_der))
    else {
        return false;
    };
    key.verify(purpose, body, &signature).is_ok()
}
