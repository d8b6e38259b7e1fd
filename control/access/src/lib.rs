//! Ways in: tunnels into instances and onto nodes' consoles, by tickets that are signed like every other intent, and
//! certificates for nodes' own sshd.
//!
//! ```text
//! tunnels.open: decision -> row, ticket ---> gateway: takes it, once ---> node: believes our signature, once
//!
//! issued -> open -> closed              watched while it is open: may it still be? is its gateway still there?
//!    \--------------^                    (no ticket is taken after its minute)
//! ```
//!
//! # What cannot happen
//!
//! No ticket opens two tunnels: its row is taken by one statement, and the node keeps its id. None opens anything for
//! another than who asked, whoever gets hold of it: it names the key that its end must have. A tunnel goes on for no longer
//! than its user, token and policies let it be opened, and a few seconds.

mod close;
mod open;
mod read;
mod watch;

mod retention;
pub mod sql;
mod ssh;
mod tickets;
mod view;

use std::sync::Arc;

use kernel::ports::iam::{AuthenticationPort, AuthorizationPort};
use kernel::ports::tunnels::{InstanceDoors, NodeDoors};
use kernel::{BoxFuture, Call, Fault, Module};
use kit::{Clock, Rng};
use model::Id;
use store::Store;

pub use ssh::{SshCa, SshSpec};
pub use tickets::PgTickets;
pub use watch::QUEUE;

/// How gateways are known to those who connect to them.
#[derive(Debug, Clone)]
pub struct GatewayFacts {
    pub server_name: String,
    pub serving_ca_pin: String,
}

pub struct AccessParts {
    pub store: Store,
    pub instances: Arc<dyn InstanceDoors>,
    pub nodes: Arc<dyn NodeDoors>,
    pub authentication: Arc<dyn AuthenticationPort>,
    pub authorization: Arc<dyn AuthorizationPort>,
    pub gateway: GatewayFacts,
    /// None in a deployment that has no key for it.
    pub ssh: Option<SshCa>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Access(Arc<AccessParts>);

impl Access {
    pub fn new(parts: AccessParts) -> Self {
        Self(Arc::new(parts))
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn id<I: Id>(&self) -> I {
        self.0.rng.id(self.0.clock.now())
    }
}

/// One line per method: what takes `(Access, Arc<Call>, Request)`.
fn handler<R, T, F, Fut>(
    access: &Access,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Access, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let access = access.clone();
    move |call, request| Box::pin(run(access.clone(), call, request))
}

pub fn module(access: &Access) -> Module {
    let module = Module::new("access")
        .method::<api::tunnels::Open, _>(handler(access, open::open))
        .method::<api::tunnels::Get, _>(handler(access, read::get))
        .method::<api::tunnels::List, _>(handler(access, read::list))
        .method::<api::tunnels::Close, _>(handler(access, close::close))
        .queue(Arc::new(watch::Watch(access.clone())))
        .pass(Arc::new(retention::Retention(access.store().clone())));
    ssh::register(module, access)
}
