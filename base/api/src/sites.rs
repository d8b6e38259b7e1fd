//! Sites: places where machines stand.

use model::SiteId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::method;
use crate::{Cursor, Id, IdempotencyKey, Limit, Name, Ref, Time};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Site {
    pub id: Id<SiteId>,
    pub name: String,
    /// Machines that are joined and not removed.
    pub nodes: u32,
    pub created_at: Time,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateSite {
    /// Unique in the deployment.
    pub name: Name,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetSite {
    pub site: Ref<SiteId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSites {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

method!(Create, "sites"."create", Key, "compute-site", CreateSite => Site, [Conflict], "Creates a site.");
method!(Get, "sites"."get", Read, "compute-site", GetSite => Site, [NotFound], "Shows a site.");
method!(List, "sites"."list", Read, "compute-site", ListSites => crate::List<Site>, [], "Lists sites.");
