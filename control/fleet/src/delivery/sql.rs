//! Every statement a gateway runs.
//!
//! Durable: a session's takeover, with the fate of what was in flight on the one before; a result exactly as received, before it is
//! acknowledged; an event before it is acknowledged. Guards: `gateways` holds the lease, `node_sessions` the session, and a write
//! that either no longer allows touches no row.
//!
//! Statements about named sessions compare their gateway with `IS NOT DISTINCT FROM`, which no index serves: they are found by their
//! node. By its gateway a session is one of thousands, and the planner would look through all of them for each one that is named.

use store::{Sql, sql};

pub const GATEWAY_REGISTER: Sql = sql(
    "gateway_register",
    "INSERT INTO gateways (gateway_id, epoch, address, expires_at)
     VALUES ($1, nextval('gateway_epoch'), $2, compute_now() + $3::float8 * interval '1 second')
     ON CONFLICT (gateway_id) DO UPDATE SET epoch = excluded.epoch, address = excluded.address,
       started_at = compute_now(), expires_at = excluded.expires_at, drained_at = NULL
     RETURNING epoch, compute_now() AS server_time",
);
pub const GATEWAY_RENEW: Sql = sql(
    "gateway_renew",
    "UPDATE gateways SET expires_at = compute_now() + $3::float8 * interval '1 second'
     WHERE gateway_id = $1 AND epoch = $2 AND expires_at > compute_now()
     RETURNING compute_now() AS server_time",
);
pub const GATEWAY_END: Sql = sql(
    "gateway_end",
    "UPDATE gateways SET expires_at = compute_now(), drained_at = compute_now() WHERE gateway_id = $1 AND epoch = $2",
);
pub const GATEWAY_SESSIONS_CLOSE: Sql = sql(
    "gateway_sessions_close",
    "UPDATE node_sessions SET closed_at = compute_now()
     WHERE gateway_id = $1 AND gateway_epoch = $2 AND closed_at IS NULL",
);
pub const GATEWAY_GUARD: Sql = sql(
    "gateway_guard",
    "SELECT 1 AS held FROM gateways WHERE gateway_id = $1 AND epoch = $2 AND expires_at > compute_now()",
);

