-- The end of images: one that was deleted stays for readers, its name is free again, and nothing is made of it any more.
ALTER TABLE images ADD COLUMN IF NOT EXISTS deleted_at timestamptz;
-- How much of an announced image had come when somebody looked, and since when no more has.
ALTER TABLE images ADD COLUMN IF NOT EXISTS seen_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE images ADD COLUMN IF NOT EXISTS seen_at timestamptz NOT NULL DEFAULT compute_now();

-- Under the name of the constraint that it takes the place of.
ALTER TABLE images DROP CONSTRAINT IF EXISTS images_tenant_id_name_key;
CREATE UNIQUE INDEX IF NOT EXISTS images_tenant_id_name_key ON images (tenant_id, name) WHERE deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS images_by_digest ON images (sha256) WHERE url IS NULL AND deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS instances_by_image ON instances (image_id) WHERE ended_at IS NULL;
-- A card's MAC is the end of its instance's id: no two of a pool, whose hosts may be one network, have the same.
CREATE UNIQUE INDEX IF NOT EXISTS instances_one_mac ON instances (pool_id, substr(uuid_send(instance_id), 12)) WHERE ended_at IS NULL;

-- Whoever makes an instance shares its image until it is made, and whoever deletes an image changes it: the one waits for the
-- other, and then sees what it did.
CREATE OR REPLACE FUNCTION instances_image_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM images WHERE image_id = NEW.image_id AND deleted_at IS NULL FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the image is deleted' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'instances_image_is_there', TABLE = 'instances';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS instances_image_is_there ON instances;
CREATE TRIGGER instances_image_is_there BEFORE INSERT OR UPDATE OF image_id ON instances
  FOR EACH ROW EXECUTE FUNCTION instances_image_check();

CREATE OR REPLACE FUNCTION images_use_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM instances i WHERE i.image_id = NEW.image_id AND i.ended_at IS NULL) THEN
    RAISE EXCEPTION 'the image is in use' USING ERRCODE = 'check_violation', CONSTRAINT = 'images_in_use', TABLE = 'images';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS images_in_use ON images;
CREATE TRIGGER images_in_use BEFORE UPDATE OF deleted_at ON images
  FOR EACH ROW WHEN (OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION images_use_check();

-- What a tenant and all below it have in the own store, announced or there: each image in whole GiB, rounded up.
CREATE OR REPLACE FUNCTION images_used(of_tenant uuid, of_resource text) RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT of_tenant AS tenant_id WHERE of_resource = 'imageGiB'
    UNION ALL
    SELECT t.tenant_id FROM tenants t JOIN below b ON t.parent_id = b.tenant_id)
  SELECT coalesce(sum((i.size_bytes + 1073741823) / 1073741824), 0)::bigint
  FROM below b JOIN images i ON i.tenant_id = b.tenant_id AND i.url IS NULL AND i.deleted_at IS NULL
$$;

-- Within the quotas on the way up, as holds are; and no more than 16 of a tenant whose bytes have not come.
CREATE OR REPLACE FUNCTION images_quota_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  whose record;
  quota record;
BEGIN
  FOR whose IN SELECT DISTINCT f.tenant_id FROM fresh f WHERE f.url IS NULL ORDER BY f.tenant_id LOOP
    PERFORM pg_advisory_xact_lock(hashtextextended('images:' || whose.tenant_id, 0));
    IF (SELECT count(*) FROM images i WHERE i.tenant_id = whose.tenant_id AND i.url IS NULL AND i.arrived_at IS NULL
        AND i.deleted_at IS NULL) > 16 THEN
      RAISE EXCEPTION 'too many images are awaited' USING ERRCODE = 'check_violation', CONSTRAINT = 'images_awaited',
        TABLE = 'images';
    END IF;
  END LOOP;
  FOR quota IN
    WITH RECURSIVE up AS (
      SELECT t.tenant_id AS leaf, t.tenant_id, t.parent_id, 0 AS above FROM tenants t
        WHERE t.tenant_id IN (SELECT f.tenant_id FROM fresh f WHERE f.url IS NULL)
      UNION ALL
      SELECT up.leaf, t.tenant_id, t.parent_id, up.above + 1 FROM tenants t JOIN up ON t.tenant_id = up.parent_id),
    way AS (
      SELECT DISTINCT tenant_id, max(above) OVER (PARTITION BY leaf) - above AS depth FROM up)
    SELECT q.tenant_id, q.amount FROM way JOIN quotas q ON q.tenant_id = way.tenant_id
      WHERE q.resource = 'imageGiB' ORDER BY way.depth, q.tenant_id FOR NO KEY UPDATE OF q
  LOOP
    IF images_used(quota.tenant_id, 'imageGiB') > quota.amount THEN
      RAISE EXCEPTION 'quota exceeded' USING ERRCODE = 'check_violation', CONSTRAINT = 'quota_holds_within_quota',
        TABLE = 'images';
    END IF;
  END LOOP;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS images_within_quota ON images;
CREATE TRIGGER images_within_quota AFTER INSERT ON images
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION images_quota_check();
