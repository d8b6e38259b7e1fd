//! The statements of the work queue. Everything is durable. Wake-ups are in the order of their transactions, then `key`;
//! the rest by `run_at`, then `key`.
//!
//! Whoever takes a key or makes it running holds the advisory lock of queue and key until its commit: see `work_take` in the
//! migrations.

use crate::{Sql, sql};

pub(super) const WAKE: Sql =
    sql("work_wake", "INSERT INTO work_wake_batches (queue, part, keys) VALUES ($1, $2, $3)");
pub(super) const TAKE: Sql = sql(
    "work_take",
    "SELECT keys, seen, held, folded, first, settled, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS server
     FROM work_take($1, $2, $3, $4)",
);
/// A key that is not running may have become ready for later since it was taken.
pub(super) const START: Sql = sql(
    "work_start",
    "INSERT INTO work (queue, key, state, run_at, attempts_max, claim, claimed_by, claim_expires_at)
     SELECT $1, key, 'running', 'infinity', $3, 1, $4, compute_now() + $5::bigint * interval '1 millisecond'
     FROM unnest($2::text[]) AS key ORDER BY key
     ON CONFLICT ON CONSTRAINT work_queue_key_key DO UPDATE SET
       state = 'running', run_at = 'infinity', claim = work.claim + 1, claimed_by = excluded.claimed_by,
       claim_expires_at = excluded.claim_expires_at
     WHERE work.state = 'ready'
     RETURNING work_id, key, attempts, version, claim",
);
pub(super) const ENQUEUE: Sql = sql(
    "work_enqueue",
    "INSERT INTO work (queue, key, run_at, attempts_max)
     VALUES ($1, $2, compute_now() + $3::bigint * interval '1 millisecond', $4)
     ON CONFLICT ON CONSTRAINT work_queue_key_key DO UPDATE SET
       attempts_max = excluded.attempts_max, version = work.version + 1,
       run_at = least(work.run_at, excluded.run_at)",
);
/// A lapsed claim is a failed pass: a key that kills its worker is parked in the end.
pub(super) const RECLAIM: Sql = sql(
    "work_reclaim",
    "UPDATE work SET
       state = CASE WHEN attempts + 1 >= attempts_max THEN 'parked' ELSE 'ready' END,
       parked_at = CASE WHEN attempts + 1 >= attempts_max THEN compute_now() END,
       attempts = attempts + 1, run_at = compute_now(), claimed_by = NULL, claim_expires_at = NULL,
       last_error = 'the claim of worker ' || claimed_by || ' lapsed'
     WHERE work_id IN (
       SELECT work_id FROM work WHERE queue = $1 AND state = 'running' AND claim_expires_at <= compute_now()
       ORDER BY claim_expires_at, key LIMIT $2 FOR UPDATE SKIP LOCKED)",
);
/// While it runs, `run_at` collects the earliest wake-up.
pub(super) const CLAIM: Sql = sql(
    "work_claim",
    "WITH due AS MATERIALIZED (
       SELECT work_id, run_at, key FROM work WHERE queue = $1 AND state = 'ready' AND run_at <= compute_now()
       ORDER BY run_at, key LIMIT $2 FOR UPDATE SKIP LOCKED
     ), picked AS MATERIALIZED (
       SELECT work_id, run_at FROM due WHERE pg_try_advisory_xact_lock(hashtextextended($1 || ':' || key, 0))
     ), claimed AS (
       UPDATE work SET state = 'running', claim = claim + 1, claimed_by = $3, run_at = 'infinity',
         claim_expires_at = compute_now() + $4::bigint * interval '1 millisecond'
       FROM picked WHERE work.work_id = picked.work_id
       RETURNING work.work_id, key, attempts, version, claim, picked.run_at AS due
     )
     SELECT work_id, key, attempts, version, claim FROM claimed ORDER BY due, key",
);
pub(super) const EXTEND: Sql = sql(
    "work_extend",
    "UPDATE work SET claim_expires_at = compute_now() + $3::bigint * interval '1 millisecond'
     WHERE work_id = $1 AND claim = $2 AND state = 'running'",
);
macro_rules! complete {
    ($name:literal, $same:literal) => {
        sql(
            $name,
            concat!(
                "WITH done AS MATERIALIZED (
       SELECT w.work_id FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS d (work_id, claim, version)
       JOIN work w ON w.work_id = d.work_id AND ",
                $same,
                " AND w.state = 'running'
       ORDER BY w.key FOR UPDATE OF w
     )
     DELETE FROM work w USING done d WHERE w.work_id = d.work_id RETURNING w.work_id"
            ),
        )
    };
}
pub(super) const COMPLETE: Sql = complete!("work_complete", "w.claim = d.claim AND w.version = d.version");
/// What mutants put in its place.
pub(super) const COMPLETE_OF_ANY_CLAIM: Sql =
    complete!("work_complete_of_any_claim", "w.version = d.version");
pub(super) const COMPLETE_OF_ANY_VERSION: Sql =
    complete!("work_complete_of_any_version", "w.claim = d.claim");
/// Without a delay the key was woken, so `run_at` is finite.
pub(super) const AGAIN: Sql = sql(
    "work_again",
    "UPDATE work SET state = 'ready', attempts = 0, claimed_by = NULL, claim_expires_at = NULL, last_error = NULL,
       run_at = least(run_at, compute_now() + $3::bigint * interval '1 millisecond')
     WHERE work_id = $1 AND claim = $2 AND state = 'running'",
);
pub(super) const FAIL: Sql = sql(
    "work_fail",
    "UPDATE work SET
       state = CASE WHEN attempts + 1 >= attempts_max THEN 'parked' ELSE 'ready' END,
       parked_at = CASE WHEN attempts + 1 >= attempts_max THEN compute_now() END,
       attempts = attempts + 1, claimed_by = NULL, claim_expires_at = NULL, last_error = $3,
       run_at = least(run_at, compute_now() + $4::bigint * interval '1 millisecond')
     WHERE work_id = $1 AND claim = $2 AND state = 'running' RETURNING state",
);
pub(super) const OUTLOOK: Sql = sql(
    "work_outlook",
    "SELECT ceil(extract(epoch FROM least(
       (SELECT min(run_at) FROM work WHERE queue = $1 AND state = 'ready'),
       (SELECT min(claim_expires_at) FROM work WHERE queue = $1 AND state = 'running')) - compute_now()) * 1000)::bigint
       AS wait_ms,
       (SELECT count(*) FROM (SELECT 1 FROM work WHERE queue = $1 AND state = 'parked' LIMIT $2) p) AS parked",
);
pub(super) const LIST_PARKED: Sql = sql(
    "work_list_parked",
    "SELECT work_id, queue, key, attempts, last_error, parked_at FROM work
     WHERE state = 'parked' AND ($1::text IS NULL OR queue = $1) ORDER BY parked_at, work_id LIMIT $2",
);
pub(super) const REQUEUE: Sql = sql(
    "work_requeue",
    "UPDATE work SET state = 'ready', attempts = 0, run_at = compute_now(), parked_at = NULL, version = version + 1
     WHERE work_id = $1 AND state = 'parked'",
);

pub(crate) const STATEMENTS: &[Sql] = &[
    WAKE,
    TAKE,
    START,
    ENQUEUE,
    RECLAIM,
    CLAIM,
    EXTEND,
    COMPLETE,
    COMPLETE_OF_ANY_CLAIM,
    COMPLETE_OF_ANY_VERSION,
    AGAIN,
    FAIL,
    OUTLOOK,
    LIST_PARKED,
    REQUEUE,
];
