//! Who asks for a secret, by the rows.

use store::{Sql, sql};

/// A key that a node has a certificate for that counts now.
pub const ASKER_KEY: Sql = sql(
    "secret_asker_key",
    "SELECT c.spki_der, n.quarantined_at IS NOT NULL AS quarantined FROM node_certs c JOIN nodes n USING (node_id)
     WHERE c.node_id = $1 AND c.spki_sha256 = $2 AND c.revoked_at IS NULL
       AND c.not_before <= compute_now() AND c.not_after >= compute_now()
     ORDER BY c.issued_at DESC LIMIT 1",
);

/// For the test that prepares every statement.
pub const STATEMENTS: &[Sql] = &[ASKER_KEY];
