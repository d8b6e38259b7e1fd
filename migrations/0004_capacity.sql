-- What can be booked, what is booked, and by whom. Totals are derived from these rows; no counter is kept.

-- What a node offers, from its accepted inventory less the host's reserve.
CREATE TABLE IF NOT EXISTS node_capacity (
  node_id       uuid PRIMARY KEY REFERENCES nodes,
  pool_id       uuid NOT NULL REFERENCES pools,
  cpu_millis    bigint NOT NULL CHECK (cpu_millis >= 0),
  memory_bytes  bigint NOT NULL CHECK (memory_bytes >= 0),
  hugepages_1gi bigint NOT NULL DEFAULT 0 CHECK (hugepages_1gi >= 0),
  -- Per NUMA node: cpulist, memory, pages.
  topology      jsonb NOT NULL DEFAULT '[]',
  -- Goes up with every change of what the node offers or holds: an optimistic placement compares it.
  version       bigint NOT NULL DEFAULT 1,
  updated_at    timestamptz NOT NULL DEFAULT compute_now()
);
CREATE INDEX IF NOT EXISTS node_capacity_by_pool ON node_capacity (pool_id);

-- A bookable whole: a GPU by its UUID. An atom that is gone from the inventory stays as absent while booked.
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
-- One GPU is in one machine.
CREATE UNIQUE INDEX IF NOT EXISTS atoms_once ON atoms (atom) WHERE health <> 'absent';

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
  -- Nodes a former allocation failed on, not tried again.
  avoid          uuid[] NOT NULL DEFAULT '{}',
  starts_at      timestamptz NOT NULL DEFAULT compute_now(),
  -- None: until released.
  expires_at     timestamptz,
  attempts       integer NOT NULL DEFAULT 0,
  -- Why it is not placed yet, for people; and since when it waits.
  waiting_reason text NOT NULL DEFAULT '',
  failure        text NOT NULL DEFAULT '',
  -- released, expired or failed: what the release ends in.
  release_to     text,
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

-- What a reservation counts for against its tenant's quotas, from admission to its end.
CREATE TABLE IF NOT EXISTS quota_holds (
  reservation_id uuid NOT NULL REFERENCES reservations,
  tenant_id      uuid NOT NULL REFERENCES tenants,
  resource       text NOT NULL,
  amount         bigint NOT NULL CHECK (amount > 0),
  PRIMARY KEY (reservation_id, resource)
);
CREATE INDEX IF NOT EXISTS quota_holds_by_tenant ON quota_holds (tenant_id, resource);

-- The rows may never exceed the quota: the quota's row is locked, then the rows are summed.
CREATE OR REPLACE FUNCTION quota_holds_check() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  allowed bigint;
  used bigint;
BEGIN
  SELECT amount INTO allowed FROM quotas
    WHERE tenant_id = NEW.tenant_id AND resource = NEW.resource FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NEW;
  END IF;
  SELECT coalesce(sum(amount), 0) INTO used FROM quota_holds
    WHERE tenant_id = NEW.tenant_id AND resource = NEW.resource;
  IF used > allowed THEN
    RAISE EXCEPTION 'quota exceeded' USING ERRCODE = 'check_violation', CONSTRAINT = 'quota_holds_within_quota',
      TABLE = 'quota_holds', DETAIL = format('%s %s %s', NEW.resource, used - NEW.amount, allowed);
  END IF;
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
  ended_at       timestamptz
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
  allocation_id uuid NOT NULL REFERENCES allocations,
  PRIMARY KEY (node_id, atom),
  FOREIGN KEY (node_id, atom) REFERENCES atoms
);
CREATE INDEX IF NOT EXISTS bookings_by_allocation ON bookings (allocation_id);

-- Host CPU, memory and pages booked beside the atoms.
CREATE TABLE IF NOT EXISTS host_bookings (
  allocation_id uuid PRIMARY KEY REFERENCES allocations,
  node_id       uuid NOT NULL REFERENCES nodes,
  cpu_millis    bigint NOT NULL CHECK (cpu_millis >= 0),
  memory_bytes  bigint NOT NULL CHECK (memory_bytes >= 0),
  hugepages_1gi bigint NOT NULL CHECK (hugepages_1gi >= 0),
  whole_node    boolean NOT NULL DEFAULT false
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

-- What each node offers and what of it is free, derived from the rows. The nodes API reads it.
CREATE OR REPLACE VIEW node_totals AS
SELECT n.node_id,
       coalesce(g.total, 0)::bigint AS gpus_total,
       coalesce(g.free, 0)::bigint AS gpus_free,
       coalesce(g.unhealthy, 0)::bigint AS gpus_unhealthy,
       g.model AS gpu_model,
       coalesce(c.cpu_millis, 0)::bigint AS cpu_millis_total,
       (coalesce(c.cpu_millis, 0) - coalesce(h.cpu_millis, 0))::bigint AS cpu_millis_free,
       coalesce(c.memory_bytes, 0)::bigint AS memory_bytes_total,
       (coalesce(c.memory_bytes, 0) - coalesce(h.memory_bytes, 0))::bigint AS memory_bytes_free,
       coalesce(c.hugepages_1gi, 0)::bigint AS hugepages_total,
       (coalesce(c.hugepages_1gi, 0) - coalesce(h.hugepages_1gi, 0))::bigint AS hugepages_free
FROM nodes n
LEFT JOIN node_capacity c USING (node_id)
LEFT JOIN LATERAL (
  SELECT count(*) FILTER (WHERE a.health <> 'absent') AS total,
         count(*) FILTER (WHERE a.health = 'healthy' AND b.atom IS NULL) AS free,
         count(*) FILTER (WHERE a.health = 'unhealthy') AS unhealthy,
         CASE WHEN count(DISTINCT a.model) = 1 THEN min(a.model) END AS model
  FROM atoms a LEFT JOIN bookings b USING (node_id, atom) WHERE a.node_id = n.node_id) g ON true
LEFT JOIN LATERAL (
  SELECT sum(cpu_millis) AS cpu_millis, sum(memory_bytes) AS memory_bytes, sum(hugepages_1gi) AS hugepages_1gi
  FROM host_bookings hb WHERE hb.node_id = n.node_id) h ON true;
