//! One call: who asks, from where, and what was decided about it so far.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use model::{AuditId, ErrorCode, RequestId, TenantId, Timestamp, TokenId, UserId};

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
    pub(crate) authorization: Arc<dyn AuthorizationPort>,
    pub(crate) decided: Mutex<Vec<Decided>>,
    /// What the call touched, for the audit entry: `reservation/rsv_…`.
    pub(crate) subject: Mutex<Option<String>>,
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
            authorization,
            decided: Mutex::default(),
            subject: Mutex::default(),
        }
    }

    /// Refuses with ACCESS_DENIED unless a policy allows `action` on `resource`. Never inside a database transaction.
    pub async fn require(&self, action: &str, resource: &Resource) -> Result<(), Fault> {
        let verdict = self.decide(action, resource).await?;
        if verdict.allowed {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::AccessDenied,
            format!("{} may not {action} on {}", self.principal.name, resource.name),
        )
        .detail("action", action)
        .detail("resource", resource.name.clone())
        .detail("decidedBy", verdict.by)
        .into())
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
        self.record(action, "list", true, "filtered");
        Ok(items
            .into_iter()
            .zip(verdicts)
            .filter(|(_, verdict)| verdict.allowed)
            .map(|(item, _)| item)
            .collect())
    }

    /// For a method that only ever speaks about its caller, like `tokens.whoami`.
    pub fn allow_self(&self) {
        self.record(self.method, "self", true, "own identity");
    }

    /// Names what the call is about for its audit entry.
    pub fn about(&self, subject: impl Into<String>) {
        *self.subject.lock().expect("no holder of this lock panics") = Some(subject.into());
    }

    pub fn subject(&self) -> Option<String> {
        self.subject.lock().expect("no holder of this lock panics").clone()
    }

    pub fn decided(&self) -> Vec<Decided> {
        self.decided.lock().expect("no holder of this lock panics").clone()
    }

    async fn decide(&self, action: &str, resource: &Resource) -> Result<Verdict, Fault> {
        let verdict = self.authorization.decide(self, action, resource).await?;
        self.record(action, &resource.name, verdict.allowed, &verdict.by);
        Ok(verdict)
    }

    fn record(&self, action: &str, resource: &str, allowed: bool, by: &str) {
        self.decided.lock().expect("no holder of this lock panics").push(Decided {
            action: action.to_owned(),
            resource: resource.to_owned(),
            allowed,
            by: by.to_owned(),
        });
    }
}
