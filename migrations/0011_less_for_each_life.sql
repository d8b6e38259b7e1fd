-- What a reservation's life pays for, and nothing is gained by.

-- Facts that are what they were are told again at this time: soon where what a node says depends on another node.
ALTER TABLE node_facts_told ADD COLUMN IF NOT EXISTS again_at timestamptz NOT NULL DEFAULT compute_now();

-- The statement that writes a booking writes its allocation too, by the same id and node, and an allocation is never deleted:
-- these were looked up four times in a life and could not fail. No more can the node's: nothing is booked on a node
-- without a row in node_capacity, which refers to its node. That a booked atom exists is looked at still, since an inventory
-- may drop one.
ALTER TABLE bookings DROP CONSTRAINT IF EXISTS bookings_allocation_id_node_id_fkey;
ALTER TABLE host_bookings DROP CONSTRAINT IF EXISTS host_bookings_allocation_id_node_id_fkey;
ALTER TABLE allocations DROP CONSTRAINT IF EXISTS allocations_allocation_id_node_id_key;
ALTER TABLE allocations DROP CONSTRAINT IF EXISTS allocations_node_id_fkey;
