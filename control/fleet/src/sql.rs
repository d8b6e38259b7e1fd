//! Every statement of the worker's half of the fleet. What a gateway runs is in `delivery/sql.rs`.
//!
//! Durable: a spec and its signature are written with their generation in one statement, so that no generation is ever without
//! its signature. A command's body is written once. `observed_generation` and `nodes.generation` only go up.

use store::{Sql, sql};

mod facts;

pub use facts::*;

pub const DEPLOYMENT: Sql = sql("fleet_deployment", "SELECT epoch, observe_only FROM deployment");
pub const DEPLOYMENT_LOCK: Sql =
    sql("fleet_deployment_lock", "SELECT deployment_id, epoch FROM deployment FOR NO KEY UPDATE");
pub const DEPLOYMENT_ID_PUT: Sql =
    sql("fleet_deployment_id_put", "UPDATE deployment SET deployment_id = $1 WHERE deployment_id <> $1");

pub const NODE_LOCK: Sql = sql(
    "node_lock",
    "SELECT node_id, name, state, pool_id, generation, spec_hash, role, acceptance_command_id, quarantined_at
     FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE",
);
/// With what a stored spec is judged by: a claim proves the generation that a node holds although this database does not know it.
pub const NODE_SPECS_LOCK: Sql = sql(
    "node_specs_lock",
    "SELECT n.node_id, n.state, n.generation, n.spec_hash, n.spec_signature, n.spec_at, n.created_at, d.restored_at, d.epoch,
       compute_now() AS now,
       coalesce((SELECT c.generation FROM restore_claims c WHERE c.node_id = n.node_id AND c.proved), -1)
         AS proved_generation
     FROM nodes n CROSS JOIN deployment d WHERE n.node_id = ANY(ARRAY(SELECT unnest($1::uuid[])))
     ORDER BY n.node_id FOR NO KEY UPDATE OF n",
);
pub const NODE_TENANT: Sql = sql(
    "node_tenant",
    "SELECT p.tenant_id FROM nodes n LEFT JOIN pools p USING (pool_id) WHERE n.node_id = $1",
);
pub const NODE_SPECS_PUT: Sql = sql(
    "node_specs_put",
    "UPDATE nodes n SET generation = w.generation, spec_hash = w.spec_hash, spec_body = w.spec_body,
       spec_signature = w.spec_signature, spec_at = compute_now()
     FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[])
       AS w (node_id, generation, spec_hash, spec_body, spec_signature)
     WHERE n.node_id = w.node_id AND n.generation < w.generation",
);
pub const SPEC_SIGNATURES: Sql = sql(
    "spec_signatures",
    "SELECT node_id, spec_signature FROM nodes
     WHERE node_id > $1 AND spec_signature IS NOT NULL AND state IN ('accepting', 'ready', 'unreachable', 'lost')
     ORDER BY node_id LIMIT $2",
);
pub const SPECS_BEFORE_RESTORE: Sql = sql(
    "specs_before_restore",
    "SELECT n.node_id FROM nodes n CROSS JOIN deployment d
     WHERE n.spec_at < d.restored_at AND n.state IN ('accepting', 'ready', 'unreachable', 'lost')
     ORDER BY n.spec_at, n.node_id LIMIT $1",
);
pub const NODE_STATE_PUT: Sql = sql(
    "node_state_put",
    "UPDATE nodes SET state = $2,
       unreachable_since = CASE $2 WHEN 'unreachable' THEN compute_now() WHEN 'lost' THEN unreachable_since END,
       dead_at = CASE WHEN $2 <> 'ready' THEN dead_at END, dead_by = CASE WHEN $2 <> 'ready' THEN dead_by END
     WHERE node_id = $1 AND state = $3",
);
pub const NODE_ACCEPTANCE_PUT: Sql =
    sql("node_acceptance_put", "UPDATE nodes SET acceptance_command_id = $2 WHERE node_id = $1");

pub const COMMAND_INSERT: Sql = sql(
    "command_insert",
    "INSERT INTO commands (command_id, node_id, kind, lane, destructive, body, signature, not_before, not_after,
       timeout_at, min_generation, created_by)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);
