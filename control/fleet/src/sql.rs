//! Every statement of the worker's half of the fleet. What a gateway runs is in `delivery/sql.rs`.
//!
//! Durable: a spec and its signature are written with their generation in one statement, so that no generation is ever without
//! its signature. A command's body is written once. `observed_generation` and `nodes.generation` only go up.

use store::{Sql, sql};

pub const DEPLOYMENT: Sql = sql("fleet_deployment", "SELECT deployment_id, epoch FROM deployment");
pub const DEPLOYMENT_LOCK: Sql =
    sql("fleet_deployment_lock", "SELECT deployment_id, epoch FROM deployment FOR NO KEY UPDATE");
pub const DEPLOYMENT_ID_PUT: Sql =
    sql("fleet_deployment_id_put", "UPDATE deployment SET deployment_id = $1 WHERE deployment_id <> $1");

pub const NODE_LOCK: Sql = sql(
    "node_lock",
    "SELECT node_id, name, state, pool_id, generation, spec_hash, role, acceptance_command_id
     FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE",
);
pub const NODE_TENANT: Sql = sql(
    "node_tenant",
    "SELECT p.tenant_id FROM nodes n LEFT JOIN pools p USING (pool_id) WHERE n.node_id = $1",
);
pub const NODE_SPEC_PUT: Sql = sql(
    "node_spec_put",
    "UPDATE nodes SET generation = $2, spec_hash = $3, spec_body = $4, spec_signature = $5, spec_at = compute_now()
     WHERE node_id = $1 AND generation < $2",
);
pub const NODE_STATE_PUT: Sql =
    sql("node_state_put", "UPDATE nodes SET state = $2 WHERE node_id = $1 AND state = $3");
pub const NODE_ACCEPTANCE_PUT: Sql =
    sql("node_acceptance_put", "UPDATE nodes SET acceptance_command_id = $2 WHERE node_id = $1");

pub const COMMAND_INSERT: Sql = sql(
    "command_insert",
    "INSERT INTO commands (command_id, node_id, kind, lane, destructive, body, signature, not_before, not_after,
       timeout_at, min_generation, created_by)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
);
pub const COMMANDS_EXPIRE: Sql = sql(
    "commands_expire",
    "UPDATE commands SET state = 'expired', reason = 'expired', settled_at = compute_now(),
       message = 'its time was over before it could be sent'
     WHERE command_id IN (
       SELECT command_id FROM commands WHERE state = 'pending' AND not_after < compute_now()
       ORDER BY command_id LIMIT 500 FOR UPDATE SKIP LOCKED)
     RETURNING command_id, node_id",
);
pub const COMMANDS_TIME_OUT: Sql = sql(
    "commands_time_out",
    "UPDATE commands SET state = 'failed', reason = 'timeout', settled_at = compute_now(),
       message = 'no result came within its time'
     WHERE command_id IN (
       SELECT command_id FROM commands WHERE state IN ('dispatched', 'acked', 'running') AND timeout_at < compute_now()
       ORDER BY command_id LIMIT 500 FOR UPDATE SKIP LOCKED)
     RETURNING command_id, node_id",
);
pub const COMMANDS_SETTLED: Sql = sql(
    "commands_settled",
    "SELECT command_id, kind, state, result, result_signature, result_key_sha256, result_state, reason, message, body
     FROM commands WHERE node_id = $1 AND settled_at IS NOT NULL AND handled_at IS NULL
     ORDER BY settled_at, command_id LIMIT 64 FOR UPDATE",
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
     ORDER BY received_at, journal_id, seq LIMIT 64 FOR UPDATE",
);
pub const NODE_EVENT_HANDLED: Sql = sql(
    "node_event_handled",
    "UPDATE node_events SET handled_at = compute_now() WHERE node_id = $1 AND journal_id = $2 AND seq = $3",
);
pub const NODE_KEY: Sql = sql(
    "node_key",
    "SELECT spki_der FROM node_certs WHERE node_id = $1 AND spki_sha256 = $2 AND revoked_at IS NULL
     ORDER BY issued_at DESC LIMIT 1",
);

pub const NODE_FACTS: Sql = sql(
    "node_facts",
    "SELECT n.node_id, n.state, n.pool_id, p.tenant_id, coalesce(s.conditions, '[]') AS conditions
     FROM nodes n LEFT JOIN pools p USING (pool_id) LEFT JOIN node_status s USING (node_id)
     WHERE n.node_id = $1",
);
pub const NODE_INVENTORY: Sql =
    sql("node_inventory", "SELECT section, content FROM node_inventory WHERE node_id = $1 ORDER BY section");

