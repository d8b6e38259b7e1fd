-- Virtual machines: what they may be made of, which there are, where each is and which address it has.

-- A size that may be had in a pool. It never changes: what was made of it keeps what it has.
CREATE TABLE IF NOT EXISTS flavors (
  flavor_id   uuid PRIMARY KEY,
  pool_id     uuid NOT NULL REFERENCES pools,
  name        text NOT NULL,
  vcpu        integer NOT NULL CHECK (vcpu > 0),
  memory_mib  bigint NOT NULL CHECK (memory_mib > 0),
  disk_gib    bigint NOT NULL CHECK (disk_gib > 0),
  gpus        integer NOT NULL DEFAULT 0 CHECK (gpus >= 0),
  gpu_model   text,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (pool_id, name)
);

-- What a disk begins with, at an address or in the control plane's own store. Its address and its digest never change.
CREATE TABLE IF NOT EXISTS images (
  image_id    uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL REFERENCES tenants,
  name        text NOT NULL,
  -- None for one of the own store, whose size was announced and whose bytes are all there from `arrived_at` on.
  url         text,
  size_bytes  bigint CHECK (size_bytes > 0),
  arrived_at  timestamptz,
  sha256      bytea NOT NULL CHECK (octet_length(sha256) = 32),
  format      text NOT NULL CHECK (format IN ('qcow2', 'raw', 'iso')),
  -- Tenants below its own may use it too.
  shared      boolean NOT NULL DEFAULT false,
  verified    boolean NOT NULL DEFAULT false,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, name),
  CHECK ((url IS NULL) = (size_bytes IS NOT NULL)),
  CHECK (url IS NULL OR arrived_at IS NULL)
);

