//! Reading columns by name.

use std::str::FromStr;
use std::time::SystemTime;

use model::{Id, Timestamp};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::StoreError;

/// Typed columns. Like [`Row::get`] these panic when the column is missing or of another SQL type: that is a
/// mistake in the statement, found by the test that prepares every statement. A value that a column may hold
/// but the program may not know goes through [`RowExt::parse`].
pub trait RowExt {
    fn id<I: Id>(&self, column: &str) -> I;
    fn opt_id<I: Id>(&self, column: &str) -> Option<I>;
    fn ts(&self, column: &str) -> Timestamp;
    fn opt_ts(&self, column: &str) -> Option<Timestamp>;
    /// A text column with a closed set of values, such as a state.
    fn parse<T: FromStr>(&self, column: &'static str) -> Result<T, StoreError>;
}

impl RowExt for Row {
    fn id<I: Id>(&self, column: &str) -> I {
        I::from_uuid(self.get::<_, Uuid>(column))
    }

    fn opt_id<I: Id>(&self, column: &str) -> Option<I> {
        self.get::<_, Option<Uuid>>(column).map(I::from_uuid)
    }

    fn ts(&self, column: &str) -> Timestamp {
        Timestamp::from(self.get::<_, SystemTime>(column))
    }

    fn opt_ts(&self, column: &str) -> Option<Timestamp> {
        self.get::<_, Option<SystemTime>>(column).map(Timestamp::from)
    }

    fn parse<T: FromStr>(&self, column: &'static str) -> Result<T, StoreError> {
        self.get::<_, &str>(column).parse().map_err(|_| {
            StoreError::decode("parse", format!("column {column:?} holds a value this program does not know"))
        })
    }
}
