-- A failed allocation stays with its node, booked and named in the node's spec as one to let go of, until the node says
-- that nothing of it is held or the node is removed: `ended_at` is that moment. Its reservation is elsewhere by then.
CREATE INDEX IF NOT EXISTS allocations_unended_by_node ON allocations (node_id, allocation_id) WHERE ended_at IS NULL;
DROP INDEX IF EXISTS allocations_live_by_node;
