-- Events that wait for their number, and wake-ups, are rows of many: what one transaction tells or wakes is one row, where a
-- reservation's life wrote one for each event and each key. Both are inserted and deleted and never updated.

CREATE TABLE IF NOT EXISTS outbox_batches (
    batch_id   bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT compute_now(),
    -- Of each event its part, in the order in which they are told.
    event_ids  uuid[]      NOT NULL,
    kinds      text[]      NOT NULL,
    subjects   text[]      NOT NULL,
    tenant_ids uuid[]      NOT NULL,
    data       jsonb[]     NOT NULL
) WITH (
    -- A row lives for milliseconds: as long as it fits a page it is neither compressed nor put elsewhere.
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000
);

-- The events that have no number yet, one a row, for people and checks.
CREATE OR REPLACE VIEW outbox_events AS
    SELECT b.batch_id, e.place, e.event_id, b.at, e.kind, e.subject, e.tenant_id, e.data
    FROM outbox_batches b, unnest(b.event_ids, b.kinds, b.subjects, b.tenant_ids, b.data)
        WITH ORDINALITY AS e (event_id, kind, subject, tenant_id, data, place);

DO $$ BEGIN
    IF to_regclass('public.outbox') IS NOT NULL THEN
        INSERT INTO outbox_batches (at, event_ids, kinds, subjects, tenant_ids, data)
            SELECT at, ARRAY[event_id], ARRAY[kind], ARRAY[subject], ARRAY[tenant_id], ARRAY[data] FROM outbox ORDER BY outbox_id;
        DROP TABLE outbox;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS work_wake_batches (
    queue text    NOT NULL,
    -- The transaction that woke. Below the oldest transaction that runs nothing is added any more, so whoever has seen
    -- what is there begins behind it the next time, and not at rows that are deleted and cannot be cleaned up yet.
    xid   bigint  NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    -- Which of its transaction's, where there are many keys.
    part  integer NOT NULL DEFAULT 0,
    -- 32 at most, since a taker takes whole rows. No check says so, here or above: it would be half of what a row costs.
    keys  text[]  NOT NULL
) WITH (
    toast_tuple_target = 8160,
    -- All of it is dead soon, so it is cleaned by how many rows died and not by how many there are.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000
);
CREATE INDEX IF NOT EXISTS work_wake_batches_idx ON work_wake_batches (queue, xid, part);

-- What is woken, one key a row, for people and checks.
CREATE OR REPLACE VIEW work_wake_keys AS
    SELECT b.queue, b.xid, k.key FROM work_wake_batches b, unnest(b.keys) AS k (key);

DO $$ BEGIN
    IF to_regclass('public.work_wakes') IS NOT NULL THEN
        INSERT INTO work_wake_batches (queue, keys) SELECT DISTINCT queue, ARRAY[key] FROM work_wakes;
        DROP TABLE work_wakes;
    END IF;
END $$;

-- Takes wake-ups of a queue from `above` on, oldest first, with their keys, for as long as the transaction lasts: what is
-- taken is deleted with its commit and back with its rollback. Whole rows, until there are `rows_max` wake-ups or more.
-- Nobody else takes or claims these keys meanwhile. A key that has a row in `work` is not given out: the wake-up is folded
-- into that row.
--
-- `seen`: how many wake-ups were looked at; `held`: how many of them were left because others have their keys; `folded`: how
-- many keys had a row. `settled`: whatever is below is there to be seen, or never will be. `first`: the oldest wake-up that
-- is seen. Both are of one snapshot, so a taker may begin at the lesser of them the next time.
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
    -- A row is locked when it is fetched, so none is that is not taken.
    waiting CURSOR FOR
        SELECT w.ctid AS place, w.keys AS woken FROM work_wake_batches w WHERE w.queue = of_queue AND w.xid >= above
        ORDER BY w.queue, w.xid, w.part FOR UPDATE SKIP LOCKED;
    places tid[] := '{}';
    woken text[] := '{}';
    others text[];
    rows_of text[];
    rests boolean;
BEGIN
    keys := '{}'; seen := 0; held := 0; folded := 0;
    -- Before anything is deleted: it is to hold after a rollback too.
    SELECT (SELECT w.xid FROM work_wake_batches w WHERE w.queue = of_queue AND w.xid >= above ORDER BY w.queue, w.xid LIMIT 1),
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint, acting AND (SELECT d.observe_only FROM deployment d)
    INTO first, settled, rests;
    IF first IS NULL OR rests THEN
        RETURN;
    END IF;
    FOR batch IN waiting LOOP
        places := places || batch.place;
        woken := woken || batch.woken;
        EXIT WHEN cardinality(woken) >= rows_max;
    END LOOP;
    seen := cardinality(woken);
    IF seen = 0 THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(k.key ORDER BY k.key) FILTER (WHERE k.free), '{}'),
        array_agg(k.key) FILTER (WHERE NOT k.free)
    INTO keys, others
    FROM (SELECT d.key, pg_try_advisory_xact_lock(hashtextextended(of_queue || ':' || d.key, 0)) AS free
          FROM (SELECT DISTINCT u.key FROM unnest(woken) AS u (key)) d) k;
    IF others IS NULL THEN
        DELETE FROM work_wake_batches w WHERE w.ctid = ANY (places);
    ELSE
        -- Rows of others' keys alone stay. Of the rest, those keys are woken anew: above any floor, and no earlier than
        -- this transaction ends.
        WITH gone AS (
            DELETE FROM work_wake_batches w WHERE w.ctid = ANY (places) AND w.keys && work_take.keys
            RETURNING w.keys AS woken
        ), rest AS (
            SELECT ARRAY(SELECT u FROM unnest(g.woken) AS u WHERE u = ANY (others)) AS left_of FROM gone g
        )
        INSERT INTO work_wake_batches (queue, part, keys)
            SELECT of_queue, row_number() OVER (), r.left_of FROM rest r WHERE cardinality(r.left_of) > 0;
        SELECT count(*) INTO held FROM unnest(woken) AS u WHERE u = ANY (others);
    END IF;
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
