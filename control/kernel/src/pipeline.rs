//! One call from its bytes to its answer.
//!
//! ```text
//! route -> authenticate -> rate -> size -> parse -> handler { decide, change } -> audit -> answer
//! ```
//!
//! A caller is known before its body is there: [`Pipeline::open`] before it is read, [`Pipeline::finish`] with it. Who is
//! not known costs one look-up, fills no memory and learns nothing.

mod answer;
mod table;

use std::net::{IpAddr, Ipv6Addr};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::Idempotency;
use bytes::Bytes;
use futures::FutureExt;
use kit::{Clock, Rng};
use model::{ErrorCode, RequestId, UserId};
use serde_json::Value;
use sha2::{Digest, Sha256};
use store::Store;

pub use answer::Answer;
pub use table::TableError;

use crate::bounded::Bounded;
use crate::call::Call;
use crate::fault::{ApiError, Fault};
use crate::module::{Content, ContentBytes, Module};
use crate::ports::iam::{AuthenticationPort, AuthorizationPort, Identity};
use crate::rate::{Buckets, Rate};
use crate::{audit, json};
use table::{Entry, Table};

/// Bytes of a request body. The largest request, a node's labels or a policy, is under 100 KiB.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Users whose rate is remembered; a forgotten one starts anew with a full bucket.
const RATE_USERS_MAX: usize = 16_384;
/// Addresses whose failed authentications are remembered.
const RATE_ADDRESSES_MAX: usize = 16_384;
/// Tokens that were good lately, by their hash.
const GOOD_TOKENS_MAX: usize = 16_384;
/// How long what a look-up of the caller said is gone by.
const CALLER_KEPT: Duration = Duration::from_secs(1);

/// Groups whose methods change things also while the deployment is observe-only: who may come in has to be manageable
/// then, and so has the end of it. Everything else is intent, which would be written over what the database forgot.
const GROUPS_IN_OBSERVE_ONLY: [&str; 6] = ["bindings", "policies", "system", "tenants", "tokens", "users"];
/// Among them, and intent all the same: what a tenant has now may be what the database forgot.
const INTENT: &str = "tenants.delete";

/// How much one caller may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls of one user, with all its tokens.
    pub calls: Rate,
    /// Calls from one address (one /64 of IPv6) whose token is not known. Each costs a look-up in the database.
    pub unknown: Rate,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self { calls: Rate { per_second: 500, burst: 2000 }, unknown: Rate { per_second: 5, burst: 50 } }
    }
}

/// A call as it comes in.
#[derive(Debug, Clone)]
pub struct Incoming<'a> {
    /// `reservations.create`.
    pub method: &'a str,
    pub body: Bytes,
    /// The bearer token, when one was given.
    pub bearer: Option<&'a str>,
    pub source_ip: IpAddr,
    /// How long the call may take, its `wait` included.
    pub deadline: Duration,
    /// The caller's own id for the request, else one is made.
    pub request_id: Option<RequestId>,
}

/// A call whose caller is known and whose body is not.
pub struct Opened {
    call: Arc<Call>,
    started: Duration,
    /// When the caller was last looked up.
    looked_up: Duration,
}

impl Opened {
    /// The user who calls.
    pub fn user_id(&self) -> UserId {
        self.call.principal.user_id
    }
}

/// Runs calls. Share it in an `Arc`.
pub struct Pipeline {
    table: Table,
    contents: Vec<Arc<dyn Content>>,
    authentication: Arc<dyn AuthenticationPort>,
    authorization: Arc<dyn AuthorizationPort>,
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    calls: Buckets<UserId>,
    unknown: Buckets<IpAddr>,
    /// What spares a caller from paying for others behind the same address who guess.
    good: Mutex<Bounded<[u8; 32], ()>>,
}

