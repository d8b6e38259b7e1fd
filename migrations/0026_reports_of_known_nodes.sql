-- A report's node is looked up again: it holds back a gateway that was taken over, which may insert reports of any node it names.
ALTER TABLE node_events DROP CONSTRAINT IF EXISTS node_events_node_id_fkey;
ALTER TABLE node_events ADD CONSTRAINT node_events_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes;
