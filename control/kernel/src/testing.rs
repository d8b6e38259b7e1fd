//! Calls without HTTP, for tests of modules. Behind the feature `testing`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kit::{OsRng, Rng, SystemClock};
use model::{TenantId, Timestamp, TokenId, UserId};
use serde_json::Value;
use store::Store;

use crate::BoxFuture;
use crate::call::{Call, Principal};
use crate::fault::Fault;
use crate::module::Module;
use crate::pipeline::{Answer, CallLimits, Incoming, Pipeline};
use crate::ports::iam::{AuthenticationPort, AuthorizationPort, Identity, Resource, Verdict};
use crate::rate::Rate;

/// Longer than any test waits for one call.
const DEADLINE: Duration = Duration::from_secs(60);

/// Decides everything by one function of the caller, the action and the resource.
pub struct DecideBy<F>(pub F);

impl<F: Fn(&Principal, &str, &Resource) -> bool + Send + Sync + 'static> AuthorizationPort for DecideBy<F> {
    fn decide<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>> {
        let allowed = (self.0)(&call.principal, action, resource);
        Box::pin(async move { Ok(Verdict { allowed, by: "the test".to_owned() }) })
    }

    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>> {
        Box::pin(async move {
            let mut verdicts = Vec::with_capacity(resources.len());
            for resource in resources {
                verdicts.push(self.decide(call, action, resource).await?);
            }
            Ok(verdicts)
        })
    }
}

/// May do everything.
pub fn allow_all() -> Arc<dyn AuthorizationPort> {
    Arc::new(DecideBy(|_: &Principal, _: &str, _: &Resource| true))
}

/// May do nothing.
pub fn deny_all() -> Arc<dyn AuthorizationPort> {
    Arc::new(DecideBy(|_: &Principal, _: &str, _: &Resource| false))
}

/// Takes the token `token` for one caller, and refuses any other.
pub struct OneCaller(pub Principal);

impl AuthenticationPort for OneCaller {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        Box::pin(async move {
            if token == "token" {
                return Ok(Identity {
                    principal: self.0.clone(),
                    now: now(),
                    iam_version: None,
                    observe_only: false,
                });
            }
            Err(crate::pipeline::unauthenticated("no such token").into())
        })
    }

    fn again(&self, token_id: TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        let token = if token_id == self.0.token_id { "token" } else { "another" };
        self.authenticate(token)
    }
}

/// The machine's time, which is the test database's too.
pub fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

pub fn principal(user_id: UserId, tenant_id: TenantId) -> Principal {
    let rng: &dyn Rng = &OsRng;
    let token_id: TokenId = rng.id(now());
    Principal { user_id, tenant_id, name: "tester".to_owned(), kind: "service", token_id }
}

/// A call as a handler gets it.
pub fn call(
    method: &'static str,
    principal: Principal,
    authorization: Arc<dyn AuthorizationPort>,
) -> Arc<Call> {
    let rng: &dyn Rng = &OsRng;
    let now = now();
    let source_ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Arc::new(Call::new(rng.id(now), rng.id(now), method, principal, source_ip, now, authorization))
}

/// A pipeline of these modules for one caller, whose token is `token`.
pub fn pipeline(
    modules: &[Module],
    principal: Principal,
    authorization: Arc<dyn AuthorizationPort>,
    store: Store,
) -> Pipeline {
    pipeline_with(modules, Arc::new(OneCaller(principal)), authorization, store)
}

/// A pipeline with ports of its own, whose rate limits no test reaches.
pub fn pipeline_with(
    modules: &[Module],
    authentication: Arc<dyn AuthenticationPort>,
    authorization: Arc<dyn AuthorizationPort>,
    store: Store,
) -> Pipeline {
    let plenty = Rate { per_second: 100_000, burst: 100_000 };
    Pipeline::new(
        modules,
        authentication,
        authorization,
        store,
        Arc::new(SystemClock::new()),
        Arc::new(OsRng),
        CallLimits { calls: plenty, unknown: plenty },
    )
    .expect("the modules of the test fit the method table")
}

/// What came back, parsed.
#[derive(Debug, Clone)]
pub struct Told {
    pub status: u16,
    pub body: Value,
    pub answer: Answer,
}

impl Told {
    /// The error's code, or `ok`.
    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or("ok")
    }

    /// The body of a call that went well.
    ///
    /// # Panics
    /// When it did not, with what was answered.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "the call failed: {}", self.body);
        self.body
    }
}

/// Makes a call from the loopback address.
pub async fn invoke(pipeline: &Pipeline, token: Option<&str>, method: &str, request: Value) -> Told {
    invoke_bytes(pipeline, token, method, Bytes::from(request.to_string())).await
}

/// Makes a call with a body that need not be JSON.
pub async fn invoke_bytes(pipeline: &Pipeline, token: Option<&str>, method: &str, body: Bytes) -> Told {
    let source_ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let incoming = Incoming { method, body, bearer: token, source_ip, deadline: DEADLINE, request_id: None };
    let answer = pipeline.call(incoming).await;
    let body = serde_json::from_slice(&answer.body).expect("an answer is JSON");
    Told { status: answer.status, body, answer }
}
