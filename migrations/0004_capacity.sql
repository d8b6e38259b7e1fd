-- What can be booked, what is booked, and by whom. Totals are derived from these rows; no counter is kept.

-- What a node offers, from its accepted inventory less the host's reserve.
CREATE TABLE IF NOT EXISTS node_capacity (
  node_id       uuid PRIMARY KEY REFERENCES nodes,
  -- None when it was taken out of its pool: it offers nothing, and what it holds stays booked.
  pool_id       uuid REFERENCES pools,
  cpu_millis    bigint NOT NULL CHECK (cpu_millis >= 0),
  memory_bytes  bigint NOT NULL CHECK (memory_bytes >= 0),
  hugepages_1gi bigint NOT NULL DEFAULT 0 CHECK (hugepages_1gi >= 0),
  -- The same before the reserve of its pool, from which a changed reserve is applied.
  machine_cpu_millis   bigint NOT NULL CHECK (machine_cpu_millis >= 0),
  machine_memory_bytes bigint NOT NULL CHECK (machine_memory_bytes >= 0),
  -- Per NUMA node, before the reserve: id, cpus as a cpulist, memoryBytes, hugepages1Gi.
  topology      jsonb NOT NULL DEFAULT '[]',
  -- What its daemon advertised when that was last looked at.
  capabilities  text[] NOT NULL DEFAULT '{}',
  -- Goes up with every change of what the node offers or holds, under the lock of this row.
  version       bigint NOT NULL DEFAULT 1,
  -- Raised by whoever books here or gives back: such a change leaves what is offered as it was.
  books         bigint NOT NULL DEFAULT 0,
  -- The version of the last change that was no booking. A reader that knows it reads only what is booked.
  offer_version bigint NOT NULL DEFAULT 1,
  -- The transaction of the last change. A reader that knows every change before the oldest transaction then running
  -- finds all later ones by it, in whatever order they committed.
  changed_xid   bigint NOT NULL DEFAULT 0,
  -- The reservation that the node is kept for: it has waited long, and nothing else is placed here until it is.
  kept_for      uuid,
  updated_at    timestamptz NOT NULL DEFAULT compute_now()
);
CREATE INDEX IF NOT EXISTS node_capacity_by_change ON node_capacity (changed_xid);
CREATE INDEX IF NOT EXISTS node_capacity_kept ON node_capacity (pool_id) WHERE kept_for IS NOT NULL;

CREATE OR REPLACE FUNCTION node_capacity_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.changed_xid := pg_current_xact_id()::text::bigint;
  IF TG_OP = 'UPDATE' THEN
    NEW.version := OLD.version + 1;
    NEW.updated_at := compute_now();
    IF NEW.books = OLD.books THEN
      NEW.offer_version := NEW.version;
    END IF;
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS node_capacity_marked ON node_capacity;
CREATE TRIGGER node_capacity_marked BEFORE INSERT OR UPDATE ON node_capacity
  FOR EACH ROW EXECUTE FUNCTION node_capacity_mark();

-- The nodes that a transaction has changed which was not over at the oldest transaction `since`, and the oldest that is
-- not over now; one row without a node when there is none. The few rows at the end of the index, and never the table: a
-- plan that is made without knowing `since` would take a third of all nodes for changed.
CREATE OR REPLACE FUNCTION books_changed(since bigint)
    RETURNS TABLE (oldest bigint, node_id uuid, version bigint, offer_version bigint)
    LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  RETURN QUERY SELECT x.oldest, c.node_id, c.version, c.offer_version
    FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest) x
    LEFT JOIN node_capacity c ON c.changed_xid >= since;
END $$;

