//! The pipeline's own rules, with ports that the test decides.

use std::sync::Arc;

use kernel::ports::iam::{AuthorizationPort, Resource, Verdict};
use kernel::testing::{self, allow_all, deny_all, invoke};
use kernel::{BoxFuture, Call, Fault, Module, Pipeline};
use kit::{OsRng, Rng, SystemClock};
use model::{TenantId, UserId};
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