impl Pipeline {
    /// Takes the methods of all modules.
    ///
    /// # Errors
    /// When a method has no row in the table, two handlers, or when a group is registered only in part.
    pub fn new(
        modules: &[Module],
        authentication: Arc<dyn AuthenticationPort>,
        authorization: Arc<dyn AuthorizationPort>,
        store: Store,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        limits: CallLimits,
    ) -> Result<Self, TableError> {
        Ok(Self {
            table: Table::new(modules)?,
            contents: modules.iter().flat_map(|module| module.contents.iter().cloned()).collect(),
            authentication,
            authorization,
            store,
            clock,
            rng,
            calls: Buckets::new(limits.calls, RATE_USERS_MAX),
            unknown: Buckets::new(limits.unknown, RATE_ADDRESSES_MAX),
            good: Mutex::new(Bounded::new(GOOD_TOKENS_MAX)),
        })
    }

    /// Names of the methods that are served, in order.
    pub fn methods(&self) -> impl Iterator<Item = &'static str> {
        self.table.names()
    }

    pub fn request_id(&self) -> RequestId {
        self.rng.id(self.clock.now())
    }

    /// Runs one call. Never fails: what goes wrong is in the answer.
    pub async fn call(&self, incoming: Incoming<'_>) -> Answer {
        let request_id = incoming.request_id.unwrap_or_else(|| self.request_id());
        match self.open(incoming.method, incoming.bearer, incoming.source_ip, request_id).await {
            Ok(opened) => self.finish(opened, incoming.body, incoming.deadline).await,
            Err(answer) => answer,
        }
    }

    /// Who calls what, before anything of the body is read. The answer when that is refused.
    pub async fn open(
        &self,
        method: &str,
        bearer: Option<&str>,
        source_ip: IpAddr,
        request_id: RequestId,
    ) -> Result<Opened, Answer> {
        let started = self.clock.monotonic();
        let refused = |method, error| {
            let took = self.clock.monotonic().saturating_sub(started);
            Answer::new(request_id, method, took, Err(error))
        };
        let entry = self.table.get(method).map_err(|error| refused(None, error))?;
        let begun = self.begin(entry.row.name, bearer, source_ip, request_id).await;
        let call = begun.map_err(|error| refused(Some(entry.row.name), error))?;
        Ok(Opened { call, started, looked_up: started })
    }

    /// Looks the caller up again when its body took its time, since it may be revoked by now.
    pub async fn reopen(&self, opened: Opened, bearer: Option<&str>) -> Result<Opened, Answer> {
        let looked_up = self.clock.monotonic();
        if looked_up.saturating_sub(opened.looked_up) < CALLER_KEPT {
            return Ok(opened);
        }
        let (method, request_id) = (opened.call.method, opened.call.request_id);
        match self.again(&opened.call, bearer.unwrap_or_default()).await {
            Ok(call) => Ok(Opened { call, looked_up, ..opened }),
            Err(error) => {
                let took = looked_up.saturating_sub(opened.started);
                Err(Answer::new(request_id, Some(method), took, Err(error)))
            }
        }
    }

    /// Runs what was opened. Never fails: what goes wrong is in the answer.
    pub async fn finish(&self, opened: Opened, body: Bytes, deadline: Duration) -> Answer {
        let Opened { call, started, .. } = opened;
        let result = match self.table.get(call.method) {
            Ok(entry) => self.run(entry, &call, &body, deadline).await,
            Err(error) => Err(error),
        };
        let took = self.clock.monotonic().saturating_sub(started);
        Answer::new(call.request_id, Some(call.method), took, result)
    }

    /// Who calls, as every call begins: also for what is no method, like the event stream. `method` names it in the audit.
    pub async fn begin(
        &self,
        method: &'static str,
        bearer: Option<&str>,
        source_ip: IpAddr,
        request_id: RequestId,
    ) -> Result<Arc<Call>, ApiError> {
        let Some(token) = bearer else {
            return Err(unauthenticated("send a token: Authorization: Bearer bct_…"));
        };
        let address = rate_address(source_ip);
        let now = self.clock.monotonic();
        let sha256: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let guess = !self.was_good(&sha256);
        if guess {
            // Taken before the answer is known, so that guesses made at once do not all pass before the first is counted.
            let room = self.unknown.take(address, now);
            room.map_err(|wait| limited("too many calls without a valid token", wait))?;
        }
        let identity = match self.authentication.authenticate(token).await {
            Ok(identity) => identity,
            Err(Fault::Refused(error)) => {
                self.good.lock().expect("no holder of this lock panics").remove(&sha256);
                if !guess {
                    // The refusal stands whether or not there was something left to take.
                    let _ = self.unknown.take(address, now);
                }
                return Err(error);
            }
            Err(fault) => return Err(self.told(fault, method, request_id)),
        };
        if guess {
            self.unknown.give_back(address, now);
        }
        self.good.lock().expect("no holder of this lock panics").insert(sha256, ());
        let calls = self.calls.take(identity.principal.user_id, now);
        calls.map_err(|wait| limited("too many calls by this user", wait))?;
        Ok(self.new_call(method, identity, source_ip, request_id))
    }

    fn was_good(&self, sha256: &[u8; 32]) -> bool {
        self.good.lock().expect("no holder of this lock panics").get(sha256).is_some()
    }

    /// Looks the caller of a long call up again, which may be revoked by now. Takes nothing from the rate.
    pub async fn again(&self, call: &Call, bearer: &str) -> Result<Arc<Call>, ApiError> {
        match self.authentication.authenticate(bearer).await {
            Ok(identity) => Ok(self.new_call(call.method, identity, call.source_ip, call.request_id)),
            Err(fault) => Err(self.told(fault, call.method, call.request_id)),
        }
    }

    fn new_call(
        &self,
        method: &'static str,
        identity: Identity,
        source_ip: IpAddr,
        request_id: RequestId,
    ) -> Arc<Call> {
        let call = Call::new(
            request_id,
            self.rng.id(identity.now),
            method,
            identity.principal,
            source_ip,
            identity.now,
            self.authorization.clone(),
        );
        Arc::new(call.with_identity(identity.iam_version, identity.observe_only))
    }

    /// Who takes the contents of this group's resources, if anybody does.
    pub fn content(&self, group: &str) -> Option<Arc<dyn Content>> {
        self.contents.iter().find(|content| content.group() == group).cloned()
    }

    /// Hands bytes to who takes them. The call began with [`begin`](Self::begin); how long it may take is for `bytes` to say.
    pub async fn put(
        &self,
        call: &Arc<Call>,
        content: &dyn Content,
        id: &str,
        offset: u64,
        bytes: ContentBytes,
    ) -> Answer {
        let started = self.clock.monotonic();
        let result = match call.observe_only {
            true => Err(observe_only()),
            false => {
                let taken = AssertUnwindSafe(content.put(call, id, offset, bytes)).catch_unwind().await;
                self.answered(call, taken)
            }
        };
        let result = self.entered(call, result).await;
        let took = self.clock.monotonic().saturating_sub(started);
        Answer::new(call.request_id, Some(call.method), took, result)
    }

    async fn run(
        &self,
        entry: &Entry,
        call: &Arc<Call>,
        body: &Bytes,
        deadline: Duration,
    ) -> Result<Value, ApiError> {
        if body.len() > BODY_BYTES_MAX {
            return Err(too_large());
        }
        let reads = entry.row.idempotency == Idempotency::Read;
        let result = match json::parse(body) {
            _ if call.observe_only
                && !reads
                && (entry.row.name == INTENT || !GROUPS_IN_OBSERVE_ONLY.contains(&entry.row.parts().0)) =>
            {
                Err(observe_only())
            }
            Ok(body) => self.handle(entry, call, body, deadline).await,
            Err(invalid) => Err(ApiError::invalid("", invalid.to_string())),
        };
        if reads {
            return result;
        }
        self.entered(call, result).await
    }

    /// The result, once it is in the audit log.
    async fn entered(&self, call: &Arc<Call>, result: Result<Value, ApiError>) -> Result<Value, ApiError> {
        let request_id = call.request_id;
        let code = result.as_ref().err().map(|error| error.code);
        match audit::finish(&self.store, call, code).await {
            Ok(()) => result,
            // A change has its entry already. What changed nothing may not pass for done without one.
            Err(err) => {
                let err = kit::chain(&err);
                tracing::error!(%request_id, method = call.method, err, "failed to write an audit entry");
                match result {
                    Ok(_) if call.has_entry() => result,
                    Ok(_) => Err(unavailable("the call could not be entered in the audit log")),
                    Err(_) => result,
                }
            }
        }
    }

    async fn handle(
        &self,
        entry: &Entry,
        call: &Arc<Call>,
        body: Value,
        deadline: Duration,
    ) -> Result<Value, ApiError> {
        let method = entry.row.name;
        let request_id = call.request_id;
        let handler = entry.handler.clone();
        let running = AssertUnwindSafe(async { handler(call.clone(), body).await }).catch_unwind();
        let deadline = self.clock.sleep(deadline);
        // Dropping a handler midway rolls its transaction back.
        let ended = match futures::future::select(Box::pin(running), deadline).await {
            futures::future::Either::Left((ended, _)) => ended,
            futures::future::Either::Right(_) => {
                tracing::warn!(%request_id, method, "call ran out of time");
                return Err(unavailable(
                    "the call ran out of time; whether it took effect is not known, repeat it with its idempotency key",
                ));
            }
        };
        self.answered(call, ended)
    }

    /// What a handler came to, as its caller is told.
    fn answered(
        &self,
        call: &Call,
        ended: Result<Result<Value, Fault>, Box<dyn std::any::Any + Send>>,
    ) -> Result<Value, ApiError> {
        let (method, request_id) = (call.method, call.request_id);
        match ended {
            Ok(Ok(_)) if !call.decided().iter().any(|one| one.allowed) => {
                tracing::error!(%request_id, method, "handler answered without a decision");
                Err(internal())
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(fault)) => Err(self.told(fault, method, request_id)),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let err = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                tracing::error!(%request_id, method, err, "handler panicked");
                Err(internal())
            }
        }
    }

    /// What the caller is told of a fault. Its cause goes to the log, here and nowhere else.
    pub fn told(&self, fault: Fault, method: &'static str, request_id: RequestId) -> ApiError {
        let error = match &fault {
            Fault::Refused(error) => return error.clone(),
            Fault::Store(err) if err.is_check("tenant_is_open") => {
                return ApiError::invalid_state("the tenant is being deleted, and gets nothing new");
            }
            Fault::Store(err) if err.is_check("pool_is_open") => {
                return ApiError::new(ErrorCode::NotFound, "the pool was deleted just now")
                    .detail("kind", "pool");
            }
            Fault::Store(err) => match err.kind() {
                store::ErrorKind::CommitUnknown => unavailable(
                    "the database connection was lost; whether the call took effect is not known, repeat it with its \
                     idempotency key",
                ),
                store::ErrorKind::StatementTimeout => unavailable("the database did not answer in time"),
                _ if err.retryable() => unavailable("the database is not available"),
                _ => internal(),
            },
            Fault::Internal { .. } => internal(),
        };
        let err = kit::chain(&fault);
        if error.code == ErrorCode::Internal {
            tracing::error!(%request_id, method, err, "call failed");
        } else {
            tracing::warn!(%request_id, method, err, "call failed");
        }
        error
    }
}

