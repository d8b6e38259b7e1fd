-- What an instance takes of its host: disk, and which of its CPUs, memory and pages.

-- None of a machine that never told how large the file system of its instances is: nobody counts what is booked of it.
ALTER TABLE node_capacity ADD COLUMN IF NOT EXISTS disk_bytes bigint CHECK (disk_bytes >= 0);
ALTER TABLE node_capacity ADD COLUMN IF NOT EXISTS machine_disk_bytes bigint CHECK (machine_disk_bytes >= 0);
ALTER TABLE host_bookings ADD COLUMN IF NOT EXISTS disk_bytes bigint NOT NULL DEFAULT 0 CHECK (disk_bytes >= 0);

-- As it was, and what is booked of the disk by those who book any: who books none is not kept out by a disk that shrank.
CREATE OR REPLACE FUNCTION host_bookings_check() RETURNS trigger LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
  PERFORM 1 FROM node_capacity c WHERE c.node_id IN (SELECT f.node_id FROM fresh f)
    ORDER BY c.node_id FOR NO KEY UPDATE;
  PERFORM 1 FROM (SELECT f.node_id, bool_or(f.disk_bytes > 0) AS disk FROM fresh f GROUP BY f.node_id) f
    LEFT JOIN node_capacity c ON c.node_id = f.node_id
    CROSS JOIN LATERAL (
      SELECT sum(h.cpu_millis) AS cpu, sum(h.memory_bytes) AS memory, sum(h.hugepages_1gi) AS pages,
             sum(h.disk_bytes) AS disk, count(*) AS holders, bool_or(h.whole_node) AS whole
      FROM host_bookings h WHERE h.node_id = f.node_id) b
    WHERE c.node_id IS NULL OR b.cpu > c.cpu_millis OR b.memory > c.memory_bytes OR b.pages > c.hugepages_1gi
       OR (f.disk AND b.disk > c.disk_bytes) OR (b.whole AND b.holders > 1);
  IF FOUND THEN
    RAISE EXCEPTION 'node is full, or offers nothing' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'host_bookings_within_node', TABLE = 'host_bookings';
  END IF;
  RETURN NULL;
END $$;

-- Instances of before have their disks where they are. Nothing else of their bookings is looked at for it: a node that
-- shrank under them is no reason not to count.
DROP TRIGGER IF EXISTS host_bookings_stay_within_node ON host_bookings;
UPDATE host_bookings h SET disk_bytes = i.disk_gib * 1073741824
  FROM instance_allocations a JOIN instances i ON i.instance_id = a.instance_id
  WHERE h.allocation_id = a.allocation_id AND a.ended_at IS NULL AND h.disk_bytes = 0;
CREATE TRIGGER host_bookings_stay_within_node AFTER UPDATE ON host_bookings
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION host_bookings_check();

-- What nodes have for disks and what of it is free; none where it is not known.
CREATE OR REPLACE VIEW node_disk_totals AS
SELECT n.node_id, c.disk_bytes AS disk_bytes_total,
       CASE WHEN c.disk_bytes IS NOT NULL THEN greatest(c.disk_bytes - coalesce(h.disk_bytes, 0), 0)::bigint END AS disk_bytes_free
FROM nodes n
LEFT JOIN node_capacity c ON c.node_id = n.node_id AND c.pool_id = n.pool_id
LEFT JOIN LATERAL (SELECT sum(b.disk_bytes) AS disk_bytes FROM host_bookings b WHERE b.node_id = n.node_id) h ON true;

-- How instances of a flavor are to have their host's CPUs and memory.
ALTER TABLE flavors ADD COLUMN IF NOT EXISTS numa_affine boolean NOT NULL DEFAULT false;
ALTER TABLE flavors ADD COLUMN IF NOT EXISTS pinned boolean NOT NULL DEFAULT false;
-- None for normal pages.
ALTER TABLE flavors ADD COLUMN IF NOT EXISTS hugepages text CHECK (hugepages IN ('1Gi'));

-- What of its host an instance has for that: CPUs and NUMA nodes as the kernel lists them, empty for any; and why it is not
-- as its flavor asks.
ALTER TABLE instance_allocations ADD COLUMN IF NOT EXISTS cpus text NOT NULL DEFAULT '';
ALTER TABLE instance_allocations ADD COLUMN IF NOT EXISTS mems text NOT NULL DEFAULT '';
ALTER TABLE instance_allocations ADD COLUMN IF NOT EXISTS degraded text NOT NULL DEFAULT '';

-- A CPU that one instance has for one of its own. The key is what makes a second one on it impossible.
CREATE TABLE IF NOT EXISTS pinned_cpus (
  node_id       uuid NOT NULL,
  cpu           integer NOT NULL CHECK (cpu >= 0),
  allocation_id uuid NOT NULL,
  PRIMARY KEY (node_id, cpu),
  FOREIGN KEY (allocation_id, node_id) REFERENCES instance_allocations (allocation_id, node_id)
);
CREATE INDEX IF NOT EXISTS pinned_cpus_by_allocation ON pinned_cpus (allocation_id);
