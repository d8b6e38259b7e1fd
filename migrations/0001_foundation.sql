-- What every module stands on: time, the deployment's row, the work queue, events, audit, leases.

CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT coalesce(nullif(current_setting('compute.now', true), '')::timestamptz, statement_timestamp()) $$;
COMMENT ON FUNCTION compute_now() IS
    'The virtual clock of the setting compute.now where it is set, else the time of the statement.';

-- One row. The epoch rises when a restored database is confirmed; nodes refuse intent of an older one.
CREATE TABLE IF NOT EXISTS deployment (
    one             boolean     PRIMARY KEY DEFAULT true CHECK (one),
    deployment_id   uuid        NOT NULL DEFAULT gen_random_uuid(),
    epoch           bigint      NOT NULL DEFAULT 1 CHECK (epoch > 0),
    -- The highest epoch that anything outside this database has proved; a confirmed restore goes above it.
    epoch_floor     bigint      NOT NULL DEFAULT 1,
    -- Rises with every comparison against the record kept outside the database.
    fence           bigint      NOT NULL DEFAULT 0,
    observe_only    boolean     NOT NULL DEFAULT false,
    observe_reason  text,
    observe_since   timestamptz,
    restored_at     timestamptz,
    created_at      timestamptz NOT NULL DEFAULT compute_now(),
    CHECK (observe_only = (observe_reason IS NOT NULL) AND observe_only = (observe_since IS NOT NULL))
);
INSERT INTO deployment DEFAULT VALUES ON CONFLICT DO NOTHING;