pub const HELLO_NODES: Sql = sql(
    "hello_nodes",
    "SELECT n.node_id, n.state, n.generation, n.spec_body IS NOT NULL AS has_spec, n.quarantined_at, d.epoch AS deployment_epoch,
       d.observe_only, c.revoked_at AS cert_revoked_at, c.serial IS NULL AS cert_unknown
     FROM unnest($1::uuid[], $2::text[]) AS k (node_id, cert_serial)
     JOIN nodes n USING (node_id) CROSS JOIN deployment d
     LEFT JOIN node_certs c ON c.node_id = k.node_id AND c.serial = k.cert_serial
     ORDER BY n.node_id",
);
/// Waits for whoever writes under the sessions before these ones, then takes them. In order, so that two gateways that open the same
/// nodes wait for each other and not in a circle.
pub const SESSIONS_LOCK: Sql = sql(
    "sessions_lock",
    "SELECT node_id, journal_id, boot_id, acked_event_seq FROM node_sessions WHERE node_id = ANY($1)
     ORDER BY node_id FOR UPDATE",
);
/// Nodes' first sessions. Another gateway may be just as first.
pub const SESSIONS_INSERT: Sql = sql(
    "sessions_insert",
    "INSERT INTO node_sessions (node_id, gateway_id, gateway_epoch, session_epoch, cert_serial, journal_id,
       incarnation_id, boot_id, acked_event_seq)
     SELECT k.node_id, $1, $2, nextval('session_epoch'), k.cert_serial, k.journal_id, k.incarnation_id, k.boot_id, k.acked
     FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::uuid[], $7::text[], $8::bigint[])
       AS k (node_id, cert_serial, journal_id, incarnation_id, boot_id, acked)
     ON CONFLICT (node_id) DO NOTHING RETURNING node_id, session_epoch",
);
/// Epochs are drawn in the order of the parameters, whatever order the rows are found in.
pub const SESSIONS_TAKE: Sql = sql(
    "sessions_take",
    "WITH k AS MATERIALIZED (
       SELECT k.*, nextval('session_epoch') AS session_epoch
       FROM unnest($3::uuid[], $4::text[], $5::uuid[], $6::uuid[], $7::text[], $8::bigint[])
         AS k (node_id, cert_serial, journal_id, incarnation_id, boot_id, acked)
     )
     UPDATE node_sessions s SET gateway_id = $1, gateway_epoch = $2, session_epoch = k.session_epoch,
       cert_serial = k.cert_serial, journal_id = k.journal_id, incarnation_id = k.incarnation_id, boot_id = k.boot_id,
       acked_event_seq = k.acked, connected_at = compute_now(), closed_at = NULL, last_heartbeat_at = compute_now()
     FROM k WHERE s.node_id = k.node_id RETURNING s.node_id, s.session_epoch",
);
pub const SESSION_CLOSE: Sql = sql(
    "session_close",
    "UPDATE node_sessions SET closed_at = compute_now()
     WHERE node_id = $1 AND session_epoch = $2 AND gateway_id = $3 AND gateway_epoch = $4 AND closed_at IS NULL",
);
pub const SESSIONS_CLOSE: Sql = sql(
    "sessions_close",
    "UPDATE node_sessions s SET closed_at = compute_now()
     FROM unnest($1::uuid[], $2::bigint[]) AS k (node_id, session_epoch)
     WHERE s.node_id = k.node_id AND s.session_epoch = k.session_epoch AND (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($3::uuid, $4::bigint)
       AND s.closed_at IS NULL",
);
pub const EVENTS_SEQ_MAX: Sql = sql(
    "events_seq_max",
    "SELECT k.node_id, (SELECT max(e.seq) FROM node_events e WHERE e.node_id = k.node_id AND e.journal_id = k.journal_id) AS seq
     FROM unnest($1::uuid[], $2::uuid[]) AS k (node_id, journal_id)
     ORDER BY k.node_id",
);
/// A node stands at no spec that does not exist, as in `STATUSES_PUT`.
pub const STATUSES_HELLO: Sql = sql(
    "statuses_hello",
    "INSERT INTO node_status AS st (node_id, session_epoch, agent_version, protocol, capabilities, trust_version,
       applied_generation, observed_generation, applied_spec_hash)
     SELECT n.node_id, k.session_epoch, k.agent_version, k.protocol, ARRAY(SELECT jsonb_array_elements_text(k.capabilities)),
       k.trust_version, least(k.applied, n.generation), least(k.observed, n.generation), k.spec_hash
     FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::int[], $5::jsonb[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[])
       AS k (node_id, session_epoch, agent_version, protocol, capabilities, trust_version, applied, observed, spec_hash)
     JOIN nodes n USING (node_id)
     ORDER BY n.node_id
     ON CONFLICT (node_id) DO UPDATE SET session_epoch = excluded.session_epoch,
       agent_version = excluded.agent_version, protocol = excluded.protocol, capabilities = excluded.capabilities,
       trust_version = excluded.trust_version, applied_generation = excluded.applied_generation,
       observed_generation = greatest(st.observed_generation, excluded.observed_generation),
       applied_spec_hash = excluded.applied_spec_hash, reported_at = compute_now()",
);
pub const INVENTORY_HASHES: Sql = sql(
    "inventory_hashes",
    "SELECT node_id, section, hash FROM node_inventory WHERE node_id = ANY($1) ORDER BY node_id, section",
);
/// The time comes with it: it is the last thing that is read before a session is welcome.
pub const TRUST_BUNDLE_NEWEST: Sql = sql(
    "trust_bundle_newest",
    "SELECT compute_now() AS server_time, t.version, t.message
     FROM (SELECT 1) AS once LEFT JOIN (SELECT version, message FROM trust_bundles ORDER BY version DESC LIMIT 1) AS t ON true",
);
/// A node has some dozens at most: the bound is for all that are opened together.
pub const IN_FLIGHT: Sql = sql(
    "in_flight",
    "SELECT command_id, node_id, kind, lane, state, body, signature, attempts, cancel_requested_at, cancel_reason
     FROM commands WHERE node_id = ANY($1) AND state IN ('dispatched', 'acked', 'running')
     ORDER BY node_id, seq LIMIT 20000 FOR UPDATE",
);
pub const IN_FLIGHT_RESENT: Sql = sql(
    "in_flight_resent",
    "UPDATE commands c SET session_epoch = k.session_epoch, attempts = c.attempts + 1
     FROM unnest($1::uuid[], $2::bigint[]) AS k (command_id, session_epoch) WHERE c.command_id = k.command_id",
);
pub const COMMAND_SETTLE: Sql = sql(
    "command_settle",
    "UPDATE commands SET state = $2, reason = $3, message = $4, boot_id = $5, settled_at = compute_now()
     WHERE command_id = $1 AND settled_at IS NULL",
);
/// A claim that was judged stands until whoever settles it removes it: this role may not touch the judgement.
pub const RESTORE_CLAIM: Sql = sql(
    "restore_claim",
    "INSERT INTO restore_claims (node_id, generation, epoch, body, signature) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (node_id) DO UPDATE SET generation = excluded.generation, epoch = excluded.epoch,
       body = excluded.body, signature = excluded.signature, claimed_at = compute_now()
     WHERE restore_claims.judged_at IS NULL",
);

