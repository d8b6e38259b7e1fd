-- The virtual clock as microseconds since 1970: it is read for every row that is held against it, and a number is read in a
-- seventh of the time that a date takes.
CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT coalesce(timestamptz 'epoch' + nullif(current_setting('compute.now_us', true), '')::bigint * interval '1 microsecond',
                          statement_timestamp()) $$;
COMMENT ON FUNCTION compute_now() IS
    'The virtual clock of the setting compute.now_us, in microseconds since 1970, where it is set; else the time of the statement.';
