//! Who is it, and may they: tenants, users, tokens, policies and bindings, and the two ports over them.
//!
//! ```text
//! tenants (a tree) <- users <- tokens        a token is its user, wherever it is used
//!        ^               ^
//!        +--- bindings --+--> policies       a user holds a policy in a tenant, over it and all below it
//! ```
//!
//! A policy speaks about a resource only where it is bound in the resource's tenant or one above. A denial anywhere on
//! that way up stands. What cannot be decided is refused.
//!
//! # How far a right reaches
//!
//! Managing rights is an action like any other, so these are as strong as what they lead to, within their tenant:
//! `compute:bindings:put` in a tenant gives anybody anything over that tenant and those below; `compute:policies:put` changes
//! what holders of the tenant's policies may do there. A policy can be bound only in its own tenant or below, so neither
//! reaches upwards. `compute:tokens:create` for another user needs that right in every tenant where that user holds a
//! policy, since the token is worth all of them. There is no further check that a caller grants only what it has: whoever
//! holds any of the three in a tenant is as good as its administrator there, so give them to administrators only.
//!
//! A token can make another that outlives it: who may make tokens has the right until it is taken away, whichever token it
//! came with. A leaked one is ended by revoking it and all that its user's tokens made since.

mod authenticate;
mod authorize;
mod secret;

mod bindings;
mod policies;
mod tenants;
mod tokens;
mod users;

pub mod bootstrap;
mod sql;
mod version;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kernel::ports::tenants::Belongings;
use kernel::{BoxFuture, Call, Fault, Module};
use kit::{Clock, Pace, Rng, Together};
use pki::Entropy;
use store::{Row, Store};
use uuid::Uuid;

pub use authorize::Authorizer;
pub use bootstrap::{Bootstrapped, bootstrap};

/// Tokens that are looked up in one statement.
const TOKENS_AT_ONCE: usize = 128;
/// Where calls come in crowds: a wait that is small beside what else one takes then.
const TOKENS_PACE: Pace = Pace::new(6, Duration::from_millis(15));

/// The methods and the authentication port.
pub struct Iam {
    store: Store,
    authenticating: Together<Uuid, Row>,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    /// For the secrets of tokens.
    entropy: Arc<dyn Entropy>,
    /// What goes with a tenant, of other modules.
    belongings: OnceLock<Vec<Arc<dyn Belongings>>>,
}

impl Iam {
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        entropy: Arc<dyn Entropy>,
    ) -> Arc<Self> {
        let authenticating = Together::new(TOKENS_AT_ONCE, TOKENS_PACE, clock.clone());
        let belongings = OnceLock::new();
        Arc::new(Self { store, authenticating, clock, rng, entropy, belongings })
    }

    /// Names the modules that have things of tenants, in the order in which they end them. Once: a second list is not taken.
    pub fn set_belongings(&self, belongings: Vec<Arc<dyn Belongings>>) {
        let _ = self.belongings.set(belongings);
    }

    fn belongings(&self) -> &[Arc<dyn Belongings>] {
        self.belongings.get().map_or(&[], Vec::as_slice)
    }
}

/// One line per method: what takes `(Arc<Iam>, Arc<Call>, Request)`.
fn handler<R, T, F, Fut>(
    iam: &Arc<Iam>,
    run: F,
) -> impl Fn(Arc<Call>, R) -> BoxFuture<'static, Result<T, Fault>> + Send + Sync + 'static
where
    R: Send + 'static,
    F: Fn(Arc<Iam>, Arc<Call>, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, Fault>> + Send + 'static,
{
    let iam = iam.clone();
    move |call, request| Box::pin(run(iam.clone(), call, request))
}

pub fn module(iam: &Arc<Iam>) -> Module {
    Module::new("iam")
        .method::<api::tenants::Create, _>(handler(iam, tenants::create))
        .method::<api::tenants::Get, _>(handler(iam, tenants::get))
        .method::<api::tenants::List, _>(handler(iam, tenants::list))
        .method::<api::tenants::Delete, _>(handler(iam, tenants::delete))
        .method::<api::users::Create, _>(handler(iam, users::create))
        .method::<api::users::Get, _>(handler(iam, users::get))
        .method::<api::users::List, _>(handler(iam, users::list))
        .method::<api::users::Disable, _>(handler(iam, users::disable))
        .method::<api::users::Enable, _>(handler(iam, users::enable))
        .method::<api::tokens::Create, _>(handler(iam, tokens::create))
        .method::<api::tokens::List, _>(handler(iam, tokens::list))
        .method::<api::tokens::Revoke, _>(handler(iam, tokens::revoke))
        .method::<api::tokens::Whoami, _>(handler(iam, tokens::whoami))
        .method::<api::policies::Put, _>(handler(iam, policies::put))
        .method::<api::policies::Get, _>(handler(iam, policies::get))
        .method::<api::policies::List, _>(handler(iam, policies::list))
        .method::<api::policies::Delete, _>(handler(iam, policies::delete))
        .method::<api::bindings::Put, _>(handler(iam, bindings::put))
        .method::<api::bindings::List, _>(handler(iam, bindings::list))
        .method::<api::bindings::Delete, _>(handler(iam, bindings::delete))
        .queue(Arc::new(tenants::End(iam.clone())))
}
