//! One call: who asks, from where, and what was decided about it so far.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use model::{AuditId, ErrorCode, RequestId, TenantId, Timestamp, TokenId, UserId};

use store::{IsRetryable, Op, Store, StoreError, Tx};

use crate::BoxFuture;
use crate::audit;
use crate::fault::{ApiError, Fault};
use crate::ports::iam::{AuthorizationPort, Resource, Verdict};

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user_id: UserId,
    /// The tenant the user belongs to.
    pub tenant_id: TenantId,
    pub name: String,
    /// `person` or `service`.
    pub kind: &'static str,
    pub token_id: TokenId,
}

/// A decision that was made during a call, for the audit entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub action: String,
    pub resource: String,
    /// Whose the resource is; `None` for what is the caller's own.
    pub tenant_id: Option<TenantId>,
    pub allowed: bool,
    /// The statement that decided, or `no statement matched`.
    pub by: String,
}

/// Handed to every handler.
pub struct Call {
    pub request_id: RequestId,
    pub audit_id: AuditId,
    pub method: &'static str,
    pub principal: Principal,
    pub source_ip: IpAddr,
    /// The database's time when the call began.
    pub now: Timestamp,
    /// The version of users, policies and bindings when the caller was looked up; decisions of the call are made by it.
    pub iam_version: Option<i64>,
    /// Whether the deployment was observe-only when the call began.
    pub observe_only: bool,
    pub(crate) authorization: Arc<dyn AuthorizationPort>,
    pub(crate) decided: Mutex<Vec<Decided>>,
    /// What the call touched, for the audit entry: `reservation/rsv_…`.
    pub(crate) subject: Mutex<Option<String>>,
    /// What the audit entry says by now; `None` until it was written.
    pub(crate) written: Mutex<Option<audit::Entry>>,
}

impl Call {
    pub fn new(
        request_id: RequestId,
        audit_id: AuditId,
        method: &'static str,
        principal: Principal,
        source_ip: IpAddr,
        now: Timestamp,
        authorization: Arc<dyn AuthorizationPort>,
    ) -> Self {
        Self {
            request_id,
            audit_id,
            method,
            principal,
            source_ip,
            now,
            iam_version: None,
            observe_only: false,
            authorization,
            decided: Mutex::default(),
            subject: Mutex::default(),
            written: Mutex::default(),
        }
    }

    pub(crate) fn with_identity(self, iam_version: Option<i64>, observe_only: bool) -> Self {
        Self { iam_version, observe_only, ..self }
    }

    /// [`Store::tx`] that writes the call's audit entry in the same transaction, so that what a call changed and the fact
    /// that it did are committed together. Every mutation of a handler goes through here; decisions are made before.
    pub fn tx<'a, T, E, F>(&'a self, store: &'a Store, op: Op, f: F) -> BoxFuture<'a, Result<T, E>>
    where
        F: for<'t> FnMut(&'t mut Tx<'a>) -> BoxFuture<'t, Result<T, E>> + Send + 'a,
        T: Send + 'a,
        E: From<StoreError> + IsRetryable + Send + 'a,
    {
        // The closure may run again, and the future it returns may not borrow from it.
        let f = Arc::new(Mutex::new(f));
        Box::pin(async move {
            let (value, entry) = store
                .tx(op, move |tx| {
                    let f = f.clone();
                    Box::pin(async move {
                        let running = (f.lock().expect("no holder of this lock panics"))(&mut *tx);
                        let value = running.await?;
                        let entry = audit::Entry::committed(self);
                        audit::write(tx, self, &entry);
                        Ok::<_, E>((value, entry))
                    })
                })
                .await?;
            *self.written.lock().expect("no holder of this lock panics") = Some(entry);
            Ok(value)
        })
    }

    /// Refuses with ACCESS_DENIED unless a policy allows `action` on `resource`. Never inside a database transaction.
    pub async fn require(&self, action: &str, resource: &Resource) -> Result<(), Fault> {
        let verdict = self.decide(action, resource).await?;
        if verdict.allowed {
            return Ok(());
        }
        Err(self.denied(action, resource, verdict).into())
    }

