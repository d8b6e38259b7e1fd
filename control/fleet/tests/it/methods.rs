//! Calls through the kernel's pipeline.

use std::sync::Arc;

use kernel::ports::iam::{AuthorizationPort, Resource};
use kernel::testing::{self, DecideBy, Told};
use kernel::{Pipeline, Principal};
use serde_json::Value;

use crate::world::World;

mod commands;
mod joining;
mod nodes;
mod sites;

pub struct Api(Pipeline);

impl Api {
    /// Everything is allowed.
    pub fn new(world: &World) -> Self {
        Self::with(world, testing::allow_all())
    }

    /// Only these actions are allowed.
    pub fn may(world: &World, actions: &'static [&'static str]) -> Self {
        let decide = move |_: &Principal, action: &str, _: &Resource| actions.contains(&action);
        Self::with(world, Arc::new(DecideBy(decide)))
    }

    fn with(world: &World, authorization: Arc<dyn AuthorizationPort>) -> Self {
        let modules = [fleet::methods::module(&world.fleet)];
        let principal = testing::principal(world.user, world.root);
        Self(testing::pipeline(&modules, principal, authorization, world.store.clone()))
    }

    pub async fn call(&self, method: &str, request: Value) -> Told {
        testing::invoke(&self.0, Some("token"), method, request).await
    }

    pub async fn ok(&self, method: &str, request: Value) -> Value {
        self.call(method, request).await.ok()
    }
}

/// Audit entries of transactions that changed something, by action.
pub async fn audited(world: &World) -> Vec<(String, String)> {
    let rows = world
        .rows(
            "SELECT action, outcome FROM audit WHERE detail->>'committed' = 'true' ORDER BY at, audit_id",
            &[],
        )
        .await;
    rows.iter().map(|row| (row.get("action"), row.get("outcome"))).collect()
}
