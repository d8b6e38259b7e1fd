//! The version of everything here: raised by each change, compared by caches.

use store::{StoreError, Tx};

use crate::sql;

/// Called once in every transaction that changes tenants, users, tokens, policies or bindings. Its row lock also puts such
/// transactions in an order.
pub(crate) async fn raise(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    tx.execute(&sql::VERSION_RAISE, &[]).await.map(drop)
}
