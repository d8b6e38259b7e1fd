-- The end of tenants: one that is deleted gets nothing new from then on, and its row stays for readers when all that it had is
-- gone. Its name is free again. Triggers come before the table of tenants is changed, in the order in which writers take tables.

-- A row that names a tenant waits, by its foreign key, for whoever deletes that tenant and has locked it. After that wait this
-- looks, and sees what was done: it is a trigger of the statement, which fires after those of its rows.
CREATE OR REPLACE FUNCTION tenant_is_open_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM fresh f JOIN tenants t ON t.tenant_id = f.tenant_id WHERE t.deleting_at IS NOT NULL) THEN
    RAISE EXCEPTION 'the tenant is being deleted' USING ERRCODE = 'check_violation', CONSTRAINT = 'tenant_is_open',
      TABLE = TG_TABLE_NAME;
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['reservations', 'images', 'secrets', 'instances', 'quotas', 'pools', 'bindings', 'policies', 'users'] LOOP
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = name::regclass AND tgname = 'tenant_is_open') THEN
      EXECUTE format('CREATE TRIGGER tenant_is_open AFTER INSERT ON %I REFERENCING NEW TABLE AS fresh
        FOR EACH STATEMENT EXECUTE FUNCTION tenant_is_open_check()', name);
    END IF;
  END LOOP;
END $$;

-- Nor is a user of such a tenant let in again.
CREATE OR REPLACE FUNCTION users_stay_disabled_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT t.deleting_at FROM tenants t WHERE t.tenant_id = NEW.tenant_id FOR KEY SHARE) IS NOT NULL THEN
    RAISE EXCEPTION 'the tenant is being deleted' USING ERRCODE = 'check_violation', CONSTRAINT = 'tenant_is_open',
      TABLE = 'users';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS users_stay_disabled ON users;
CREATE TRIGGER users_stay_disabled BEFORE UPDATE OF disabled_at ON users
  FOR EACH ROW WHEN (OLD.disabled_at IS NOT NULL AND NEW.disabled_at IS NULL) EXECUTE FUNCTION users_stay_disabled_check();

ALTER TABLE tenants ADD COLUMN IF NOT EXISTS deleting_at timestamptz;
ALTER TABLE tenants ADD COLUMN IF NOT EXISTS deleted_at timestamptz CHECK (deleted_at IS NULL OR deleting_at IS NOT NULL);
-- Under the name of the constraint that it takes the place of.
ALTER TABLE tenants DROP CONSTRAINT IF EXISTS tenants_parent_id_name_key;
CREATE UNIQUE INDEX IF NOT EXISTS tenants_parent_id_name_key ON tenants (parent_id, name) WHERE deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS tenants_by_parent ON tenants (parent_id, tenant_id);
-- What a tenant has that has not ended, and by its name.
CREATE INDEX IF NOT EXISTS instances_by_name ON instances (tenant_id, name) WHERE ended_at IS NULL;

-- The same as of what names a tenant, of a tenant and the one above it.
CREATE OR REPLACE FUNCTION parent_is_open_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM fresh f JOIN tenants t ON t.tenant_id = f.parent_id WHERE t.deleting_at IS NOT NULL) THEN
    RAISE EXCEPTION 'the tenant is being deleted' USING ERRCODE = 'check_violation', CONSTRAINT = 'tenant_is_open',
      TABLE = TG_TABLE_NAME;
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS tenant_is_open ON tenants;
CREATE TRIGGER tenant_is_open AFTER INSERT ON tenants
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION parent_is_open_check();
