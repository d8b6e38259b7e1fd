//! Events: what happened, in order, with the attributes of CloudEvents 1.0.

use model::{EventId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::method::method;
use crate::{Cursor, Id, Int, Limit, Text, Time};

/// The stream of events: `GET` with `Accept: text/event-stream`. Filters as in [`ListEvents`], as query parameters
/// `tenant`, `type` and `subject`. Each frame's `id` is the event's `seq` and its `data` an [`Event`]; `Last-Event-ID`
/// goes on after it. Without one the stream begins now. A comment line comes every [`STREAM_HEARTBEAT_SECONDS`].
pub const STREAM_PATH: &str = "/api/compute/events/stream";
/// Short enough for proxies that end a silent connection after 30 s.
pub const STREAM_HEARTBEAT_SECONDS: u64 = 15;
/// The action a stream is decided by; each event is then filtered like those of a list.
pub const STREAM_ACTION: &str = "compute:events:list";

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `1.0`.
    pub specversion: String,
    pub id: Id<EventId>,
    /// The deployment: `/deployments/dep_…`.
    pub source: String,
    /// `reservation.active`, `node.unreachable`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// `reservation/rsv_…`.
    pub subject: String,
    pub time: Time,
    /// Without gaps; the order in which events happened.
    pub seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub data: Map<String, Value>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListEvents {
    /// Only this tenant's; all that the caller may see when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// A type, or the beginning of one up to a dot: `reservation` for all about reservations.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Text<1, 64>>,
    /// `reservation/rsv_…`, exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Text<1, 128>>,
    /// Only those after this `seq`, the oldest first: to catch up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<Int<0, 9_007_199_254_740_991>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

method!(List, "events"."list", Read, "compute-event", ListEvents => crate::List<Event>, [], "Lists what happened, newest first.");
