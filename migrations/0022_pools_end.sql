-- The end of pools: one that is deleted gets nothing new from then on, and its row stays for readers of what has ended in it. Its name
-- is free again. Triggers come before the table of pools is changed, in the order in which writers take tables.

-- A row that names a pool waits, by its foreign key, for whoever deletes that pool and has locked it. After that wait this looks, and
-- sees what was done: it is a trigger of the statement, which fires after those of its rows.
CREATE OR REPLACE FUNCTION pool_is_open_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM fresh f JOIN pools p ON p.pool_id = f.pool_id WHERE p.deleted_at IS NOT NULL) THEN
    RAISE EXCEPTION 'the pool is deleted' USING ERRCODE = 'check_violation', CONSTRAINT = 'pool_is_open',
      TABLE = TG_TABLE_NAME;
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['reservations', 'instances', 'flavors', 'join_tokens'] LOOP
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = name::regclass AND tgname = 'pool_is_open') THEN
      EXECUTE format('CREATE TRIGGER pool_is_open AFTER INSERT ON %I REFERENCING NEW TABLE AS fresh
        FOR EACH STATEMENT EXECUTE FUNCTION pool_is_open_check()', name);
    END IF;
  END LOOP;
END $$;

-- A node comes into its pool when it is there already, and waits here itself.
CREATE OR REPLACE FUNCTION nodes_pool_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT p.deleted_at FROM pools p WHERE p.pool_id = NEW.pool_id FOR KEY SHARE) IS NOT NULL THEN
    RAISE EXCEPTION 'the pool is deleted' USING ERRCODE = 'check_violation', CONSTRAINT = 'pool_is_open',
      TABLE = 'nodes';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS pool_is_open ON nodes;
CREATE TRIGGER pool_is_open BEFORE INSERT OR UPDATE OF pool_id ON nodes
  FOR EACH ROW WHEN (NEW.pool_id IS NOT NULL) EXECUTE FUNCTION nodes_pool_check();

ALTER TABLE pools ADD COLUMN IF NOT EXISTS deleted_at timestamptz;
-- Under the name of the constraint that it takes the place of.
ALTER TABLE pools DROP CONSTRAINT IF EXISTS pools_tenant_id_name_key;
CREATE UNIQUE INDEX IF NOT EXISTS pools_tenant_id_name_key ON pools (tenant_id, name) WHERE deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS pools_by_tenant ON pools (tenant_id, pool_id);
