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
  -- The transaction of the last change. A reader that knows every change before the oldest transaction then running
  -- finds all later ones by it, in whatever order they committed.
  changed_xid   bigint NOT NULL DEFAULT 0,
  updated_at    timestamptz NOT NULL DEFAULT compute_now()
);
CREATE INDEX IF NOT EXISTS node_capacity_by_pool ON node_capacity (pool_id);
-- With what its reader wants of it, so that the index answers by itself.
CREATE INDEX IF NOT EXISTS node_capacity_by_change ON node_capacity (changed_xid) INCLUDE (node_id, version);

CREATE OR REPLACE FUNCTION node_capacity_mark() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.changed_xid := pg_current_xact_id()::text::bigint;
  IF TG_OP = 'UPDATE' THEN
    NEW.version := OLD.version + 1;
    NEW.updated_at := compute_now();
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS node_capacity_marked ON node_capacity;
CREATE TRIGGER node_capacity_marked BEFORE INSERT OR UPDATE ON node_capacity
  FOR EACH ROW EXECUTE FUNCTION node_capacity_mark();

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
  -- Whether it is booked: kept by a trigger of the bookings, for the index below.
  held         boolean NOT NULL DEFAULT false,
  PRIMARY KEY (node_id, atom)
);
-- One GPU is in one machine, and stays that machine's while it is booked there, seen or not.
CREATE UNIQUE INDEX IF NOT EXISTS atoms_once ON atoms (atom) WHERE health <> 'absent' OR held;

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
  ended_at       timestamptz
);
CREATE INDEX IF NOT EXISTS reservations_by_tenant ON reservations (tenant_id, reservation_id DESC);
CREATE INDEX IF NOT EXISTS reservations_scheduling ON reservations (pool_id, reservation_id) WHERE state = 'scheduling';
CREATE INDEX IF NOT EXISTS reservations_expiring ON reservations (expires_at)
  WHERE state IN ('scheduling', 'placed', 'active') AND expires_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS reservations_drafts ON reservations (created_at) WHERE state = 'draft';

-- What a reservation counts for against the quotas of its tenant and those above, from admission to its end.
CREATE TABLE IF NOT EXISTS quota_holds (
  reservation_id uuid NOT NULL REFERENCES reservations,
  tenant_id      uuid NOT NULL REFERENCES tenants,
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
-- its own: a quota's row is locked, then the rows are summed. From the root downwards, so that no two wait for each other.
CREATE OR REPLACE FUNCTION quota_holds_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  way uuid[];
  quota_tenant uuid;
  allowed bigint;
  used bigint;
BEGIN
  WITH RECURSIVE up AS (
    SELECT tenant_id, parent_id, 0 AS depth FROM tenants WHERE tenant_id = NEW.tenant_id
    UNION ALL
    SELECT t.tenant_id, t.parent_id, up.depth + 1 FROM tenants t JOIN up ON t.tenant_id = up.parent_id)
  SELECT array_agg(tenant_id ORDER BY depth DESC) INTO way FROM up;
  FOREACH quota_tenant IN ARRAY way LOOP
    SELECT amount INTO allowed FROM quotas
      WHERE tenant_id = quota_tenant AND resource = NEW.resource FOR NO KEY UPDATE;
    CONTINUE WHEN NOT FOUND;
    used := quota_used(quota_tenant, NEW.resource);
    IF used > allowed THEN
      RAISE EXCEPTION 'quota exceeded' USING ERRCODE = 'check_violation', CONSTRAINT = 'quota_holds_within_quota',
        TABLE = 'quota_holds', DETAIL = format('%s %s %s', NEW.resource, used - NEW.amount, allowed);
    END IF;
  END LOOP;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS quota_holds_within_quota ON quota_holds;
CREATE TRIGGER quota_holds_within_quota AFTER INSERT OR UPDATE ON quota_holds
  FOR EACH ROW EXECUTE FUNCTION quota_holds_check();

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
  -- For what refers to an allocation together with its node.
  UNIQUE (allocation_id, node_id)
);
-- A reservation is on one node at a time; the next attempt waits for the end of the one before.
CREATE UNIQUE INDEX IF NOT EXISTS allocations_one_live ON allocations (reservation_id)
  WHERE state IN ('placed', 'bound', 'releasing');
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

CREATE OR REPLACE FUNCTION bookings_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    UPDATE atoms SET held = true WHERE node_id = NEW.node_id AND atom = NEW.atom;
  ELSE
    UPDATE atoms SET held = false WHERE node_id = OLD.node_id AND atom = OLD.atom;
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS bookings_held ON bookings;
CREATE TRIGGER bookings_held AFTER INSERT OR DELETE ON bookings
  FOR EACH ROW EXECUTE FUNCTION bookings_hold();

-- Host CPU, memory and pages booked beside the atoms. Every allocation that holds anything has a row, all zero where it
-- booked devices alone: that is what keeps a node held whole from being entered by its devices.
CREATE TABLE IF NOT EXISTS host_bookings (
  allocation_id uuid PRIMARY KEY,
  node_id       uuid NOT NULL REFERENCES nodes,
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

CREATE OR REPLACE FUNCTION host_bookings_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  offered node_capacity%ROWTYPE;
  booked record;
BEGIN
  SELECT * INTO offered FROM node_capacity WHERE node_id = NEW.node_id FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node offers nothing' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'host_bookings_within_node', TABLE = 'host_bookings';
  END IF;
  SELECT sum(cpu_millis) AS cpu, sum(memory_bytes) AS memory, sum(hugepages_1gi) AS pages,
         count(*) AS holders, bool_or(whole_node) AS whole
    INTO booked FROM host_bookings WHERE node_id = NEW.node_id;
  IF booked.cpu > offered.cpu_millis OR booked.memory > offered.memory_bytes
     OR booked.pages > offered.hugepages_1gi OR (booked.whole AND booked.holders > 1) THEN
    RAISE EXCEPTION 'node is full' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'host_bookings_within_node', TABLE = 'host_bookings';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS host_bookings_within_node ON host_bookings;
CREATE TRIGGER host_bookings_within_node AFTER INSERT OR UPDATE ON host_bookings
  FOR EACH ROW EXECUTE FUNCTION host_bookings_check();

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