pub const HEARTBEATS: Sql = sql(
    "heartbeats",
    "UPDATE node_sessions s SET last_heartbeat_at = compute_now(), heartbeats_good = least(heartbeats_good + 1, 1000000)
     FROM unnest($1::uuid[], $2::bigint[]) AS k (node_id, session_epoch)
     WHERE s.node_id = k.node_id AND s.session_epoch = k.session_epoch AND s.closed_at IS NULL
       AND (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($3::uuid, $4::bigint)
       AND EXISTS (SELECT 1 FROM gateways g WHERE g.gateway_id = $3 AND g.epoch = $4 AND g.expires_at > compute_now())
     RETURNING s.node_id, s.session_epoch",
);
pub const SESSIONS_REVOKED: Sql = sql(
    "sessions_revoked",
    "SELECT s.node_id, s.session_epoch FROM node_sessions s JOIN nodes n USING (node_id)
     LEFT JOIN node_certs c ON c.serial = s.cert_serial
     WHERE s.gateway_id = $1 AND s.gateway_epoch = $2 AND s.closed_at IS NULL
       AND (n.state IN ('revoked', 'removed') OR c.revoked_at IS NOT NULL OR c.serial IS NULL)
     ORDER BY s.node_id",
);
/// It comes with every node that is poked: behind a SELECT the lists are as long as any to the planner, which plans once then.
pub const SESSIONS_REVOKED_OF: Sql = sql(
    "sessions_revoked_of",
    "SELECT s.node_id, s.session_epoch
     FROM unnest((SELECT $3::uuid[]), (SELECT $4::bigint[])) AS k (node_id, session_epoch)
     JOIN node_sessions s USING (node_id, session_epoch) JOIN nodes n USING (node_id)
     LEFT JOIN node_certs c ON c.serial = s.cert_serial
     WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($1::uuid, $2::bigint) AND s.closed_at IS NULL
       AND (n.state IN ('revoked', 'removed') OR c.revoked_at IS NOT NULL OR c.serial IS NULL)
     ORDER BY s.node_id",
);
pub const CERTIFICATES_COUNT: Sql = sql(
    "certificates_count",
    "SELECT c.serial FROM node_certs c JOIN nodes n USING (node_id)
     WHERE c.serial = ANY($1) AND c.revoked_at IS NULL AND n.state NOT IN ('revoked', 'removed')
     ORDER BY c.serial",
);

/// Whose turn it may be: cheap when nothing waits, which is almost always.
pub const COMMANDS_WAITING: Sql = sql(
    "commands_waiting",
    "SELECT DISTINCT c.node_id FROM commands c
     JOIN node_sessions s USING (node_id) JOIN nodes n USING (node_id) CROSS JOIN deployment d
     WHERE s.gateway_id = $1 AND s.gateway_epoch = $2 AND s.closed_at IS NULL
       AND c.state = 'pending' AND c.not_before <= compute_now() AND c.not_after > compute_now()
       AND n.state NOT IN ('revoked', 'removed') AND n.quarantined_at IS NULL AND NOT d.observe_only
     ORDER BY c.node_id",
);
/// The same of some nodes.
pub const COMMANDS_WAITING_OF: Sql = sql(
    "commands_waiting_of",
    "SELECT DISTINCT c.node_id FROM commands c
     JOIN node_sessions s USING (node_id) JOIN nodes n USING (node_id) CROSS JOIN deployment d
     WHERE c.node_id = ANY(ARRAY(SELECT unnest($3::uuid[]))) AND (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($1::uuid, $2::bigint) AND s.closed_at IS NULL
       AND c.state = 'pending' AND c.not_before <= compute_now() AND c.not_after > compute_now()
       AND n.state NOT IN ('revoked', 'removed') AND n.quarantined_at IS NULL AND NOT d.observe_only
     ORDER BY c.node_id",
);
/// As many of each lane as it has credits, so that a node with a long queue keeps nobody else's from being looked at. The session is
/// locked before its commands, as everywhere: against a takeover, not against heartbeats, which leave the key alone.
pub const COMMANDS_PENDING: Sql = sql(
    "commands_pending",
    "WITH k AS (
       SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::text[], $6::bigint[]) AS k (node_id, session_epoch, lane, credits)
     ), held AS (
       SELECT s.node_id, s.session_epoch FROM node_sessions s
       JOIN (SELECT DISTINCT node_id, session_epoch FROM k) AS mine USING (node_id, session_epoch)
       WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($1::uuid, $2::bigint) AND s.closed_at IS NULL
       ORDER BY s.node_id FOR KEY SHARE OF s SKIP LOCKED
     ), ranked AS (
       SELECT c.command_id, k.session_epoch, k.credits,
         row_number() OVER (PARTITION BY c.node_id, c.lane ORDER BY c.seq) AS place
       FROM held JOIN k USING (node_id, session_epoch) JOIN commands c ON c.node_id = k.node_id AND c.lane = k.lane
       WHERE c.state = 'pending' AND c.not_before <= compute_now() AND c.not_after > compute_now()
     )
     SELECT c.command_id, c.node_id, c.kind, c.lane, c.body, c.signature, c.attempts, c.cancel_requested_at,
       c.cancel_reason, ranked.session_epoch
     FROM ranked JOIN commands c USING (command_id)
     WHERE ranked.place <= ranked.credits AND c.state = 'pending'
     ORDER BY c.node_id, c.seq LIMIT 1000
     FOR UPDATE OF c SKIP LOCKED",
);
/// After a claim that may have been committed without our hearing of it: a node that does have such a command says where it stands.
pub const COMMANDS_UNSENT: Sql = sql(
    "commands_unsent",
    "UPDATE commands c SET state = 'pending' FROM node_sessions s
     WHERE s.gateway_id = $1 AND s.gateway_epoch = $2 AND s.closed_at IS NULL
       AND c.node_id = s.node_id AND c.session_epoch = s.session_epoch AND c.state = 'dispatched'",
);
pub const COMMANDS_SENT: Sql = sql(
    "commands_sent",
    "UPDATE commands c SET state = 'dispatched', session_epoch = k.session_epoch, attempts = c.attempts + 1,
       dispatched_at = compute_now()
     FROM unnest($1::uuid[], $2::bigint[]) AS k (command_id, session_epoch)
     WHERE c.command_id = k.command_id AND c.state = 'pending'",
);
pub const COMMANDS_CANCELLED: Sql = sql(
    "commands_to_cancel",
    "SELECT c.node_id, c.command_id, coalesce(c.cancel_reason, '') AS reason
     FROM commands c JOIN unnest($1::uuid[], $2::bigint[]) AS k (node_id, session_epoch)
       ON c.node_id = k.node_id AND c.session_epoch = k.session_epoch
     JOIN node_sessions s ON s.node_id = k.node_id AND s.session_epoch = k.session_epoch
     CROSS JOIN deployment d
     WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($3::uuid, $4::bigint) AND s.closed_at IS NULL AND NOT d.observe_only
       AND c.cancel_requested_at IS NOT NULL AND c.state IN ('dispatched', 'acked', 'running')
     ORDER BY c.node_id, c.seq LIMIT 1000",
);
/// The sessions of a batch that are still this gateway's, kept so until the transaction ends.
pub const SESSIONS_HELD: Sql = sql(
    "sessions_held",
    "SELECT s.node_id, s.session_epoch FROM node_sessions s
     JOIN unnest($1::uuid[], $2::bigint[]) AS k (node_id, session_epoch) USING (node_id, session_epoch)
     WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($3::uuid, $4::bigint) AND s.closed_at IS NULL
     ORDER BY s.node_id FOR KEY SHARE OF s",
);
pub const COMMANDS_OF_NODES: Sql = sql(
    "commands_of_nodes",
    "SELECT c.command_id, c.node_id, c.state FROM commands c
     JOIN (SELECT DISTINCT command_id, node_id FROM unnest($1::uuid[], $2::uuid[]) AS u (command_id, node_id)) AS k
       USING (command_id, node_id)
     ORDER BY c.command_id FOR UPDATE OF c",
);
pub const COMMANDS_MOVE: Sql = sql(
    "commands_move",
    "UPDATE commands c SET state = k.state, boot_id = coalesce(nullif(k.boot_id, ''), c.boot_id)
     FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (command_id, state, boot_id)
     WHERE c.command_id = k.command_id AND c.settled_at IS NULL",
);
pub const COMMANDS_RESULT: Sql = sql(
    "commands_result",
    "UPDATE commands c SET state = k.state, boot_id = nullif(k.boot_id, ''), result = k.result,
       result_signature = k.signature, result_key_sha256 = k.key_sha256, result_state = k.result_state,
       reason = k.reason, message = k.message, settled_at = compute_now()
     FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::bytea[], $7::smallint[],
       $8::text[], $9::text[])
       AS k (command_id, state, boot_id, result, signature, key_sha256, result_state, reason, message)
     WHERE c.command_id = k.command_id AND c.settled_at IS NULL",
);