CREATE TABLE IF NOT EXISTS instances (
  instance_id uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL REFERENCES tenants,
  pool_id     uuid NOT NULL REFERENCES pools,
  flavor_id   uuid NOT NULL REFERENCES flavors,
  image_id    uuid NOT NULL REFERENCES images,
  created_by  uuid NOT NULL REFERENCES users,
  name        text,
  state       text NOT NULL CHECK (state IN ('pending', 'scheduling', 'provisioning', 'starting', 'running', 'stopping',
                'stopped', 'deleting', 'deleted', 'error', 'lost')),
  desired     text NOT NULL CHECK (desired IN ('running', 'stopped', 'deleted')),
  -- The driver that runs it.
  runtime     text NOT NULL,
  -- What its flavor was when it was made.
  vcpu        integer NOT NULL CHECK (vcpu > 0),
  memory_mib  bigint NOT NULL CHECK (memory_mib > 0),
  disk_gib    bigint NOT NULL CHECK (disk_gib > 0),
  gpus        integer NOT NULL DEFAULT 0 CHECK (gpus >= 0),
  gpu_model   text,
  ssh_keys    text[] NOT NULL DEFAULT '{}',
  network_policy text NOT NULL DEFAULT 'egress' CHECK (network_policy IN ('egress', 'private', 'none')),
  -- Rises with everything that is wanted anew. A host's report answers to one; `boot` is the one that last asked for a start.
  revision    bigint NOT NULL DEFAULT 1 CHECK (revision > 0),
  boot        bigint NOT NULL DEFAULT 1 CHECK (boot BETWEEN 1 AND revision),
  -- Why it is not placed yet; what its host said last of it that was not what was asked.
  waiting_reason text NOT NULL DEFAULT '',
  said_reason    text NOT NULL DEFAULT '',
  said_message   text NOT NULL DEFAULT '',
  said_at        timestamptz,
  state_since timestamptz NOT NULL DEFAULT compute_now(),
  -- When it was told that the state lasts longer than it may.
  stuck_at    timestamptz,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  updated_at  timestamptz NOT NULL DEFAULT compute_now(),
  ended_at    timestamptz,
  CHECK ((state IN ('deleting', 'deleted')) = (desired = 'deleted')),
  CHECK ((state = 'deleted') = (ended_at IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS instances_by_tenant ON instances (tenant_id, instance_id DESC);
CREATE INDEX IF NOT EXISTS instances_by_pool ON instances (pool_id, instance_id) WHERE ended_at IS NULL;
CREATE INDEX IF NOT EXISTS instances_under_way ON instances (state, state_since)
  WHERE state IN ('pending', 'scheduling', 'provisioning', 'starting', 'stopping', 'deleting');

-- One place of an instance on one host. What it booked is in `bookings` and `host_bookings` under its id until it has
-- ended, by the host's word that nothing of it is there.
CREATE TABLE IF NOT EXISTS instance_allocations (
  allocation_id uuid PRIMARY KEY,
  instance_id   uuid NOT NULL REFERENCES instances,
  node_id       uuid NOT NULL REFERENCES nodes,
  -- Kept when the bookings are gone.
  atoms         text[] NOT NULL DEFAULT '{}',
  placed_at     timestamptz NOT NULL DEFAULT compute_now(),
  ended_at      timestamptz,
  -- For the address, which is leased on that host.
  UNIQUE (allocation_id, node_id)
);
CREATE UNIQUE INDEX IF NOT EXISTS instance_allocations_one_live ON instance_allocations (instance_id) WHERE ended_at IS NULL;
CREATE INDEX IF NOT EXISTS instance_allocations_by_node ON instance_allocations (node_id, instance_id) WHERE ended_at IS NULL;

-- The address of an instance, for as long as it has its place. No two have the same one in a pool, or on a host where
-- each host has the pool's addresses to itself.
CREATE TABLE IF NOT EXISTS ip_leases (
  allocation_id uuid PRIMARY KEY,
  pool_id       uuid NOT NULL REFERENCES pools,
  node_id       uuid NOT NULL,
  scope         text NOT NULL CHECK (scope IN ('pool', 'host')),
  address       inet NOT NULL,
  leased_at     timestamptz NOT NULL DEFAULT compute_now(),
  FOREIGN KEY (allocation_id, node_id) REFERENCES instance_allocations (allocation_id, node_id)
);
CREATE UNIQUE INDEX IF NOT EXISTS ip_leases_in_pool ON ip_leases (pool_id, address) WHERE scope = 'pool';
CREATE UNIQUE INDEX IF NOT EXISTS ip_leases_on_host ON ip_leases (node_id, pool_id, address) WHERE scope = 'host';

-- What an instance counts for against quotas, from admission to its end.
CREATE TABLE IF NOT EXISTS instance_holds (
  instance_id uuid NOT NULL REFERENCES instances,
  -- The instance's.
  tenant_id   uuid NOT NULL,
  resource    text NOT NULL,
  amount      bigint NOT NULL CHECK (amount > 0),
  PRIMARY KEY (instance_id, resource)
);
CREATE INDEX IF NOT EXISTS instance_holds_by_tenant ON instance_holds (tenant_id, resource);

-- What a tenant and all below it hold: by reservations and by instances.
CREATE OR REPLACE FUNCTION quota_used(of_tenant uuid, of_resource text) RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH RECURSIVE below AS (
    SELECT of_tenant AS tenant_id
    UNION ALL
    SELECT t.tenant_id FROM tenants t JOIN below b ON t.parent_id = b.tenant_id)
  SELECT coalesce(sum((SELECT sum(h.amount) FROM quota_holds h WHERE h.tenant_id = b.tenant_id AND h.resource = of_resource)), 0)::bigint
       + coalesce(sum((SELECT sum(h.amount) FROM instance_holds h WHERE h.tenant_id = b.tenant_id AND h.resource = of_resource)), 0)::bigint
  FROM below b
$$;
DROP TRIGGER IF EXISTS instance_holds_within_quota ON instance_holds;
CREATE TRIGGER instance_holds_within_quota AFTER INSERT ON instance_holds
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION quota_holds_check();
