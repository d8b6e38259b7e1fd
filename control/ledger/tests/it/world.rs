use std::sync::Arc;
use std::time::Duration;

use kernel::Pipeline;
use kernel::testing::{Told, invoke, pipeline_with};
use kit::OsRng;
use pki::OsEntropy;
use serde_json::{Value, json};
use testkit::TestDb;

pub struct World {
    pub db: TestDb,
    pub pipeline: Pipeline,
    pub admin: String,
}

impl World {
    pub async fn new() -> Self {
        let db = testkit::db().await;
        let store = db.store.clone();
        let admin =
            iam::bootstrap(&store, &OsRng, &OsEntropy, Duration::from_secs(3600)).await.unwrap().unwrap();
        let iam = iam::Iam::new(
            store.clone(),
            Arc::new(kit::SystemClock::new()),
            Arc::new(OsRng),
            Arc::new(OsEntropy),
        );
        let modules = [iam::module(&iam), ledger::module(&ledger::Ledger::new(store.clone()))];
        let pipeline = pipeline_with(&modules, iam, iam::Authorizer::new(store.clone()), store);
        Self { db, pipeline, admin: admin.secret.to_string() }
    }

    pub async fn call(&self, token: &str, method: &str, request: Value) -> Told {
        invoke(&self.pipeline, Some(token), method, request).await
    }

    pub async fn does(&self, method: &str, request: Value) -> Value {
        self.call(&self.admin, method, request).await.ok()
    }

    /// A user of the root tenant who may do nothing.
    pub async fn nobody(&self) -> String {
        let user = self.does("users.create", json!({"kind": "service", "name": "nobody"})).await;
        let token = self.does("tokens.create", json!({"user": user["id"], "name": "test"})).await;
        token["secret"].as_str().unwrap().to_owned()
    }
}
