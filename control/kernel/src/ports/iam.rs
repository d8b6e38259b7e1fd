//! Who is it, and may they?

use model::{TenantId, Timestamp, TokenId};
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
    pub attributes: Attributes<'static>,
}

impl Resource {
    /// One thing: `compute-reservation/rsv_…`.
    pub fn one(kind: &str, id: impl std::fmt::Display, tenant_id: TenantId) -> Self {
        Self { name: format!("{kind}/{id}"), tenant_id, attributes: Attributes::new() }
    }

    /// A kind as a whole, like what a list is asked of or a create adds to: `compute-reservation/*`.
    pub fn any(kind: &str, tenant_id: TenantId) -> Self {
        Self::one(kind, "*", tenant_id)
    }

    /// Adds an attribute: `with("resource.gpus", 8)`.
    pub fn with(mut self, name: &'static str, value: impl Into<policy::Value<'static>>) -> Self {
        self.attributes.set(name, value);
        self
    }
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

/// A caller as the database knows it now.
#[derive(Debug, Clone)]
pub struct Identity {
    pub principal: Principal,
    /// The database's time of the look-up.
    pub now: Timestamp,
    /// What [`Call::iam_version`] becomes.
    pub iam_version: Option<i64>,
    /// Whether the deployment only observes now.
    pub observe_only: bool,
}

pub trait AuthenticationPort: Send + Sync + 'static {
    /// The holder of a bearer token. UNAUTHENTICATED for an unknown, expired or revoked one, and for one whose user is
    /// disabled; which of these it was, only the log says.
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Fault>>;

    /// The holder of a token that was shown before, as it is now, for what goes on after the call. UNAUTHENTICATED as above.
    fn again(&self, token_id: TokenId) -> BoxFuture<'_, Result<Identity, Fault>>;
}
