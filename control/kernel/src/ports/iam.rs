//! Who is it, and may they?

use model::TenantId;
use policy::Attributes;

use crate::BoxFuture;
use crate::call::{Call, Principal};
use crate::fault::Fault;

/// What a decision is about.
#[derive(Debug, Clone)]
pub struct Resource {
    /// `compute-reservation/rsv_…`, or `compute-reservation/*` for a kind.
    pub name: String,
    /// Whose it is. A policy speaks about a resource only when it is bound in this tenant or one above.
    pub tenant_id: TenantId,
    /// `resource.gpus`, `resource.gpuModel`, …
    pub attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    pub by: String,
}

pub trait AuthorizationPort: Send + Sync + 'static {
    fn decide<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>>;

    /// One verdict for each resource, in order; an error when any of them cannot be decided.
    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>>;
}

pub trait AuthenticationPort: Send + Sync + 'static {
    /// The holder of a bearer token; a refusal for an unknown, expired or revoked one says which only in the log.
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Principal, Fault>>;
}