-- A bookable whole: a GPU by its UUID. An atom that is gone from the inventory stays as absent while booked, and no longer.
CREATE TABLE IF NOT EXISTS atoms (
  node_id      uuid NOT NULL REFERENCES nodes,
  atom         text NOT NULL,
  class        text NOT NULL CHECK (class IN ('gpu')),
  device_index integer NOT NULL,
  model        text NOT NULL,
  memory_bytes bigint NOT NULL,
  numa         integer,
  island       integer,
  -- healthy, unhealthy or absent.
  health       text NOT NULL CHECK (health IN ('healthy', 'unhealthy', 'absent')),
  health_reason text NOT NULL DEFAULT '',
  health_at    timestamptz NOT NULL DEFAULT compute_now(),
  PRIMARY KEY (node_id, atom)
);
-- One GPU is in one machine, and stays that machine's while it is booked there, seen or not.
CREATE UNIQUE INDEX IF NOT EXISTS atoms_once ON atoms (atom);

-- Devices that a node lists and that are another node's: each is told once for as long as it is listed.
CREATE TABLE IF NOT EXISTS atom_claims (
  node_id  uuid NOT NULL REFERENCES nodes,
  atom     text NOT NULL,
  owner_id uuid NOT NULL REFERENCES nodes,
  PRIMARY KEY (node_id, atom)
);

CREATE TABLE IF NOT EXISTS quotas (
  quota_id   uuid PRIMARY KEY,
  tenant_id  uuid NOT NULL REFERENCES tenants,
  -- gpu, vcpu, memoryGiB, reservations.
  resource   text NOT NULL,
  amount     bigint NOT NULL CHECK (amount >= 0),
  updated_at timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, resource)
);

CREATE TABLE IF NOT EXISTS reservations (
  reservation_id uuid PRIMARY KEY,
  tenant_id      uuid NOT NULL REFERENCES tenants,
  pool_id        uuid NOT NULL REFERENCES pools,
  created_by     uuid NOT NULL REFERENCES users,
  name           text,
  state          text NOT NULL CHECK (state IN
                   ('draft', 'scheduling', 'placed', 'active', 'releasing', 'released', 'failed', 'expired')),
  gpus           integer NOT NULL DEFAULT 0 CHECK (gpus BETWEEN 0 AND 1024),
  gpu_model      text,
  vcpu           integer NOT NULL DEFAULT 0 CHECK (vcpu >= 0),
  memory_gib     bigint NOT NULL DEFAULT 0 CHECK (memory_gib >= 0),
  hugepages_1gi  bigint NOT NULL DEFAULT 0 CHECK (hugepages_1gi >= 0),
  whole_node     boolean NOT NULL DEFAULT false,
  binding        text NOT NULL DEFAULT 'hold' CHECK (binding IN ('hold', 'kubernetes')),
  selector       jsonb NOT NULL DEFAULT '{}',
  -- Nodes a former allocation failed on, and until when they are not tried again.
  avoid          uuid[] NOT NULL DEFAULT '{}',
  avoid_until    timestamptz,
  starts_at      timestamptz NOT NULL DEFAULT compute_now(),
  -- None: until released.
  expires_at     timestamptz,
  attempts       integer NOT NULL DEFAULT 0,
  -- Why it is not placed yet, for people; and since when it waits.
  waiting_reason text NOT NULL DEFAULT '',
  failure        text NOT NULL DEFAULT '',
  -- released, expired or failed: what the release ends in.
  release_to     text CHECK (release_to IN ('released', 'expired', 'failed')),
  created_at     timestamptz NOT NULL DEFAULT compute_now(),
  updated_at     timestamptz NOT NULL DEFAULT compute_now(),
  placed_at      timestamptz,
  active_at      timestamptz,
  ended_at       timestamptz,
  -- What the indexes below want of the state, so that the moves after placement touch none of them.
  stage          smallint NOT NULL GENERATED ALWAYS AS
                   (CASE state WHEN 'draft' THEN 0 WHEN 'scheduling' THEN 1 ELSE 2 END) STORED
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS reservations_by_tenant ON reservations (tenant_id, reservation_id DESC);
CREATE INDEX IF NOT EXISTS reservations_scheduling ON reservations (pool_id, reservation_id) WHERE stage = 1;
CREATE INDEX IF NOT EXISTS reservations_expiring ON reservations (expires_at)
  WHERE ended_at IS NULL AND expires_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS reservations_drafts ON reservations (created_at) WHERE stage = 0;

-- What a reservation counts for against the quotas of its tenant and those above, from admission to its end.
CREATE TABLE IF NOT EXISTS quota_holds (
  reservation_id uuid NOT NULL REFERENCES reservations,
  -- The reservation's, which is there.
  tenant_id      uuid NOT NULL,
  resource       text NOT NULL,
  amount         bigint NOT NULL CHECK (amount > 0),
  PRIMARY KEY (reservation_id, resource)
);
CREATE INDEX IF NOT EXISTS quota_holds_by_tenant ON quota_holds (tenant_id, resource);

-- What a tenant and all below it hold: the amount that counts against the tenant's quota.
CREATE OR REPLACE FUNCTION quota_used(of_tenant uuid, of_resource text) RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT of_tenant AS tenant_id
    UNION ALL
    SELECT t.tenant_id FROM tenants t JOIN below b ON t.parent_id = b.tenant_id)
  SELECT coalesce(sum(h.amount), 0)::bigint FROM below b
    JOIN quota_holds h ON h.tenant_id = b.tenant_id AND h.resource = of_resource