/// At most $2 are counted.
pub const COMMANDS_PENDING_COUNT: Sql = sql(
    "commands_pending_count",
    "SELECT count(*) AS waiting FROM (
       SELECT 1 FROM commands WHERE node_id = $1 AND state = 'pending' LIMIT $2) w",
);
pub const COMMANDS_EXPIRE: Sql = sql(
    "commands_expire",
    "UPDATE commands SET state = 'expired', reason = 'expired', settled_at = compute_now(),
       message = 'its time was over before it could be sent'
     WHERE command_id IN (
       SELECT command_id FROM commands WHERE state = 'pending' AND not_after < compute_now()
       ORDER BY not_after LIMIT 500 FOR UPDATE SKIP LOCKED)
     RETURNING command_id, node_id",
);
pub const COMMANDS_TIME_OUT: Sql = sql(
    "commands_time_out",
    "UPDATE commands SET state = 'failed', reason = 'timeout', settled_at = compute_now(),
       message = 'no result came within its time'
     WHERE command_id IN (
       SELECT command_id FROM commands WHERE state IN ('dispatched', 'acked', 'running') AND timeout_at < compute_now()
       ORDER BY timeout_at LIMIT 500 FOR UPDATE SKIP LOCKED)
     RETURNING command_id, node_id",
);
pub const COMMANDS_SETTLED: Sql = sql(
    "commands_settled",
    "SELECT c.command_id, c.kind, c.state, c.result, sha256(coalesce(c.result, '')) AS result_sha256, c.result_signature,
       c.result_state, c.reason, c.message,
       (SELECT k.spki_der FROM node_certs k WHERE k.spki_sha256 = c.result_key_sha256 AND k.node_id = c.node_id
          AND k.revoked_at IS NULL ORDER BY k.issued_at DESC LIMIT 1) AS result_spki
     FROM commands c WHERE c.node_id = $1 AND c.settled_at IS NOT NULL AND c.handled_at IS NULL
     ORDER BY c.settled_at, c.command_id LIMIT $2 FOR UPDATE OF c",
);
pub const COMMAND_HANDLED: Sql =
    sql("command_handled", "UPDATE commands SET handled_at = compute_now() WHERE command_id = $1");
pub const COMMAND_CANCEL: Sql = sql(
    "command_cancel",
    "UPDATE commands SET cancel_requested_at = coalesce(cancel_requested_at, compute_now()), cancel_reason = $2,
       state = CASE WHEN state = 'pending' THEN 'cancelled' ELSE state END,
       settled_at = CASE WHEN state = 'pending' THEN compute_now() ELSE settled_at END,
       reason = CASE WHEN state = 'pending' THEN 'cancelled' ELSE reason END
     WHERE command_id = $1 AND state IN ('pending', 'dispatched', 'acked', 'running')
     RETURNING state, node_id",
);

pub const NODE_EVENTS_OPEN: Sql = sql(
    "node_events_open",
    "SELECT journal_id, seq, class, report, signature, key_sha256, observed_at
     FROM node_events WHERE node_id = $1 AND handled_at IS NULL
     ORDER BY received_at, journal_id, seq LIMIT $2 FOR UPDATE",
);
pub const NODE_EVENT_HANDLED: Sql = sql(
    "node_event_handled",
    "UPDATE node_events SET handled_at = compute_now() WHERE node_id = $1 AND journal_id = $2 AND seq = $3",
);
/// Marks up to $2 open events of each of these nodes as handled, and gives them, in no order. With the key that
/// signed each, when it is one of its node's own. That they are open is said a second time in words that no index knows: they
/// are found by their key, and not among all that are open.
pub const NODES_EVENTS_TAKE: Sql = sql(
    "nodes_events_take",
    "WITH open AS MATERIALIZED (
       SELECT o.node_id, o.journal_id, o.seq FROM unnest($1::uuid[]) AS w (node_id)
       CROSS JOIN LATERAL (
         SELECT x.node_id, x.journal_id, x.seq FROM node_events x WHERE x.node_id = w.node_id AND x.handled_at IS NULL
         ORDER BY x.received_at, x.journal_id, x.seq LIMIT $2) o
     )
     UPDATE node_events e SET handled_at = compute_now() FROM open o
     WHERE e.node_id = o.node_id AND e.journal_id = o.journal_id AND e.seq = o.seq AND (e.handled_at IS NULL) IS TRUE
     RETURNING e.node_id, e.journal_id, e.seq, e.class, e.report, e.signature, e.key_sha256, e.observed_at, e.received_at,
       (SELECT k.spki_der FROM node_certs k WHERE k.node_id = e.node_id AND k.spki_sha256 = e.key_sha256
          AND k.revoked_at IS NULL ORDER BY k.issued_at DESC LIMIT 1) AS spki_der",
);
pub const NODE_KEY: Sql = sql(
    "node_key",
    "SELECT spki_der FROM node_certs WHERE node_id = $1 AND spki_sha256 = $2 AND revoked_at IS NULL
     ORDER BY issued_at DESC LIMIT 1",
);