pub const NODES_SILENT: Sql = sql(
    "nodes_silent",
    "SELECT n.node_id FROM nodes n LEFT JOIN node_sessions s USING (node_id)
     WHERE n.state = 'ready' AND (s.node_id IS NULL
        OR (s.closed_at IS NOT NULL AND s.last_heartbeat_at < compute_now() - $1::float8 * interval '1 second')
        OR s.last_heartbeat_at < compute_now() - $2::float8 * interval '1 second')
     ORDER BY n.node_id LIMIT 500",
);
pub const NODES_BACK: Sql = sql(
    "nodes_back",
    "SELECT n.node_id FROM nodes n JOIN node_sessions s USING (node_id)
     WHERE n.state IN ('unreachable', 'lost') AND s.closed_at IS NULL AND s.heartbeats_good >= $1
       AND s.last_heartbeat_at >= compute_now() - $2::float8 * interval '1 second'
     ORDER BY n.node_id LIMIT 500",
);
pub const NODES_LOST: Sql = sql(
    "nodes_lost",
    "SELECT n.node_id FROM nodes n JOIN pools p USING (pool_id) LEFT JOIN node_sessions s USING (node_id)
     WHERE n.state = 'unreachable' AND p.policy ? 'lostAfterMinutes'
       AND coalesce(s.last_heartbeat_at, n.created_at)
           < compute_now() - (p.policy->>'lostAfterMinutes')::float8 * interval '1 minute'
     ORDER BY n.node_id LIMIT 500",
);
pub const NODE_SESSION_GOOD_RESET: Sql =
    sql("node_session_good_reset", "UPDATE node_sessions SET heartbeats_good = 0 WHERE node_id = $1");

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
pub const INBOX_FORGET: Sql = sql(
    "inbox_forget",
    "DELETE FROM join_inbox WHERE inbox_id IN (
       SELECT inbox_id FROM join_inbox WHERE created_at < compute_now() - interval '1 hour'
       ORDER BY inbox_id LIMIT 1000 FOR UPDATE SKIP LOCKED)",
);
pub const CERT_OF_CSR: Sql = sql(
    "cert_of_csr",
    "SELECT reply, revoked_at, not_after < compute_now() AS expired FROM node_certs WHERE csr_sha256 = $1",
);
pub const JOIN_TOKEN_LOCK: Sql = sql(
    "join_token_lock",
    "SELECT t.site_id, t.pool_id, t.role, t.secret_sha256, t.uses_max, t.uses, t.deferred, t.revoked_at,
       t.expires_at < compute_now() AS expired
     FROM join_tokens t WHERE t.join_token_id = $1 FOR NO KEY UPDATE",
);
pub const JOIN_TOKEN_USE: Sql = sql(
    "join_token_use",
    "UPDATE join_tokens SET uses = uses + 1 WHERE join_token_id = $1 AND uses < uses_max",
);
pub const JOIN_REQUEST_OF_CSR: Sql = sql(
    "join_request_of_csr",
    "SELECT join_request_id, state, expires_at < compute_now() AS expired FROM join_requests
     WHERE csr_sha256 = $1 FOR UPDATE",
);
pub const JOIN_REQUEST_INSERT: Sql = sql(
    "join_request_insert",
    "INSERT INTO join_requests (join_request_id, csr_sha256, join_token_id, role, hostname, agent_version, source_ip,
       state, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, 'pending', compute_now() + interval '7 days')",
);
pub const JOIN_REQUEST_SEEN: Sql = sql(
    "join_request_seen",
    "UPDATE join_requests SET last_seen_at = compute_now() WHERE join_request_id = $1",
);
pub const JOIN_REQUEST_ISSUED: Sql = sql(
    "join_request_issued",
    "UPDATE join_requests SET state = 'issued', node_id = $2 WHERE csr_sha256 = $1",
);
pub const NODE_NAMES_LIKE: Sql =
    sql("node_names_like", "SELECT name FROM nodes WHERE name = $1 OR name LIKE $1 || '-%' ORDER BY name");
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
pub const NODE_ADOPT: Sql = sql(
    "node_adopt",
    "UPDATE nodes SET state = 'accepting', pool_id = $2, adopted_at = compute_now()
     WHERE node_id = $1 AND state = 'joined'",
);
pub const POOL_CLASS: Sql = sql("pool_class", "SELECT class FROM pools WHERE pool_id = $1");