/// One caller's address: a host of IPv6 usually has a /64 to itself.
fn rate_address(source_ip: IpAddr) -> IpAddr {
    match source_ip {
        IpAddr::V4(_) => source_ip,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        },
    }
}

pub(crate) fn unauthenticated(message: &str) -> ApiError {
    ApiError::new(ErrorCode::Unauthenticated, message)
}

pub fn too_large() -> ApiError {
    ApiError::invalid("", format!("the body is larger than {BODY_BYTES_MAX} bytes"))
        .detail("bytesMax", BODY_BYTES_MAX)
}

fn internal() -> ApiError {
    ApiError::new(
        ErrorCode::Internal,
        "something went wrong on our side; the log has it under the request id",
    )
}

fn observe_only() -> ApiError {
    unavailable(
        "the database may be an older one that was restored, so nothing is changed until somebody confirms it: see \
         system.info, then system.confirmRestore",
    )
}

fn unavailable(message: &str) -> ApiError {
    ApiError { retry_after: Some(1), ..ApiError::new(ErrorCode::Unavailable, message) }
}

fn limited(message: &str, wait: Duration) -> ApiError {
    let seconds = wait.as_secs() + 1;
    let error = ApiError::new(ErrorCode::RateLimited, format!("{message}: try again in {seconds} s"));
    ApiError { retry_after: Some(seconds), ..error }
}
