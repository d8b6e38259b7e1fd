//! The API methods of this module: sites, join tokens and requests, nodes, commands.

use std::sync::Arc;

use kernel::Module;

use crate::core::Fleet;

mod command_view;
mod commands;
mod door;
mod join_requests;
mod join_tokens;
mod node_changes;
mod node_view;
mod nodes;
mod refs;
mod sites;
pub mod sql;

/// What a process with the API role registers.
pub fn module(fleet: &Fleet) -> Module {
    let module = Module::new("fleet");
    let module = sites::register(module, fleet);
    let module = join_tokens::register(module, fleet);
    let module = join_requests::register(module, fleet);
    let module = nodes::register(module, fleet);
    let module = node_changes::register(module, fleet);
    commands::register(module, fleet)
}

/// What a process with the worker role runs.
pub fn worker(fleet: &Fleet) -> Module {
    Module::new("fleet-worker")
        .queue(Arc::new(crate::spec::SpecQueue(fleet.clone())))
        .queue(Arc::new(crate::observe::ObserveQueue(fleet.clone())))
        .queue(Arc::new(crate::facts::FactsQueue(fleet.clone())))
        .queue(Arc::new(crate::join::JoinQueue(fleet.clone())))
        .pass(Arc::new(crate::commands::Sweeper(fleet.clone())))
        .pass(Arc::new(crate::liveness::Liveness(fleet.clone())))
        .pass(Arc::new(crate::spec::SpecEpochs(fleet.clone())))
        .pass(Arc::new(crate::spec::SpecRenewal(fleet.clone())))
        .pass(Arc::new(crate::retention::Retention(fleet.clone())))
}

/// Registers one method as `async fn(Fleet, Arc<Call>, Request) -> Result<Response, Fault>`.
macro_rules! on {
    ($module:expr, $fleet:expr, $method:ty, $handler:path) => {{
        let fleet = $fleet.clone();
        $module.method::<$method, _>(move |call, request| Box::pin($handler(fleet.clone(), call, request)))
    }};
}
pub(crate) use on;
