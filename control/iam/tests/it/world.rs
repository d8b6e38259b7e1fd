//! An installation with its first administrator, and calls through the pipeline.

use std::sync::Arc;
use std::time::Duration;

use kernel::testing::{Told, invoke, pipeline_with};
use kernel::{Module, Pipeline};
use kit::OsRng;
use pki::OsEntropy;
use serde_json::{Value, json};
use testkit::TestDb;

pub struct World {
    pub db: TestDb,
    pub iam: Arc<iam::Iam>,
    pub pipeline: Pipeline,
    pub admin: String,
    pub admin_id: String,
    pub root: String,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Vec::new()).await
    }

    /// With more modules beside this one.
    pub async fn with(mut modules: Vec<Module>) -> Self {
        let db = testkit::db().await;
        let store = db.store.clone();
        let admin = iam::bootstrap(&store, &OsRng, &OsEntropy, Duration::from_secs(3600)).await;
        let admin = admin.expect("the database takes it").expect("the database is new");
        let iam = iam::Iam::new(
            store.clone(),
            Arc::new(kit::SystemClock::new()),
            Arc::new(OsRng),
            Arc::new(OsEntropy),
        );
        modules.push(iam::module(&iam));
        let authorizer = iam::Authorizer::new(store.clone());
        let pipeline = pipeline_with(&modules, iam.clone(), authorizer, store);
        Self {
            db,
            iam,
            pipeline,
            admin: admin.secret.to_string(),
            admin_id: admin.user_id.to_string(),
            root: admin.tenant_id.to_string(),
        }
    }

    pub async fn call(&self, token: &str, method: &str, request: Value) -> Told {
        invoke(&self.pipeline, Some(token), method, request).await
    }

    /// As the administrator; it goes well.
    pub async fn does(&self, method: &str, request: Value) -> Value {
        self.call(&self.admin, method, request).await.ok()
    }

    pub async fn tenant(&self, parent: &str, name: &str) -> String {
        text(&self.does("tenants.create", json!({"parent": parent, "name": name})).await["id"])
    }

    /// A service user and its token.
    pub async fn user(&self, tenant: &str, name: &str) -> User {
        let user =
            self.does("users.create", json!({"tenant": tenant, "kind": "service", "name": name})).await;
        let id = text(&user["id"]);
        let token = self.does("tokens.create", json!({"user": id, "name": "test"})).await;
        User { id, token_id: text(&token["token"]["id"]), token: text(&token["secret"]) }
    }

    pub async fn policy(&self, tenant: &str, name: &str, statements: Value) -> String {
        let document = json!({"statements": statements});
        let put = json!({"tenant": tenant, "name": name, "document": document});
        text(&self.does("policies.put", put).await["id"])
    }

    pub async fn bind(&self, tenant: &str, policy: &str, user: &str) -> String {
        let put = json!({"tenant": tenant, "policy": policy, "user": user});
        text(&self.does("bindings.put", put).await["id"])
    }

    /// What a policy of one allowing statement lets its holder do.
    pub async fn allow(&self, tenant: &str, user: &User, name: &str, actions: &[&str]) -> String {
        let statement = json!([{"sid": "Allow", "effect": "allow", "actions": actions, "resources": ["*"]}]);
        self.policy(tenant, name, statement).await;
        self.bind(tenant, name, &user.id).await
    }
}

pub struct User {
    pub id: String,
    pub token_id: String,
    pub token: String,
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}")).to_owned()
}
