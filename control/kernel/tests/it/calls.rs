//! The pipeline's own rules, with ports that the test decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel::ports::iam::{AuthenticationPort, AuthorizationPort, Identity, Resource, Verdict};
use kernel::rate::Rate;
use kernel::testing::{self, allow_all, deny_all, invoke};
use kernel::{ApiError, BoxFuture, Call, Fault, Module, Pipeline, Principal};
use kit::{OsRng, Rng, SystemClock};
use model::{ErrorCode, TenantId, UserId};
use serde_json::json;
use testkit::db;

fn ids() -> (UserId, TenantId) {
    let rng: &dyn Rng = &OsRng;
    (rng.id(testing::now()), rng.id(testing::now()))
}

fn quotas() -> Module {
    Module::new("quotas")
        .method::<api::quotas::Set, _>(|call: Arc<Call>, _| {
            Box::pin(async move {
                let asked = Resource::any("compute-quota", call.principal.tenant_id);
                call.require("compute:quotas:set", &asked).await?;
                Err(Fault::Internal { doing: "set", source: "the secret cause".into() })
            })
        })
        .method::<api::quotas::List, _>(|call: Arc<Call>, _| {
            Box::pin(async move {
                let tenants = vec![call.principal.tenant_id; 3];
                let kept = call
                    .filter("compute:quotas:list", tenants, |id| Resource::any("compute-quota", *id))
                    .await?;
                assert_eq!(kept.len(), 3, "the test's port allows all or fails");
                Ok(api::List::new(Vec::new(), None))
            })
        })
}

/// Decides fewer than it was asked.
struct Short;

impl AuthorizationPort for Short {
    fn decide<'a>(
        &'a self,
        _: &'a Call,
        _: &'a str,
        _: &'a Resource,
    ) -> BoxFuture<'a, Result<Verdict, Fault>> {
        Box::pin(async { Ok(Verdict { allowed: true, by: "the test".to_owned() }) })
    }

    fn decide_many<'a>(
        &'a self,
        call: &'a Call,
        action: &'a str,
        resources: &'a [Resource],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, Fault>> {
        Box::pin(async move { Ok(vec![self.decide(call, action, &resources[0]).await?]) })
    }
}

#[tokio::test]
async fn a_list_of_which_not_all_was_decided_is_not_given() {
    let db = db().await;
    let (user_id, tenant_id) = ids();
    let principal = testing::principal(user_id, tenant_id);
    let short = testing::pipeline(&[quotas()], principal.clone(), Arc::new(Short), db.store.clone());
    assert_eq!(invoke(&short, Some("token"), "quotas.list", json!({})).await.code(), "INTERNAL");
    let whole = testing::pipeline(&[quotas()], principal, allow_all(), db.store.clone());
    invoke(&whole, Some("token"), "quotas.list", json!({})).await.ok();
}

#[tokio::test]
async fn an_internal_cause_is_not_told() {
    let db = db().await;
    let (user_id, tenant_id) = ids();
    let principal = testing::principal(user_id, tenant_id);
    let set = json!({"resource": "gpu", "amount": 1});
    let allowed = testing::pipeline(&[quotas()], principal.clone(), allow_all(), db.store.clone());
    let told = invoke(&allowed, Some("token"), "quotas.set", set.clone()).await;
    assert_eq!((told.status, told.code()), (500, "INTERNAL"));
    assert!(!told.body.to_string().contains("secret"), "{}", told.body);
    let denied = testing::pipeline(&[quotas()], principal, deny_all(), db.store.clone());
    assert_eq!(invoke(&denied, Some("token"), "quotas.set", set).await.code(), "ACCESS_DENIED");
}

#[tokio::test]
async fn a_change_that_cannot_be_entered_in_the_audit_log_is_not_passed_for_done() {
    let db = db().await;
    let (user_id, tenant_id) = ids();
    let handler = Module::new("quotas")
        .method::<api::quotas::Set, _>(|call: Arc<Call>, _| {
            Box::pin(async move {
                call.allow_self();
                let named = api::Named::new(call.principal.tenant_id, "t");
                Ok(api::quotas::Quota {
                    id: model::QuotaId::from_uuid(call.audit_id.uuid()).into(),
                    tenant: named,
                    resource: api::quotas::QuotaResource::Gpu.into(),
                    amount: 1,
                    used: 0,
                    updated_at: call.now.into(),
                })
            })
        })
        .method::<api::quotas::List, _>(|_, _| Box::pin(async { Ok(api::List::new(Vec::new(), None)) }));
    let principal = testing::principal(user_id, tenant_id);
    let pipeline = testing::pipeline(&[handler], principal, allow_all(), db.store.clone());
    let set = json!({"resource": "gpu", "amount": 1});
    assert_eq!(invoke(&pipeline, Some("token"), "quotas.set", set.clone()).await.code(), "ok");
    assert_eq!(db.scalar_i64("SELECT count(*) FROM audit").await, 1);
    db.batch("ALTER TABLE audit RENAME TO audit_gone").await;
    let told = invoke(&pipeline, Some("token"), "quotas.set", set).await;
    assert_eq!((told.status, told.code()), (503, "UNAVAILABLE"));
    assert_eq!(told.answer.retry_after, Some(1));
}