// Liveness looks at each node's session once per look. There is no index on the heartbeats' time: it would have to be kept with
// every heartbeat of every node, which costs more than reading one small row per node. $1 asks about one node.

/// Nodes that an event is due for, up to 500 of each; of one node when `$1` says which. Sessions whose gateway has none any more
/// are a row without a node.
///
/// Lost is measured from when the node was found unreachable, not from its last heartbeat: while no gateway or no database
/// could have heard it, its silence says nothing.
pub const NODES_DUE: Sql = sql(
    "nodes_due",
    "(SELECT 'heartbeats-missed' AS event, n.node_id FROM nodes n LEFT JOIN node_sessions s USING (node_id)
      WHERE ($1::uuid IS NULL OR n.node_id = $1) AND n.state = 'ready' AND (s.node_id IS NULL
         OR (s.closed_at IS NOT NULL AND s.last_heartbeat_at <= compute_now() - $2::float8 * interval '1 second')
         OR s.last_heartbeat_at <= compute_now() - $3::float8 * interval '1 second')
      ORDER BY n.node_id LIMIT 500)
     UNION ALL
     (SELECT 'heartbeats-back', n.node_id FROM nodes n JOIN node_sessions s USING (node_id)
      WHERE ($1::uuid IS NULL OR n.node_id = $1) AND n.state IN ('unreachable', 'lost') AND s.closed_at IS NULL
        AND s.heartbeats_good >= $4 AND s.last_heartbeat_at > compute_now() - $3::float8 * interval '1 second'
      ORDER BY n.node_id LIMIT 500)
     UNION ALL
     (SELECT 'given-up', n.node_id FROM nodes n JOIN pools p USING (pool_id)
      WHERE ($1::uuid IS NULL OR n.node_id = $1) AND n.state = 'unreachable'
        AND n.unreachable_since <= compute_now() - CASE jsonb_typeof(p.policy->'lostAfterMinutes')
              WHEN 'number' THEN (p.policy->>'lostAfterMinutes')::float8 * interval '1 minute' END
      ORDER BY n.node_id LIMIT 500)
     UNION ALL
     SELECT NULL, NULL WHERE $1::uuid IS NULL AND (
       EXISTS (SELECT 1 FROM gateways g JOIN node_sessions s USING (gateway_id)
               WHERE g.expires_at <= compute_now() AND s.closed_at IS NULL)
       OR EXISTS (SELECT 1 FROM gateways g JOIN node_sessions s USING (gateway_id)
                  WHERE s.gateway_epoch < g.epoch AND s.closed_at IS NULL))",
);
pub const SESSIONS_OF_ENDED_GATEWAYS: Sql = sql(
    "sessions_of_ended_gateways",
    "UPDATE node_sessions SET closed_at = compute_now() WHERE node_id IN (
       SELECT s.node_id FROM gateways g JOIN node_sessions s USING (gateway_id)
       WHERE g.expires_at <= compute_now() AND s.closed_at IS NULL
       ORDER BY s.node_id LIMIT 500 FOR UPDATE OF s SKIP LOCKED)",
);
/// A gateway that registered anew has none of the sessions it had before.
pub const SESSIONS_OF_EARLIER_EPOCHS: Sql = sql(
    "sessions_of_earlier_epochs",
    "UPDATE node_sessions SET closed_at = compute_now() WHERE node_id IN (
       SELECT s.node_id FROM gateways g JOIN node_sessions s USING (gateway_id)
       WHERE s.gateway_epoch < g.epoch AND s.closed_at IS NULL
       ORDER BY s.node_id LIMIT 500 FOR UPDATE OF s SKIP LOCKED)",
);
pub const NODE_SESSION_GOOD_RESET: Sql =
    sql("node_session_good_reset", "UPDATE node_sessions SET heartbeats_good = 0 WHERE node_id = $1");