/// The journals of the sessions of a batch that are still this gateway's, kept so until the transaction ends; of which nodes as
/// many events wait as may, and whether the gateway has its lease.
pub const SESSIONS_JOURNALS: Sql = sql(
    "sessions_journals",
    "SELECT s.node_id, s.session_epoch, s.journal_id, s.acked_event_seq,
       EXISTS (SELECT 1 FROM node_events e WHERE e.node_id = s.node_id AND e.handled_at IS NULL OFFSET $5) AS full,
       EXISTS (SELECT 1 FROM gateways g WHERE g.gateway_id = $3 AND g.epoch = $4 AND g.expires_at > compute_now()) AS held
     FROM node_sessions s JOIN unnest((SELECT $1::uuid[]), (SELECT $2::bigint[])) AS k (node_id, session_epoch)
       USING (node_id, session_epoch)
     WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($3::uuid, $4::bigint) AND s.closed_at IS NULL
     ORDER BY s.node_id FOR NO KEY UPDATE OF s",
);
pub const EVENTS_INSERT: Sql = sql(
    "events_insert",
    "INSERT INTO node_events (node_id, journal_id, seq, class, report, signature, key_sha256, observed_at)
     SELECT e.node_id, e.journal_id, e.seq, e.class, e.report, e.signature, e.key_sha256,
       to_timestamp(e.observed_micros / 1000000.0)
     FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::smallint[], $5::bytea[], $6::bytea[], $7::bytea[], $8::float8[])
       AS e (node_id, journal_id, seq, class, report, signature, key_sha256, observed_micros)
     ON CONFLICT DO NOTHING",
);
pub const EVENTS_ACKED: Sql = sql(
    "events_acked",
    "UPDATE node_sessions s SET acked_event_seq = k.acked
     FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS k (node_id, session_epoch, acked)
     WHERE s.node_id = k.node_id AND s.session_epoch = k.session_epoch AND s.acked_event_seq < k.acked",
);