#[tokio::test]
async fn a_composition_that_does_not_fit_the_table_does_not_start() {
    let db = db().await;
    let (user_id, tenant_id) = ids();
    let start = |modules: &[Module]| {
        Pipeline::new(
            modules,
            Arc::new(testing::OneCaller(testing::principal(user_id, tenant_id))),
            allow_all(),
            db.store.clone(),
            Arc::new(SystemClock::new()),
            Arc::new(OsRng),
            kernel::CallLimits::default(),
        )
        .err()
        .map(|err| err.to_string())
        .unwrap_or_default()
    };
    assert_eq!(start(&[quotas()]), "");
    assert!(start(&[quotas(), quotas()]).contains("two handlers"));
    let mut half = quotas();
    half.methods.truncate(1);
    assert!(start(&[half]).contains("has no handler"));
    let mut unknown = quotas();
    unknown.methods[0].0 = "quotas.frobnicate";
    assert!(start(&[unknown]).contains("no row"));
}

/// Takes tokens that begin with `good`, each a token of its own of one user, and counts who it was asked about.
struct ManyTokens {
    user_id: UserId,
    tenant_id: TenantId,
    asked: AtomicUsize,
}

impl AuthenticationPort for ManyTokens {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, Fault>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            // Others get their turn, as while a database is asked.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            if !token.starts_with("good") {
                return Err(ApiError::new(ErrorCode::Unauthenticated, "unknown").into());
            }
            let token_id = (&OsRng as &dyn Rng).id(testing::now());
            let principal = Principal { token_id, ..testing::principal(self.user_id, self.tenant_id) };
            Ok(Identity { principal, now: testing::now(), iam_version: None, observe_only: false })
        })
    }

    fn again(&self, _: model::TokenId) -> BoxFuture<'_, Result<Identity, Fault>> {
        self.authenticate("good")
    }
}

async fn limited(db: &testkit::TestDb, calls: Rate, unknown: Rate) -> (Arc<ManyTokens>, Pipeline) {
    let (user_id, tenant_id) = ids();
    let port = Arc::new(ManyTokens { user_id, tenant_id, asked: AtomicUsize::new(0) });
    let limits = kernel::CallLimits { calls, unknown };
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(OsRng));
    let pipeline =
        Pipeline::new(&[quotas()], port.clone(), allow_all(), db.store.clone(), clock, rng, limits);
    (port, pipeline.expect("the module fits the table"))
}

const PLENTY: Rate = Rate { per_second: 1, burst: 1000 };

#[tokio::test]
async fn guesses_made_at_once_are_counted_before_they_are_answered() {
    let db = db().await;
    let (port, pipeline) = limited(&db, PLENTY, Rate { per_second: 1, burst: 5 }).await;
    let guesses: Vec<String> = (0..100).map(|at| format!("guess-{at}")).collect();
    let calls = guesses.iter().map(|guess| invoke(&pipeline, Some(guess), "quotas.list", json!({})));
    let told = futures::future::join_all(calls).await;
    let limited = told.iter().filter(|told| told.code() == "RATE_LIMITED").count();
    assert!(limited >= 90, "{limited} were limited");
    assert!(port.asked.load(Ordering::SeqCst) <= 10, "each look-up is one that was paid for");
}

#[tokio::test]
async fn a_good_token_gives_back_what_it_took_as_a_guess() {
    let db = db().await;
    let (_, pipeline) = limited(&db, PLENTY, Rate { per_second: 1, burst: 1 }).await;
    for at in 0..20 {
        let token = format!("good-{at}");
        assert_eq!(invoke(&pipeline, Some(&token), "quotas.list", json!({})).await.code(), "ok");
    }
}

#[tokio::test]
async fn a_user_has_one_rate_with_all_its_tokens() {
    let db = db().await;
    let (_, pipeline) = limited(&db, Rate { per_second: 1, burst: 3 }, PLENTY).await;
    let mut codes = Vec::new();
    for at in 0..12 {
        let token = format!("good-{at}");
        let told = invoke(&pipeline, Some(&token), "quotas.list", json!({})).await;
        codes.push(told.code().to_owned());
    }
    assert!(codes[..3].iter().all(|code| code == "ok"), "{codes:?}");
    assert!(codes[3..].contains(&"RATE_LIMITED".to_owned()), "{codes:?}");
}