$$;

-- The rows may never exceed a quota of their tenant or of one above it, so that what a tenant gives to those below it is
-- its own. Once for a statement, however many rows it writes: the rows of the quotas are locked by resource and from the
-- root downwards, so that no two wait for each other, and then what is held is summed.
CREATE OR REPLACE FUNCTION quota_holds_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  quota record;
  used bigint;
BEGIN
  FOR quota IN
    WITH RECURSIVE up AS (
      SELECT t.tenant_id AS leaf, t.tenant_id, t.parent_id, 0 AS above FROM tenants t
        WHERE t.tenant_id IN (SELECT f.tenant_id FROM fresh f)
      UNION ALL
      SELECT up.leaf, t.tenant_id, t.parent_id, up.above + 1 FROM tenants t JOIN up ON t.tenant_id = up.parent_id),
    way AS (
      SELECT DISTINCT tenant_id, max(above) OVER (PARTITION BY leaf) - above AS depth FROM up)
    SELECT q.tenant_id, q.resource, q.amount FROM way JOIN quotas q ON q.tenant_id = way.tenant_id
      WHERE q.resource IN (SELECT f.resource FROM fresh f)
      ORDER BY q.resource, way.depth, q.tenant_id FOR NO KEY UPDATE OF q
  LOOP
    used := quota_used(quota.tenant_id, quota.resource);
    IF used > quota.amount THEN
      RAISE EXCEPTION 'quota exceeded' USING ERRCODE = 'check_violation', CONSTRAINT = 'quota_holds_within_quota',
        TABLE = 'quota_holds', DETAIL = format('%s %s %s', quota.resource, used, quota.amount);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS quota_holds_within_quota ON quota_holds;
CREATE TRIGGER quota_holds_within_quota AFTER INSERT ON quota_holds
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION quota_holds_check();
DROP TRIGGER IF EXISTS quota_holds_stay_within_quota ON quota_holds;
CREATE TRIGGER quota_holds_stay_within_quota AFTER UPDATE ON quota_holds
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION quota_holds_check();

-- One placed attempt on one node.
CREATE TABLE IF NOT EXISTS allocations (
  allocation_id  uuid PRIMARY KEY,
  reservation_id uuid NOT NULL REFERENCES reservations,
  node_id        uuid NOT NULL REFERENCES nodes,
  state          text NOT NULL CHECK (state IN ('placed', 'bound', 'releasing', 'released', 'failed')),
  -- What was booked, kept when the bookings are gone.
  atoms          text[] NOT NULL DEFAULT '{}',
  limits         jsonb,
  cdi_devices    text[] NOT NULL DEFAULT '{}',
  reason         text NOT NULL DEFAULT '',
  placed_at      timestamptz NOT NULL DEFAULT compute_now(),
  bound_at       timestamptz,
  ended_at       timestamptz,
  -- It is its reservation's. A column of its own, so that the moves in between touch no index.
  live           boolean NOT NULL GENERATED ALWAYS AS (state IN ('placed', 'bound', 'releasing')) STORED,
  -- For what refers to an allocation together with its node.
  UNIQUE (allocation_id, node_id)
) WITH (fillfactor = 70);
-- A reservation is on one node at a time; the next attempt waits for the end of the one before.
CREATE UNIQUE INDEX IF NOT EXISTS allocations_one_live ON allocations (reservation_id) WHERE live;
CREATE INDEX IF NOT EXISTS allocations_live_by_node ON allocations (node_id, allocation_id)
  WHERE state IN ('placed', 'bound', 'releasing');

