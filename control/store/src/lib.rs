//! PostgreSQL for the control plane: the pool, transactions, migrations, the work queue, the outbox, leases.
//!
//! This is the only crate that names the database driver. A module keeps its statements in one `sql.rs` as
//! [`Sql`] constants, runs them through [`Store::tx`] under an [`Op`], and reads rows with [`RowExt`].
//!
//! # The transaction idiom
//!
//! A transaction may run more than once, so its closure is `FnMut` and must be free of effects outside the
//! database. It may borrow from around it; what it borrows is named before the closure, so that the future
//! copies a reference and not the value:
//!
//! ```ignore
//! let (name, tags) = (&request.name, request.tags.as_slice());
//! let node = store
//!     .tx(NODE_RENAME, |tx| {
//!         Box::pin(async move {
//!             for tag in tags {
//!                 tx.execute(&sql::TAG_INSERT, &[&id.uuid(), tag]).await?;
//!             }
//!             tx.query_one(&sql::NODE_RENAME, &[&id.uuid(), name]).await
//!         })
//!     })
//!     .await?;
//! ```
//!
//! `E` is the caller's error: `From<StoreError> + IsRetryable`. Returning `Err` rolls back.
//!
//! # Time
//!
//! Statements call `compute_now()` and never `now()`. It is the setting `compute.now_us` when that is set (the
//! simulator's clock, through [`StoreConfig::virtual_clock`]), else the time of the statement.

mod config;
mod error;
mod metrics;
mod pool;
mod row;
mod sql;
mod tls;
mod tx;

pub mod deployment;
pub mod embedded;
pub mod lease;
pub mod listen;
pub mod migrate;
pub mod outbox;
pub mod partition;
pub mod restore;
pub mod schedule;
pub mod work;

pub use config::{Secret, StoreConfig, VirtualClock};
pub use error::{ErrorKind, IsRetryable, StoreError};
pub use lease::Lease;
pub use listen::{Listener, Notified};
pub use migrate::SchemaState;
pub use pool::Store;
pub use row::RowExt;
pub use sql::{Op, Sql, sql};
pub use tokio_postgres::Row;
pub use tokio_postgres::types::ToSql as Param;
pub use tx::{Owned, Tx};

/// What the seams of this crate return: a boxed future, so that its body is compiled here once.
pub type BoxFuture<'a, T> = futures::future::BoxFuture<'a, T>;

/// Every statement of this crate, for the test that prepares them all.
pub fn statements() -> Vec<Sql> {
    let modules = [
        deployment::STATEMENTS,
        lease::STATEMENTS,
        outbox::STATEMENTS,
        partition::STATEMENTS,
        restore::STATEMENTS,
        work::STATEMENTS,
    ];
    modules.concat()
}