    /// Like [`require`](Self::require), for a kind of thing in a tenant that the caller named: one who may not see the
    /// tenant is told that it is not there.
    pub async fn require_in(&self, action: &str, resource: &Resource) -> Result<(), Fault> {
        let verdict = self.decide(action, resource).await?;
        if verdict.allowed {
            return Ok(());
        }
        let tenant_id = resource.tenant_id;
        if tenant_id == self.principal.tenant_id {
            return Err(self.denied(action, resource, verdict).into());
        }
        let tenant = Resource::one("compute-tenant", tenant_id, tenant_id);
        if self.decide("compute:tenants:get", &tenant).await?.allowed {
            return Err(self.denied(action, resource, verdict).into());
        }
        Err(ApiError::not_found("tenant", tenant_id).into())
    }

    /// Like [`require_visible`](Self::require_visible), for an action that changes a thing: one who may see the thing, by
    /// the action `see`, is told ACCESS_DENIED and why.
    pub async fn require_on(
        &self,
        action: &str,
        see: &str,
        resource: &Resource,
        kind: &str,
        id: impl std::fmt::Display,
    ) -> Result<(), Fault> {
        let verdict = self.decide(action, resource).await?;
        if verdict.allowed {
            return Ok(());
        }
        if self.decide(see, resource).await?.allowed {
            return Err(self.denied(action, resource, verdict).into());
        }
        Err(ApiError::not_found(kind, id).into())
    }

    fn denied(&self, action: &str, resource: &Resource, verdict: Verdict) -> ApiError {
        let message = format!("{} may not {action} on {}", self.principal.name, resource.name);
        ApiError::new(ErrorCode::AccessDenied, message)
            .detail("action", action)
            .detail("resource", resource.name.clone())
            .detail("decidedBy", verdict.by)
    }

    /// Like [`require`](Self::require), for something that is there: one who may not see it is told that it is not.
    pub async fn require_visible(
        &self,
        action: &str,
        resource: &Resource,
        kind: &str,
        id: impl std::fmt::Display,
    ) -> Result<(), Fault> {
        let verdict = self.decide(action, resource).await?;
        if verdict.allowed { Ok(()) } else { Err(ApiError::not_found(kind, id).into()) }
    }

    /// Keeps what the caller may see. Fails whole when one decision fails.
    pub async fn filter<T>(
        &self,
        action: &str,
        items: Vec<T>,
        resource: impl Fn(&T) -> Resource,
    ) -> Result<Vec<T>, Fault> {
        let resources: Vec<Resource> = items.iter().map(resource).collect();
        let verdicts = self.authorization.decide_many(self, action, &resources).await?;
        if verdicts.len() != items.len() {
            return Err(ApiError::new(ErrorCode::Internal, "the decision on the list was incomplete").into());
        }
        let seen = verdicts.iter().filter(|verdict| verdict.allowed).count();
        self.record(action, "list", None, true, &format!("{seen} of {} shown", verdicts.len()));
        Ok(items
            .into_iter()
            .zip(verdicts)
            .filter(|(_, verdict)| verdict.allowed)
            .map(|(item, _)| item)
            .collect())
    }

    /// For a method that only ever speaks about its caller, like `tokens.whoami`.
    pub fn allow_self(&self) {
        self.record(self.method, "self", None, true, "own identity");
    }

    /// Names what the call is about for its audit entry, like `reservation/rsv_…`.
    pub fn about(&self, subject: impl Into<String>) {
        *self.subject.lock().expect("no holder of this lock panics") = Some(subject.into());
    }

    pub fn subject(&self) -> Option<String> {
        self.subject.lock().expect("no holder of this lock panics").clone()
    }

    /// Whether a transaction of the call has written its audit entry.
    pub(crate) fn has_entry(&self) -> bool {
        self.written.lock().expect("no holder of this lock panics").is_some()
    }

    pub fn decided(&self) -> Vec<Decided> {
        self.decided.lock().expect("no holder of this lock panics").clone()
    }

    /// The decision itself, recorded, for a handler that goes on either way.
    pub async fn decide(&self, action: &str, resource: &Resource) -> Result<Verdict, Fault> {
        let verdict = self.authorization.decide(self, action, resource).await?;
        self.record(action, &resource.name, Some(resource.tenant_id), verdict.allowed, &verdict.by);
        Ok(verdict)
    }

    fn record(&self, action: &str, resource: &str, tenant_id: Option<TenantId>, allowed: bool, by: &str) {
        self.decided.lock().expect("no holder of this lock panics").push(Decided {
            action: action.to_owned(),
            resource: resource.to_owned(),
            tenant_id,
            allowed,
            by: by.to_owned(),
        });
    }
}
