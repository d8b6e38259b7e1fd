//! Quotas: how much a tenant may hold at once. Where none is set there is no limit.

use model::{QuotaId, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::method::method;
use crate::words::words;
use crate::{Cursor, Id, Int, Limit, Named, Time, Word};

words! {
    QuotaResource, "quota resource" {
        Gpu = "gpu",
        Vcpu = "vcpu",
        MemoryGib = "memoryGiB",
        /// Of instances.
        DiskGib = "diskGiB",
        /// Of images in the control plane's own store, each rounded up.
        ImageGib = "imageGiB",
        Reservations = "reservations",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    pub id: Id<QuotaId>,
    pub tenant: Named<TenantId>,
    pub resource: Word<QuotaResource>,
    pub amount: u64,
    /// What its reservations, instances and images hold of it now.
    pub used: u64,
    pub updated_at: Time,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetQuota {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    pub resource: Word<QuotaResource>,
    /// What is held above a lowered amount stays; nothing new is admitted.
    pub amount: Int<0, 1_000_000_000_000>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListQuotas {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

method!(Set, "quotas"."set", Natural, "compute-quota", SetQuota => Quota, [NotFound], "Sets how much of a resource a tenant may hold.");
method!(List, "quotas"."list", Read, "compute-quota", ListQuotas => crate::List<Quota>, [NotFound], "Lists quotas with what is used of them.");