/// A node may say of itself what it likes, but not that it stands at a spec that does not exist yet: `observed_generation` never
/// falls again.
pub const STATUSES_PUT: Sql = sql(
    "statuses_put",
    "WITH k AS (
       SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::jsonb[], $9::jsonb[],
         $10::jsonb[], $11::bigint[], $12::text[])
         AS k (node_id, session_epoch, applied, observed, spec_hash, sections, conditions, pressure, trust_version, status_key)
     ), before AS (
       SELECT st.node_id, st.status_key FROM node_status st JOIN k USING (node_id)
     )
     UPDATE node_status st SET applied_generation = least(k.applied, n.generation),
       observed_generation = greatest(st.observed_generation, least(k.observed, n.generation)),
       applied_spec_hash = k.spec_hash, sections = k.sections, conditions = k.conditions,
       pressure = nullif(k.pressure, 'null'::jsonb),
       trust_version = CASE WHEN k.trust_version > 0 THEN k.trust_version ELSE st.trust_version END,
       status_key = k.status_key, reported_at = compute_now()
     FROM k JOIN before USING (node_id) JOIN nodes n USING (node_id)
     JOIN node_sessions s ON s.node_id = k.node_id AND s.session_epoch = k.session_epoch
     JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch
     WHERE st.node_id = k.node_id AND s.gateway_id = $1 AND g.epoch = $2 AND g.expires_at > compute_now()
       AND s.closed_at IS NULL AND st.session_epoch <= k.session_epoch
     RETURNING st.node_id, before.status_key IS DISTINCT FROM st.status_key AS news",
);

