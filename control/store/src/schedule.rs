//! Who decides when a statement runs, where somebody does: the simulator. In production there is nobody, at the price of
//! a look at an absent pointer.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::{BoxFuture, StoreError};

/// What a transaction, or a statement outside of one, holds from its begin to its end. Whoever gave it learns by its drop
/// that the work is over, however it ended.
pub type Turn = Box<dyn Any + Send>;

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Statement,
    Commit,
}

/// What becomes of a statement or a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Goes,
    /// The connection is cut before the server hears of it.
    LostBefore,
    /// The server has done it and the connection is cut before its answer.
    LostAfter,
}

/// Decides over the statements of one store.
pub trait Schedule: Send + Sync + 'static {
    /// Before a connection is taken. `None`: the database is not there.
    fn enter<'a>(&'a self, name: &'static str) -> BoxFuture<'a, Option<Turn>>;

    /// Before each statement of a transaction and before its commit.
    fn point<'a>(&'a self, at: At, name: &'static str) -> BoxFuture<'a, Fate>;

    /// After a commit, with what it notified of.
    fn committed<'a>(&'a self, notified: Vec<(&'static str, String)>) -> BoxFuture<'a, ()>;

    /// The pause before another try.
    fn pause(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

pub(crate) type Scheduled = Option<Arc<dyn Schedule>>;

/// Asks for the turn, where turns are given.
pub(crate) async fn enter(schedule: &Scheduled, name: &'static str) -> Result<Option<Turn>, StoreError> {
    match schedule {
        Some(schedule) => schedule.enter(name).await.map(Some).ok_or_else(|| StoreError::lost(name)),
        None => Ok(None),
    }
}

pub(crate) async fn point(schedule: &Scheduled, at: At, name: &'static str) -> Fate {
    match schedule {
        Some(schedule) => schedule.point(at, name).await,
        None => Fate::Goes,
    }
}
