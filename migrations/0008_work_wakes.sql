-- A wake-up is a row of its own, inserted and deleted and never updated: who wakes waits for nobody, and a pass takes the
-- wake-ups of many keys in one statement. `work` keeps what is beside that: keys for later, keys that one process has
-- under a lease, keys that failed.

CREATE TABLE IF NOT EXISTS work_wakes (
    queue text   NOT NULL,
    -- The transaction that woke. Below the oldest transaction that runs nothing is added any more, so whoever has seen
    -- what is there begins behind it the next time, and not at rows that are deleted and cannot be cleaned up yet.
    xid   bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    key   text   NOT NULL
) WITH (
    -- All of it is dead soon, so it is cleaned by how many rows died and not by how many there are.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000
);
CREATE INDEX IF NOT EXISTS work_wakes_idx ON work_wakes (queue, xid, key);

ALTER TABLE work SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Takes up to `rows_max` wake-ups of a queue from `above` on, oldest first, with their keys, for as long as the transaction
-- lasts: what is taken is deleted with its commit and back with its rollback. Nobody else takes or claims these keys
-- meanwhile. A key that has a row in `work` is not given out: the wake-up is folded into that row.
--
-- `seen`: how many wake-ups were looked at; `held`: how many of them were left because others have their keys; `folded`: how
-- many keys had a row. `settled`: whatever is below is there to be seen, or never will be. `first`: the oldest wake-up that is seen. Both are of
-- one snapshot, so a taker may begin at the lesser of them the next time.
--
-- A function, so that folding sees what was committed before the keys were locked; and so that its plans are by the index
-- also where the planner last saw an empty table, and not compiled because of what those settings pretend a scan to cost.
CREATE OR REPLACE FUNCTION work_take(of_queue text, above bigint, rows_max integer, acting boolean,
                                     OUT keys text[], OUT seen integer, OUT held integer, OUT folded integer,
                                     OUT first bigint, OUT settled bigint)
    LANGUAGE plpgsql SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
    AS $$
DECLARE
    rows_of text[];
BEGIN
    keys := '{}'; seen := 0; held := 0; folded := 0; first := above; settled := above;
    IF acting AND (SELECT observe_only FROM deployment) THEN
        RETURN;
    END IF;
    WITH there AS MATERIALIZED (
        SELECT w.ctid AS place, w.key FROM work_wakes w WHERE w.queue = of_queue AND w.xid >= above
        ORDER BY w.queue, w.xid, w.key LIMIT rows_max FOR UPDATE SKIP LOCKED
    ), mine AS MATERIALIZED (
        SELECT k.key FROM (SELECT DISTINCT t.key FROM there t) k
        WHERE pg_try_advisory_xact_lock(hashtextextended(of_queue || ':' || k.key, 0))
    ), gone AS (
        DELETE FROM work_wakes w WHERE w.ctid = ANY (ARRAY(SELECT t.place FROM there t JOIN mine m ON m.key = t.key))
        RETURNING 1
    )
    SELECT ARRAY(SELECT m.key FROM mine m ORDER BY m.key), (SELECT count(*) FROM there),
        (SELECT count(*) FROM there) - (SELECT count(*) FROM gone),
        (SELECT w.xid FROM work_wakes w WHERE w.queue = of_queue AND w.xid >= above ORDER BY w.queue, w.xid, w.key LIMIT 1),
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    INTO keys, seen, held, first, settled;
    IF cardinality(keys) = 0 THEN
        RETURN;
    END IF;
    WITH rows_there AS MATERIALIZED (
        SELECT o.work_id FROM work o WHERE o.queue = of_queue AND o.key = ANY (keys) ORDER BY o.key FOR UPDATE
    ), told AS (
        UPDATE work o SET version = o.version + 1,
            run_at = CASE o.state WHEN 'parked' THEN o.run_at ELSE least(o.run_at, compute_now()) END
        FROM rows_there t WHERE o.work_id = t.work_id RETURNING o.key
    )
    SELECT array_agg(t.key) FROM told t INTO rows_of;
    IF rows_of IS NOT NULL THEN
        folded := cardinality(rows_of);
        keys := ARRAY(SELECT k FROM unnest(keys) AS k WHERE k <> ALL (rows_of) ORDER BY k);
    END IF;
END $$;
REVOKE ALL ON FUNCTION work_take(text, bigint, integer, boolean) FROM PUBLIC;

-- An event's id is 122 random bits: that no two are alike needs no index on the way of every change.
ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_event_id_key;
ALTER TABLE outbox SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000
);