// Claims to be ahead of this database, and the quarantine of who cannot prove one.

pub const CLAIM: Sql = sql(
    "claim",
    "SELECT c.generation, c.epoch, c.body, c.signature, c.judged_at, n.generation AS stored_generation,
       d.epoch AS stored_epoch
     FROM restore_claims c JOIN nodes n USING (node_id) CROSS JOIN deployment d
     WHERE c.node_id = $1 FOR UPDATE OF c",
);
/// With what the spec itself says, which is what was proved. It stands until the node's spec has gone above it.
pub const CLAIM_PROVED: Sql = sql(
    "claim_proved",
    "UPDATE restore_claims SET judged_at = compute_now(), proved = true, generation = $2, epoch = $3, body = '', signature = ''
     WHERE node_id = $1",
);
/// A claim up to this generation is answered.
pub const CLAIM_FORGET: Sql =
    sql("claim_forget", "DELETE FROM restore_claims WHERE node_id = $1 AND generation <= $2");
/// The same for the nodes of one transaction.
pub const CLAIMS_FORGET: Sql = sql(
    "claims_forget",
    "DELETE FROM restore_claims c USING unnest($1::uuid[], $2::bigint[]) AS w (node_id, generation)
     WHERE c.node_id = w.node_id AND c.generation <= w.generation",
);
pub const NODE_QUARANTINE: Sql = sql(
    "node_quarantine",
    "UPDATE nodes SET quarantined_at = compute_now(), quarantine_reason = $2
     WHERE node_id = $1 AND quarantined_at IS NULL AND state NOT IN ('revoked', 'removed')",
);
pub const QUARANTINE_END: Sql = sql(
    "quarantine_end",
    "UPDATE nodes SET quarantined_at = NULL, quarantine_reason = NULL
     WHERE node_id = $1 AND quarantined_at IS NOT NULL",
);
/// A session that began since was opened for a Hello that is not ahead.
pub const QUARANTINE_OUTLIVED: Sql = sql(
    "quarantine_outlived",
    "UPDATE nodes n SET quarantined_at = NULL, quarantine_reason = NULL
     WHERE n.node_id = $1 AND n.quarantined_at IS NOT NULL AND EXISTS (
       SELECT 1 FROM node_sessions s WHERE s.node_id = n.node_id AND s.connected_at > n.quarantined_at)",
);

// What is forgotten, and when.

