//! Parked work: items that failed too often and wait for a person.

use model::WorkId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::listing::is_false;
use crate::method::method;
use crate::{Cursor, Id, InvalidRequest, Limit, Text, Time};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParkedWork {
    pub id: Id<WorkId>,
    pub queue: String,
    pub key: String,
    pub attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    pub parked_at: Time,
    pub parked_seconds: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListParkedWork {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Text<1, 64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequeueWork {
    /// One item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id<WorkId>>,
    /// Every parked item of a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Text<1, 64>>,
    /// Changes nothing and answers what would have been.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequeuedWork {
    /// How many run again.
    pub requeued: u64,
    pub dry_run: bool,
}

fn check_requeue(request: &RequeueWork) -> Result<(), InvalidRequest> {
    if request.id.is_some() == request.queue.is_some() {
        return Err(InvalidRequest::new("", "give id or queue, one of them"));
    }
    Ok(())
}

method!(ListParked, "work"."listParked", Read, "compute-work", ListParkedWork => crate::List<ParkedWork>, [], "Lists work that failed too often and waits for a person.");
method!(Requeue, "work"."requeue", Natural, "compute-work", RequeueWork => RequeuedWork, [NotFound], "Lets parked work run again.", check = check_requeue);
