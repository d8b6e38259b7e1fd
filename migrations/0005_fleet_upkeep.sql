-- What liveness, retention and lists of the fleet need beside their tables.

-- Since when the node counts as unreachable: what `lostAfter` is measured from, so that the time in which nobody could
-- have heard a node does not count against it.
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS unreachable_since timestamptz;

CREATE INDEX IF NOT EXISTS nodes_away ON nodes (node_id) WHERE state IN ('unreachable', 'lost');
CREATE INDEX IF NOT EXISTS nodes_by_site ON nodes (site_id) WHERE state <> 'removed';
CREATE INDEX IF NOT EXISTS node_sessions_open ON node_sessions (gateway_id, gateway_epoch) WHERE closed_at IS NULL;

CREATE INDEX IF NOT EXISTS commands_unhandled_by_node ON commands (node_id, settled_at)
  WHERE settled_at IS NOT NULL AND handled_at IS NULL;
CREATE INDEX IF NOT EXISTS commands_list_by_node ON commands (node_id, command_id DESC);
CREATE INDEX IF NOT EXISTS join_requests_by_token ON join_requests (join_token_id);

CREATE INDEX IF NOT EXISTS node_events_handled ON node_events (handled_at) WHERE handled_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS commands_handled ON commands (settled_at) WHERE handled_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS node_certs_by_end ON node_certs (not_after);