-- What is to be looked at again. One row per key: wake-ups of one key fold into it.
CREATE TABLE IF NOT EXISTS work (
    work_id          uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    queue            text        NOT NULL,
    key              text        NOT NULL,
    payload          jsonb       NOT NULL DEFAULT '{}',
    state            text        NOT NULL DEFAULT 'ready' CHECK (state IN ('ready', 'running', 'parked')),
    -- While running: the earliest wake-up asked for during the pass, or infinity.
    run_at           timestamptz NOT NULL,
    -- Failed passes since the last good one.
    attempts         integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    attempts_max     integer     NOT NULL CHECK (attempts_max > 0),
    -- Rises with every wake-up; a pass completes only the version it was claimed at.
    version          bigint      NOT NULL DEFAULT 1,
    -- Rises with every claim; a claim that lapsed and was taken over writes nothing.
    claim            bigint      NOT NULL DEFAULT 0,
    claimed_by       text,
    claim_expires_at timestamptz,
    last_error       text,
    parked_at        timestamptz,
    created_at       timestamptz NOT NULL DEFAULT compute_now(),
    CONSTRAINT work_queue_key_key UNIQUE (queue, key),
    CONSTRAINT work_claimed_check CHECK ((state = 'running') = (claimed_by IS NOT NULL AND claim_expires_at IS NOT NULL)),
    CONSTRAINT work_parked_check CHECK ((state = 'parked') = (parked_at IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS work_ready_idx ON work (queue, run_at, key) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS work_running_idx ON work (queue, claim_expires_at) WHERE state = 'running';
CREATE INDEX IF NOT EXISTS work_parked_idx ON work (parked_at, work_id) WHERE state = 'parked';

-- Events as their transactions wrote them, in no order that commits keep. The relay gives them their seq.
CREATE TABLE IF NOT EXISTS outbox (
    outbox_id bigint      PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    event_id  uuid        NOT NULL CONSTRAINT outbox_event_id_key UNIQUE,
    at        timestamptz NOT NULL DEFAULT compute_now(),
    kind      text        NOT NULL,
    subject   text        NOT NULL,
    tenant_id uuid,
    data      jsonb       NOT NULL
);

-- The last seq given out. Its row lock is what keeps seq gapless; retention cannot take it back.
CREATE TABLE IF NOT EXISTS event_head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    seq bigint  NOT NULL DEFAULT 0
);
INSERT INTO event_head DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS events (
    seq       bigint      NOT NULL,
    at        timestamptz NOT NULL,
    event_id  uuid        NOT NULL,
    kind      text        NOT NULL,
    subject   text        NOT NULL,
    tenant_id uuid,
    data      jsonb       NOT NULL,
    PRIMARY KEY (seq, at)
) PARTITION BY RANGE (at);
CREATE INDEX IF NOT EXISTS events_tenant_idx ON events (tenant_id, seq);
CREATE INDEX IF NOT EXISTS events_subject_idx ON events (subject, seq);

CREATE TABLE IF NOT EXISTS audit (
    audit_id     uuid        NOT NULL,
    at           timestamptz NOT NULL DEFAULT compute_now(),
    tenant_id    uuid,
    principal    text        NOT NULL,
    principal_id uuid,
    action       text        NOT NULL,
    resource     text        NOT NULL,
    decision     text        NOT NULL,
    outcome      text        NOT NULL,
    request_id   uuid,
    source_ip    text,
    detail       jsonb       NOT NULL DEFAULT '{}',
    PRIMARY KEY (at, audit_id)
) PARTITION BY RANGE (at);
CREATE INDEX IF NOT EXISTS audit_tenant_idx ON audit (tenant_id, at, audit_id);
CREATE INDEX IF NOT EXISTS audit_principal_idx ON audit (principal_id, at, audit_id);

CREATE TABLE IF NOT EXISTS leases (
    name        text        PRIMARY KEY,
    holder      text        NOT NULL,
    -- Rises with every change of holder and never falls; the row outlives its holders for that.
    epoch       bigint      NOT NULL,
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL
);

-- Makes the partition of the UTC month around `moment`, named parent_yYYYYmMM, unless it is there.
-- Runs with its owner's rights, so that writing an event never needs the right to create tables.
CREATE OR REPLACE FUNCTION partition_ensure(parent text, moment timestamptz) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
    AS $$
DECLARE
    first timestamptz := date_trunc('month', moment AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    after timestamptz := (date_trunc('month', moment AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC';
    child text := parent || to_char(moment AT TIME ZONE 'UTC', '"_y"YYYY"m"MM');
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_partitioned_table WHERE partrelid = to_regclass(parent)) THEN
        RAISE EXCEPTION 'not a partitioned table' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF to_regclass(child) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('partition:' || parent));
    -- The catalog itself, with a new snapshot: to_regclass would answer again from what it remembers.
    IF EXISTS (SELECT 1 FROM pg_class WHERE relname = child AND relnamespace = 'public'::regnamespace) THEN
        RETURN false;
    END IF;
    -- Attaching locks the parent less than creating in place: readers and writers go on.
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', child, parent);
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', parent, child, first, after);
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION partition_ensure(text, timestamptz) FROM PUBLIC;

-- Drops the monthly partitions that ended at or before `moment`, and says how many. It waits for readers only
-- briefly, since everybody else would wait behind it; the next pass tries again.
CREATE OR REPLACE FUNCTION partition_drop_before(parent text, moment timestamptz) RETURNS integer
    LANGUAGE plpgsql SET search_path = public, pg_temp SET lock_timeout = '2s'
    AS $$
DECLARE
    child record;
    dropped integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('partition:' || parent));
    FOR child IN
        SELECT relname, regexp_match(relname, '_y(\d{4})m(\d{2})$') AS month
        FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = to_regclass(parent) ORDER BY relname
    LOOP
        CONTINUE WHEN child.month IS NULL;
        CONTINUE WHEN (make_date(child.month[1]::int, child.month[2]::int, 1) + interval '1 month')
                      AT TIME ZONE 'UTC' > moment;
        EXECUTE format('DROP TABLE IF EXISTS %I', child.relname);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;
REVOKE ALL ON FUNCTION partition_drop_before(text, timestamptz) FROM PUBLIC;

-- A new database can take events and audit entries before the first partition pass.
SELECT partition_ensure(parent, compute_now() + month * interval '1 month')
FROM unnest(ARRAY['events', 'audit']) AS parent, generate_series(0, 1) AS month;