pub const INVENTORY_PUT: Sql = sql(
    "inventory_put",
    "INSERT INTO node_inventory (node_id, section, hash, content)
     SELECT s.node_id, $5, $6, $7 FROM node_sessions s
     JOIN gateways g ON g.gateway_id = s.gateway_id AND g.epoch = s.gateway_epoch
     WHERE s.node_id = $1 AND s.session_epoch = $2 AND s.gateway_id = $3 AND g.epoch = $4
       AND g.expires_at > compute_now() AND s.closed_at IS NULL
     ON CONFLICT (node_id, section) DO UPDATE SET hash = excluded.hash, content = excluded.content,
       reported_at = compute_now()",
);

/// Some 16 MiB of specs at most, and one at least.
pub const SPECS_BEHIND: Sql = sql(
    "specs_behind",
    "WITH behind AS (
       SELECT n.node_id, n.generation, n.spec_body, n.spec_signature,
         sum(octet_length(n.spec_body)) OVER (ORDER BY n.node_id) - octet_length(n.spec_body) AS bytes_before
       FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS k (node_id, session_epoch, generation)
       JOIN nodes n ON n.node_id = k.node_id AND n.generation > k.generation
       JOIN node_sessions s ON s.node_id = k.node_id AND s.session_epoch = k.session_epoch
       CROSS JOIN deployment d
       WHERE (s.gateway_id, s.gateway_epoch) IS NOT DISTINCT FROM ($4::uuid, $5::bigint) AND s.closed_at IS NULL AND n.spec_body IS NOT NULL
         AND n.state NOT IN ('revoked', 'removed') AND n.quarantined_at IS NULL AND NOT d.observe_only
     )
     SELECT node_id, generation, spec_body, spec_signature FROM behind WHERE bytes_before < 16777216 ORDER BY node_id",
);

/// By whatever gateway asks: with its bytes only when it is another than the one that is known.
pub const SPEC_CURRENT: Sql = sql(
    "spec_current",
    "SELECT generation, CASE WHEN generation <> $2 THEN spec_body END AS spec_body,
       CASE WHEN generation <> $2 THEN spec_signature END AS spec_signature
     FROM nodes WHERE node_id = $1 AND spec_body IS NOT NULL AND state NOT IN ('revoked', 'removed')
       AND quarantined_at IS NULL",
);

pub const INBOX_INSERT: Sql = sql(
    "inbox_insert",
    "INSERT INTO join_inbox (inbox_id, kind, gateway_id, request, source_ip, peer_serial)
     VALUES ($1, $2, $3, $4, $5, $6)",
);
pub const INBOX_READ: Sql = sql(
    "inbox_read",
    "SELECT inbox_id, reply, refusal FROM join_inbox
     WHERE inbox_id = ANY($1) AND answered_at IS NOT NULL ORDER BY inbox_id",
);

/// For the test that prepares every statement.
pub const STATEMENTS: &[Sql] = &[
    GATEWAY_REGISTER,
    GATEWAY_RENEW,
    GATEWAY_END,
    GATEWAY_SESSIONS_CLOSE,
    GATEWAY_GUARD,
    HELLO_NODES,
    SESSIONS_LOCK,
    SESSIONS_INSERT,
    SESSIONS_TAKE,
    SESSION_CLOSE,
    SESSIONS_CLOSE,
    EVENTS_SEQ_MAX,
    STATUSES_HELLO,
    INVENTORY_HASHES,
    TRUST_BUNDLE_NEWEST,
    IN_FLIGHT,
    IN_FLIGHT_RESENT,
    COMMAND_SETTLE,
    RESTORE_CLAIM,
    HEARTBEATS,
    SESSIONS_REVOKED,
    SESSIONS_REVOKED_OF,
    CERTIFICATES_COUNT,
    COMMANDS_WAITING,
    COMMANDS_WAITING_OF,
    COMMANDS_PENDING,
    COMMANDS_UNSENT,
    COMMANDS_SENT,
    COMMANDS_CANCELLED,
    SESSIONS_HELD,
    COMMANDS_OF_NODES,
    COMMANDS_MOVE,
    COMMANDS_RESULT,
    SESSIONS_JOURNALS,
    EVENTS_INSERT,
    EVENTS_ACKED,
    STATUSES_PUT,
    INVENTORY_PUT,
    SPECS_BEHIND,
    SPEC_CURRENT,
    INBOX_INSERT,
    INBOX_READ,
];
