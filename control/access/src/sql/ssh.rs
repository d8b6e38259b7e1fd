//! Statements about SSH certificates and the keys that sign them.
//!
//! Durable: each certificate, before anybody has it, so that it can be revoked; and each revocation, until the certificate is
//! over everywhere. What a node is told depends on rows alone and on no time, so that equal rows make equal specs.

use store::{Sql, sql};

/// One row when another key signs from now on.
pub const CA_KEY_ANNOUNCE: Sql = sql(
    "ssh_ca_key_announce",
    "INSERT INTO ssh_ca_keys AS k (public_key) VALUES ($1)
     ON CONFLICT (public_key) DO UPDATE SET current_at = compute_now(), retired_at = NULL
       WHERE k.retired_at IS NOT NULL OR EXISTS (SELECT 1 FROM ssh_ca_keys o WHERE o.current_at > k.current_at)",
);
pub const CA_KEYS_TRUSTED: Sql = sql(
    "ssh_ca_keys_trusted",
    "SELECT public_key FROM ssh_ca_keys WHERE retired_at IS NULL ORDER BY current_at DESC, public_key LIMIT $1",
);
/// Whoever signs holds it, so that it is not retired meanwhile.
pub const CA_KEY_HOLD: Sql = sql(
    "ssh_ca_key_hold",
    "SELECT public_key FROM ssh_ca_keys WHERE public_key = $1 AND retired_at IS NULL FOR SHARE",
);
/// Before [`CA_KEYS_RETIRE`], which then sees whatever those wrote who held one.
pub const CA_KEYS_LOCK: Sql = sql(
    "ssh_ca_keys_lock",
    "SELECT public_key FROM ssh_ca_keys WHERE retired_at IS NULL ORDER BY public_key FOR UPDATE",
);
pub const CA_KEYS_RETIRE: Sql = sql(
    "ssh_ca_keys_retire",
    "UPDATE ssh_ca_keys k SET retired_at = compute_now()
     WHERE k.retired_at IS NULL AND EXISTS (SELECT 1 FROM ssh_ca_keys o WHERE o.current_at > k.current_at)
       AND NOT EXISTS (SELECT 1 FROM ssh_certs c WHERE c.ca_key = k.public_key AND c.over_at IS NULL AND c.revoked_at IS NULL)",
);
pub const CA_KEYS_OLD: Sql =
    sql("ssh_ca_keys_old", "SELECT count(*) > 1 AS old FROM ssh_ca_keys WHERE retired_at IS NULL");

/// Served nodes whose sshd is told anything.
pub const NODES_TOLD: Sql = sql(
    "ssh_nodes_told",
    "SELECT n.node_id FROM nodes n JOIN pools p USING (pool_id)
     WHERE n.state NOT IN ('joined', 'revoked', 'removed') AND p.policy->'sshAccounts' IS NOT NULL ORDER BY n.node_id",
);
pub const NODES_ACCESS: Sql = sql(
    "ssh_nodes_access",
    "SELECT n.node_id, p.policy->'sshAccounts' AS accounts,
       ARRAY(SELECT c.serial FROM ssh_certs c
         WHERE c.node_id = n.node_id AND c.over_at IS NULL AND c.revoked_at IS NOT NULL ORDER BY c.serial) AS revoked
     FROM nodes n JOIN pools p USING (pool_id) WHERE n.node_id = ANY(ARRAY(SELECT unnest($1::uuid[]))) AND p.policy->'sshAccounts' IS NOT NULL",
);
/// Whoever certifies for a node holds it, so that certificates of one are counted one after the other.
pub const NODE_HOLD: Sql = sql(
    "ssh_node_hold",
    "SELECT n.state, n.hostname, p.name AS pool, p.policy->'sshAccounts' AS accounts
     FROM nodes n LEFT JOIN pools p USING (pool_id) WHERE n.node_id = $1 FOR NO KEY UPDATE OF n",
);
pub const CERTS_COUNT: Sql = sql(
    "ssh_certs_count",
    "SELECT (SELECT count(*) FROM ssh_certs WHERE node_id = $1 AND over_at IS NULL) AS of_node,
       (SELECT count(*) FROM ssh_certs WHERE node_id = $1 AND over_at IS NULL AND user_id = $2) AS of_both,
       (SELECT count(*) FROM ssh_certs WHERE user_id = $2 AND created_at > compute_now() - $3::int * interval '1 second') AS of_user",
);
pub const CERT_INSERT: Sql = sql(
    "ssh_cert_insert",
    "INSERT INTO ssh_certs (cert_id, serial, ca_key, node_id, tenant_id, account, key_fingerprint, user_id, token_id, source_ip,
       reason, valid_before)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);

