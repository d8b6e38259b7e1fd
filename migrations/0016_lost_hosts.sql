-- Hosts that are lost, and what instances leave behind on them.

-- A person's word that nothing runs on the node any more. It counts until the node is heard of again.
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS dead_at timestamptz;
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS dead_by text;

-- A place that its instance left before the host said that nothing of it is there. The host's spec names it as to be
-- deleted, under this revision, and its bookings and its address stay with it until the host says so, or is removed.
ALTER TABLE instance_allocations ADD COLUMN IF NOT EXISTS left_at timestamptz;
ALTER TABLE instance_allocations ADD COLUMN IF NOT EXISTS left_revision bigint;
ALTER TABLE instance_allocations DROP CONSTRAINT IF EXISTS instance_allocations_left;
ALTER TABLE instance_allocations ADD CONSTRAINT instance_allocations_left CHECK ((left_at IS NULL) = (left_revision IS NULL));
-- One place at a time, beside those it left; and on one host never two, since a spec names an instance once.
DROP INDEX IF EXISTS instance_allocations_one_live;
CREATE UNIQUE INDEX IF NOT EXISTS instance_allocations_one_live ON instance_allocations (instance_id)
  WHERE ended_at IS NULL AND left_at IS NULL;
DROP INDEX IF EXISTS instance_allocations_by_node;
CREATE UNIQUE INDEX IF NOT EXISTS instance_allocations_by_node ON instance_allocations (node_id, instance_id) WHERE ended_at IS NULL;

-- Since when the host of an instance has no room to start it; which hosts had none, the first one first; how often it was
-- placed elsewhere for that, and until when those hosts are avoided.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS exhausted_at timestamptz;
ALTER TABLE instances ADD COLUMN IF NOT EXISTS exhausted_hosts uuid[] NOT NULL DEFAULT '{}';
ALTER TABLE instances ADD COLUMN IF NOT EXISTS exhausted_moves integer NOT NULL DEFAULT 0;
ALTER TABLE instances ADD COLUMN IF NOT EXISTS exhausted_until timestamptz;
CREATE INDEX IF NOT EXISTS instances_stuck ON instances (pool_id, state) WHERE stuck_at IS NOT NULL;

-- What hosts hold and no row places there. It is told of and left as it is. The instance may be one that nobody knows.
CREATE TABLE IF NOT EXISTS instance_orphans (
  node_id     uuid NOT NULL REFERENCES nodes,
  instance_id uuid NOT NULL,
  since       timestamptz NOT NULL DEFAULT compute_now(),
  PRIMARY KEY (node_id, instance_id)
);
CREATE INDEX IF NOT EXISTS instance_orphans_by_instance ON instance_orphans (instance_id);
