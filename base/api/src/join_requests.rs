//! Join requests: machines that wait for a person's word.

use model::{JoinRequestId, JoinTokenId, NodeId, Role, SiteId, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, Limit, Named, Ref, Time, Word};

words! {
    JoinRequestState, "join request state" {
        Pending = "pending",
        /// The machine gets its certificate when it next asks.
        Approved = "approved",
        Rejected = "rejected",
        /// The certificate is made.
        Issued = "issued",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    pub id: Id<JoinRequestId>,
    pub join_token: Id<JoinTokenId>,
    pub site: Named<SiteId>,
    pub role: Word<Role>,
    pub state: Word<JoinRequestState>,
    /// As the machine says.
    pub hostname: String,
    pub agent_version: String,
    pub source_ip: String,
    /// SHA-256 of its certificate request, in lowercase hex: `bcd join` prints the same while it waits.
    pub fingerprint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Named<UserId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Named<NodeId>>,
    pub created_at: Time,
    pub last_seen_at: Time,
    pub expires_at: Time,
    pub age_seconds: u64,
    pub last_seen_seconds: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListJoinRequests {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word<JoinRequestState>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<Ref<SiteId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApproveJoinRequest {
    pub id: Id<JoinRequestId>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RejectJoinRequest {
    pub id: Id<JoinRequestId>,
}

method!(List, "joinRequests"."list", Read, "compute-join-request", ListJoinRequests => crate::List<JoinRequest>, [NotFound], "Lists machines that wait for approval, and how earlier ones were decided.");
method!(Approve, "joinRequests"."approve", Natural, "compute-join-request", ApproveJoinRequest => JoinRequest, [NotFound, InvalidState], "Lets a waiting machine join.");
method!(Reject, "joinRequests"."reject", Natural, "compute-join-request", RejectJoinRequest => JoinRequest, [NotFound, InvalidState], "Turns a waiting machine away.");