-- A booked atom. The key is what makes a second booking impossible.
CREATE TABLE IF NOT EXISTS bookings (
  node_id       uuid NOT NULL,
  atom          text NOT NULL,
  allocation_id uuid NOT NULL,
  PRIMARY KEY (node_id, atom),
  FOREIGN KEY (node_id, atom) REFERENCES atoms,
  FOREIGN KEY (allocation_id, node_id) REFERENCES allocations (allocation_id, node_id)
);
CREATE INDEX IF NOT EXISTS bookings_by_allocation ON bookings (allocation_id);

-- What is gone from its node and now is booked by nobody either is forgotten, which changes what the node offers. Whoever
-- gives back has locked the node's row.
CREATE OR REPLACE FUNCTION bookings_forget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WITH forgotten AS (
    DELETE FROM atoms a USING gone g WHERE a.node_id = g.node_id AND a.atom = g.atom AND a.health = 'absent'
    RETURNING a.node_id)
  UPDATE node_capacity SET updated_at = compute_now() WHERE node_id IN (SELECT f.node_id FROM forgotten f);
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS bookings_gone ON bookings;
CREATE TRIGGER bookings_gone AFTER DELETE ON bookings
  REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION bookings_forget();

-- Host CPU, memory and pages booked beside the atoms. Every allocation that holds anything has a row, all zero where it
-- booked devices alone: that is what keeps a node held whole from being entered by its devices.
CREATE TABLE IF NOT EXISTS host_bookings (
  allocation_id uuid PRIMARY KEY,
  node_id       uuid NOT NULL,
  cpu_millis    bigint NOT NULL CHECK (cpu_millis >= 0),
  memory_bytes  bigint NOT NULL CHECK (memory_bytes >= 0),
  hugepages_1gi bigint NOT NULL CHECK (hugepages_1gi >= 0),
  -- NUMA nodes that memory and pages are bound to, in equal shares.
  mems          integer[] NOT NULL DEFAULT '{}',
  whole_node    boolean NOT NULL DEFAULT false,
  FOREIGN KEY (allocation_id, node_id) REFERENCES allocations (allocation_id, node_id)
);
CREATE INDEX IF NOT EXISTS host_bookings_by_node ON host_bookings (node_id);
-- A whole node is booked once.
CREATE UNIQUE INDEX IF NOT EXISTS host_bookings_whole_node ON host_bookings (node_id) WHERE whole_node;

-- Once for a statement: the nodes' rows are locked in one order, and nobody else books there until this is over. Its few
-- nodes are found by their keys: the table is never read whole, however many rows the planner expects.
CREATE OR REPLACE FUNCTION host_bookings_check() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
  PERFORM 1 FROM node_capacity c WHERE c.node_id IN (SELECT f.node_id FROM fresh f)
    ORDER BY c.node_id FOR NO KEY UPDATE;
  PERFORM 1 FROM (SELECT DISTINCT f.node_id FROM fresh f) f
    LEFT JOIN node_capacity c ON c.node_id = f.node_id
    CROSS JOIN LATERAL (
      SELECT sum(h.cpu_millis) AS cpu, sum(h.memory_bytes) AS memory, sum(h.hugepages_1gi) AS pages,
             count(*) AS holders, bool_or(h.whole_node) AS whole
      FROM host_bookings h WHERE h.node_id = f.node_id) b
    WHERE c.node_id IS NULL OR b.cpu > c.cpu_millis OR b.memory > c.memory_bytes OR b.pages > c.hugepages_1gi
       OR (b.whole AND b.holders > 1);
  IF FOUND THEN
    RAISE EXCEPTION 'node is full, or offers nothing' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'host_bookings_within_node', TABLE = 'host_bookings';
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS host_bookings_within_node ON host_bookings;
CREATE TRIGGER host_bookings_within_node AFTER INSERT ON host_bookings
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION host_bookings_check();
DROP TRIGGER IF EXISTS host_bookings_stay_within_node ON host_bookings;
CREATE TRIGGER host_bookings_stay_within_node AFTER UPDATE ON host_bookings
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION host_bookings_check();

