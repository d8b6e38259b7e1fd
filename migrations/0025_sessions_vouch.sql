-- A report is stored in the transaction that holds its node's session, whose row refers to the node: looking the node up, and
-- locking it, once more for each report could not fail. No node's row is ever deleted.
ALTER TABLE node_events DROP CONSTRAINT IF EXISTS node_events_node_id_fkey;