pub const INBOX_FORGET: Sql = sql(
    "inbox_forget",
    "DELETE FROM join_inbox WHERE inbox_id IN (
       SELECT inbox_id FROM join_inbox WHERE created_at < compute_now() - interval '1 hour'
       ORDER BY inbox_id LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
pub const NODE_EVENTS_FORGET: Sql = sql(
    "node_events_forget",
    "DELETE FROM node_events WHERE (node_id, journal_id, seq) IN (
       SELECT node_id, journal_id, seq FROM node_events WHERE handled_at < compute_now() - interval '7 days'
       ORDER BY handled_at LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
pub const COMMANDS_FORGET: Sql = sql(
    "commands_forget",
    "DELETE FROM commands WHERE command_id IN (
       SELECT command_id FROM commands WHERE handled_at IS NOT NULL AND settled_at < compute_now() - interval '90 days'
       ORDER BY settled_at LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
/// A month after its end no node says anything under a certificate's key any longer.
pub const CERTS_FORGET: Sql = sql(
    "certs_forget",
    "DELETE FROM node_certs WHERE serial IN (
       SELECT serial FROM node_certs WHERE not_after < compute_now() - interval '30 days'
       ORDER BY not_after LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
pub const JOIN_REQUESTS_FORGET: Sql = sql(
    "join_requests_forget",
    "DELETE FROM join_requests WHERE join_request_id IN (
       SELECT join_request_id FROM join_requests WHERE expires_at < compute_now() - interval '30 days'
       ORDER BY join_request_id LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
pub const GATEWAYS_FORGET: Sql = sql(
    "gateways_forget",
    "DELETE FROM gateways g WHERE g.expires_at < compute_now() - interval '7 days'
       AND NOT EXISTS (SELECT 1 FROM node_sessions s WHERE s.gateway_id = g.gateway_id AND s.closed_at IS NULL)",
);

// Joining.

pub const INBOX_LOCK: Sql = sql(
    "inbox_lock",
    "SELECT kind, request, source_ip, peer_serial FROM join_inbox
     WHERE inbox_id = $1 AND answered_at IS NULL FOR UPDATE",
);
pub const INBOX_ANSWER: Sql = sql(
    "inbox_answer",
    "UPDATE join_inbox SET reply = $2, refusal = $3, answered_at = compute_now() WHERE inbox_id = $1",
);
pub const CERT_OF_CSR: Sql = sql(
    "cert_of_csr",
    "SELECT node_id, reply, revoked_at, not_after < compute_now() AS expired FROM node_certs WHERE csr_sha256 = $1",
);
pub const CERT_NODE: Sql = sql("cert_node", "SELECT node_id FROM node_certs WHERE serial = $1");
/// Whether a key was certified before, under whatever request.
pub const CERT_OF_KEY: Sql =
    sql("cert_of_key", "SELECT 1 AS known FROM node_certs WHERE spki_sha256 = $1 LIMIT 1");
/// At most $2 are counted.
pub const CERTS_CURRENT: Sql = sql(
    "certs_current",
    "SELECT count(*) AS current FROM (
       SELECT 1 FROM node_certs WHERE node_id = $1 AND not_after >= compute_now() LIMIT $2) c",
);
pub const JOIN_TOKEN_LOCK: Sql = sql(
    "join_token_lock",
    "SELECT t.site_id, t.pool_id, t.role, t.secret_sha256, t.uses_max, t.uses, t.deferred, t.expires_at < compute_now() AS expired,
       coalesce(t.revoked_at, (SELECT p.deleted_at FROM pools p WHERE p.pool_id = t.pool_id)) AS revoked_at
     FROM join_tokens t WHERE t.join_token_id = $1 FOR NO KEY UPDATE",
);
pub const JOIN_TOKEN_USE: Sql = sql(
    "join_token_use",
    "UPDATE join_tokens SET uses = uses + 1 WHERE join_token_id = $1 AND uses < uses_max",
);
pub const JOIN_REQUEST_OF_CSR: Sql = sql(
    "join_request_of_csr",
    "SELECT join_request_id, join_token_id, state FROM join_requests WHERE csr_sha256 = $1 FOR UPDATE",
);
/// At most $2 are counted.
pub const JOIN_REQUESTS_WAITING: Sql = sql(
    "join_requests_waiting",
    "SELECT count(*) AS waiting FROM (
       SELECT 1 FROM join_requests WHERE join_token_id = $1 AND state = 'pending' AND expires_at > compute_now()
       LIMIT $2) w",
);
pub const JOIN_REQUEST_INSERT: Sql = sql(
    "join_request_insert",
    "INSERT INTO join_requests (join_request_id, csr_sha256, join_token_id, role, hostname, agent_version, source_ip,
       state, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, 'pending', compute_now() + interval '7 days')",
);
pub const JOIN_REQUEST_SEEN: Sql = sql(
    "join_request_seen",
    "UPDATE join_requests SET last_seen_at = compute_now(), expires_at = compute_now() + interval '7 days'
     WHERE join_request_id = $1",
);
pub const JOIN_REQUEST_ISSUED: Sql = sql(
    "join_request_issued",
    "UPDATE join_requests SET state = 'issued', node_id = $2 WHERE csr_sha256 = $1",
);
/// The name itself, or with the least number from 2 on that makes it one that no node has.
pub const NODE_NAME_FREE: Sql = sql(
    "node_name_free",
    "WITH RECURSIVE tried AS (
       SELECT 1 AS n, $1::text AS name
       UNION ALL
       SELECT t.n + 1, $1 || '-' || (t.n + 1) FROM tried t WHERE EXISTS (SELECT 1 FROM nodes n WHERE n.name = t.name)
     )
     SELECT name FROM tried ORDER BY n DESC LIMIT 1",
);
/// Two machines with one hostname join one after the other, so that each sees the other's name.
pub const NODE_NAME_LOCK: Sql =
    sql("node_name_lock", "SELECT pg_advisory_xact_lock(hashtext('node-name:' || $1))");
pub const NODE_INSERT: Sql = sql(
    "node_insert",
    "INSERT INTO nodes (node_id, site_id, role, name, hostname, state, hardware_key)
     VALUES ($1, $2, $3, $4, $5, 'joined', $6)",
);
pub const CERT_INSERT: Sql = sql(
    "cert_insert",
    "INSERT INTO node_certs (serial, node_id, spki_der, spki_sha256, not_before, not_after, csr_sha256, reply)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
);
pub const CERT_BY_SERIAL: Sql = sql(
    "cert_by_serial",
    "SELECT c.serial, c.node_id, n.site_id, n.role, n.state, c.spki_der, c.not_before, c.not_after, c.revoked_at
     FROM node_certs c JOIN nodes n USING (node_id) WHERE c.serial = $1",
);
pub const TRUST_BUNDLE: Sql =
    sql("trust_bundle", "SELECT version, message FROM trust_bundles ORDER BY version DESC LIMIT 1");
pub const TRUST_BUNDLE_INSERT: Sql = sql(
    "trust_bundle_insert",
    "INSERT INTO trust_bundles (version, message) VALUES ($1, $2) ON CONFLICT (version) DO NOTHING",
);
/// What an adopted node's acceptance waits for, and whether that is over.
pub const NODE_ACCEPTANCE: Sql = sql(
    "node_acceptance",
    "SELECT n.state, n.pool_id, c.handled_at IS NOT NULL OR c.command_id IS NULL AS over
     FROM nodes n LEFT JOIN commands c ON c.command_id = n.acceptance_command_id
     WHERE n.node_id = $1 FOR NO KEY UPDATE OF n",
);
pub const NODE_ADOPT: Sql = sql(
    "node_adopt",
    "UPDATE nodes SET state = 'accepting', pool_id = $2, adopted_at = compute_now()
     WHERE node_id = $1 AND state = 'joined'",
);
pub const POOL_CLASS: Sql =
    sql("pool_class", "SELECT class FROM pools WHERE pool_id = $1 AND deleted_at IS NULL");

/// For the test that prepares every statement.
pub const STATEMENTS: &[Sql] = &[
    DEPLOYMENT,
    DEPLOYMENT_LOCK,
    DEPLOYMENT_ID_PUT,
    NODE_LOCK,
    NODE_SPECS_LOCK,
    NODE_TENANT,
    NODE_SPECS_PUT,
    SPEC_SIGNATURES,
    SPECS_BEFORE_RESTORE,
    NODE_STATE_PUT,
    NODE_ACCEPTANCE_PUT,
    COMMAND_INSERT,
    COMMANDS_PENDING_COUNT,
    COMMANDS_EXPIRE,
    COMMANDS_TIME_OUT,
    COMMANDS_SETTLED,
    COMMAND_HANDLED,
    COMMAND_CANCEL,
    NODE_EVENTS_OPEN,
    NODE_EVENT_HANDLED,
    NODES_EVENTS_TAKE,
    NODE_KEY,
    NODE_FACTS,
    NODE_INVENTORY,
    FACTS_NEWS,
    NODES_LOOK,
    FACTS_TOLD,
    NODES_DUE,
    SESSIONS_OF_ENDED_GATEWAYS,
    SESSIONS_OF_EARLIER_EPOCHS,
    NODE_SESSION_GOOD_RESET,
    CLAIM,
    CLAIM_PROVED,
    CLAIM_FORGET,
    CLAIMS_FORGET,
    NODE_QUARANTINE,
    QUARANTINE_END,
    QUARANTINE_OUTLIVED,
    INBOX_FORGET,
    NODE_EVENTS_FORGET,
    COMMANDS_FORGET,
    CERTS_FORGET,
    JOIN_REQUESTS_FORGET,
    GATEWAYS_FORGET,
    INBOX_LOCK,
    INBOX_ANSWER,
    CERT_OF_CSR,
    CERT_NODE,
    CERT_OF_KEY,
    CERTS_CURRENT,
    JOIN_TOKEN_LOCK,
    JOIN_TOKEN_USE,
    JOIN_REQUEST_OF_CSR,
    JOIN_REQUESTS_WAITING,
    JOIN_REQUEST_INSERT,
    JOIN_REQUEST_SEEN,
    JOIN_REQUEST_ISSUED,
    NODE_NAME_FREE,
    NODE_NAME_LOCK,
    NODE_INSERT,
    CERT_INSERT,
    CERT_BY_SERIAL,
    TRUST_BUNDLE,
    TRUST_BUNDLE_INSERT,
    NODE_ACCEPTANCE,
    NODE_ADOPT,
    POOL_CLASS,
];