-- What nodes have and what of it is free, from the rows.
CREATE OR REPLACE VIEW node_totals AS
SELECT n.node_id, n.pool_id,
       coalesce(g.total, 0)::bigint AS gpus_total,
       coalesce(g.free, 0)::bigint AS gpus_free,
       coalesce(g.unhealthy, 0)::bigint AS gpus_unhealthy,
       g.model AS gpu_model,
       coalesce(c.cpu_millis, 0) AS cpu_millis_total,
       greatest(coalesce(c.cpu_millis, 0) - h.cpu_millis, 0) AS cpu_millis_free,
       coalesce(c.memory_bytes, 0) AS memory_bytes_total,
       greatest(coalesce(c.memory_bytes, 0) - h.memory_bytes, 0) AS memory_bytes_free,
       coalesce(c.hugepages_1gi, 0) AS hugepages_total,
       greatest(coalesce(c.hugepages_1gi, 0) - h.hugepages_1gi, 0) AS hugepages_free
FROM nodes n
LEFT JOIN node_capacity c ON c.node_id = n.node_id AND c.pool_id = n.pool_id
LEFT JOIN LATERAL (
  SELECT count(*) AS total,
         count(*) FILTER (WHERE a.health = 'healthy' AND b.atom IS NULL) AS free,
         count(*) FILTER (WHERE a.health = 'unhealthy') AS unhealthy,
         -- None where they differ.
         CASE WHEN min(a.model) = max(a.model) THEN min(a.model) END AS model
  FROM atoms a LEFT JOIN bookings b ON b.node_id = a.node_id AND b.atom = a.atom
  WHERE a.node_id = n.node_id AND a.health <> 'absent') g ON true
LEFT JOIN LATERAL (
  SELECT coalesce(sum(cpu_millis), 0)::bigint AS cpu_millis, coalesce(sum(memory_bytes), 0)::bigint AS memory_bytes,
         coalesce(sum(hugepages_1gi), 0)::bigint AS hugepages_1gi
  FROM host_bookings b WHERE b.node_id = n.node_id) h ON true;

CREATE OR REPLACE VIEW pool_totals AS
SELECT p.pool_id,
       count(n.node_id) AS nodes,
       count(n.node_id) FILTER (WHERE n.state = 'ready' AND n.cordoned_at IS NULL AND n.draining_at IS NULL
                                  AND n.quarantined_at IS NULL) AS nodes_ready,
       coalesce(sum(t.gpus_total), 0)::bigint AS gpus_total,
       coalesce(sum(t.gpus_free), 0)::bigint AS gpus_free,
       coalesce(sum(t.gpus_unhealthy), 0)::bigint AS gpus_unhealthy,
       CASE WHEN min(t.gpu_model) = max(t.gpu_model) AND count(*) FILTER (WHERE t.gpus_total > 0 AND t.gpu_model IS NULL) = 0
            THEN min(t.gpu_model) END AS gpu_model
FROM pools p
LEFT JOIN nodes n ON n.pool_id = p.pool_id AND n.state NOT IN ('revoked', 'removed')
LEFT JOIN node_totals t ON t.node_id = n.node_id
GROUP BY p.pool_id;