macro_rules! cert_select {
    ($rest:literal) => {
        concat!(
            "SELECT c.cert_id, c.serial, c.tenant_id, c.node_id, c.account, c.key_fingerprint, c.user_id, c.token_id, c.source_ip,
       c.reason, c.created_at, c.valid_before, c.revoked_at, c.revoke_reason, c.over_at, t.name AS tenant_name,
       n.name AS node_name, n.state AS node_state, s.name AS site_name, p.name AS pool_name, u.name AS user_name,
       compute_now() AS now
     FROM ssh_certs c JOIN tenants t USING (tenant_id) JOIN nodes n USING (node_id) JOIN sites s USING (site_id)
     JOIN users u ON u.user_id = c.user_id LEFT JOIN pools p ON p.pool_id = n.pool_id ",
            $rest
        )
    };
}

pub const CERT_GET: Sql = sql("ssh_cert_get", cert_select!("WHERE c.cert_id = $1"));
pub const CERT_BY_SERIAL: Sql = sql("ssh_cert_by_serial", cert_select!("WHERE c.serial = $1"));
pub const CERTS_LIST: Sql = sql(
    "ssh_certs_list",
    cert_select!(
        "WHERE c.tenant_id = $1 AND c.cert_id < $2 AND ($3::uuid IS NULL OR c.node_id = $3) AND ($4::text IS NULL OR n.name = $4)
       AND ($5 OR (c.revoked_at IS NULL AND c.valid_before > compute_now()))
     ORDER BY c.cert_id DESC LIMIT $6"
    ),
);
/// None once its time is over: there is nothing left to revoke.
pub const CERT_REVOKE: Sql = sql(
    "ssh_cert_revoke",
    "UPDATE ssh_certs SET revoked_at = compute_now(), revoke_reason = $2
     WHERE cert_id = $1 AND revoked_at IS NULL AND over_at IS NULL AND valid_before > compute_now()",
);
/// Those whose time is over everywhere, whatever a node's clock says within `$1` seconds.
pub const CERTS_OVER: Sql = sql(
    "ssh_certs_over",
    "UPDATE ssh_certs SET over_at = compute_now() WHERE cert_id IN (SELECT cert_id FROM ssh_certs
       WHERE over_at IS NULL AND valid_before < compute_now() - $1::int * interval '1 second' ORDER BY valid_before LIMIT $2)
     RETURNING node_id, revoked_at",
);
pub const CERTS_FORGET: Sql = sql(
    "ssh_certs_forget",
    "DELETE FROM ssh_certs WHERE cert_id IN (SELECT cert_id FROM ssh_certs
       WHERE valid_before < compute_now() - $1::int * interval '1 day' AND over_at IS NOT NULL ORDER BY valid_before LIMIT $2)",
);

/// For a test that prepares each of them.
pub const ALL: &[Sql] = &[
    CA_KEY_ANNOUNCE,
    CA_KEYS_TRUSTED,
    CA_KEY_HOLD,
    CA_KEYS_LOCK,
    CA_KEYS_RETIRE,
    CA_KEYS_OLD,
    NODES_TOLD,
    NODES_ACCESS,
    NODE_HOLD,
    CERTS_COUNT,
    CERT_INSERT,
    CERT_GET,
    CERT_BY_SERIAL,
    CERTS_LIST,
    CERT_REVOKE,
    CERTS_OVER,
    CERTS_FORGET,
];
