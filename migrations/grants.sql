-- What each role may do, applied as a whole after every migration run: what is not here is revoked.
--
-- bc_gateway is a gateway-only process: it delivers stored bytes and stores what nodes answer. A statement it may
-- not run fails with SQLSTATE 42501. A whole-table UPDATE is granted only where every column is its own.

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM bc_gateway;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM bc_gateway;
GRANT USAGE ON SCHEMA public TO bc_gateway;

-- foundation
GRANT SELECT ON schema_migrations, deployment TO bc_gateway;

-- fleet, the side of a gateway
GRANT USAGE ON SEQUENCE gateway_epoch, session_epoch TO bc_gateway;
GRANT SELECT, INSERT, UPDATE ON gateways, node_sessions, node_status, node_inventory TO bc_gateway;
GRANT SELECT, INSERT ON node_events TO bc_gateway;
-- A node's intent and whose certificates count are read and never written.
GRANT SELECT ON nodes, trust_bundles TO bc_gateway;
GRANT SELECT (serial, node_id, revoked_at) ON node_certs TO bc_gateway;
-- Where a command stands and what came of it; not what it says, to whom, or for how long.
GRANT SELECT, UPDATE (state, session_epoch, attempts, dispatched_at, settled_at, boot_id, reason, message,
  result, result_signature, result_key_sha256, result_state) ON commands TO bc_gateway;
-- A claim is left here and judged elsewhere.
GRANT SELECT (node_id, judged_at, generation, epoch, body, signature), INSERT (node_id, generation, epoch, body, signature),
  UPDATE (generation, epoch, body, signature, claimed_at) ON restore_claims TO bc_gateway;
-- A request is left here and answered elsewhere; other gateways' requests are not read.
GRANT SELECT (inbox_id, reply, refusal, answered_at),
  INSERT (inbox_id, kind, gateway_id, request, source_ip, peer_serial) ON join_inbox TO bc_gateway;
-- A ticket is used up here, and a tunnel closed; whose it is and how long it may last is read or not even that.
GRANT SELECT (tunnel_id, node_id, open_until, revoked_at, gateway_id, gateway_epoch, taken_at, closed_at),
  UPDATE (gateway_id, gateway_epoch, taken_at, closed_at, close_reason, to_node_bytes, to_client_bytes) ON tunnels TO bc_gateway;
-- To wake workers: it adds a wake-up, and neither reads nor takes back any.
GRANT INSERT (queue, part, keys) ON work_wake_batches TO bc_gateway;

-- Grants know tables and columns; these know rows. Each is made once, since making one waits for everybody who uses the
-- table. The first policy of a table lets everybody do what they are granted; the second takes from a gateway what is
-- not its part.
DO $$ BEGIN
  -- It wakes what looks at nodes and at joins, and nothing else, and not more at once than a taker takes.
  IF NOT EXISTS (SELECT 1 FROM pg_policies WHERE schemaname = 'public' AND tablename = 'work_wake_batches'
      AND policyname = 'wakes_of_gateways') THEN
    ALTER TABLE work_wake_batches ENABLE ROW LEVEL SECURITY;
    CREATE POLICY wakes_all ON work_wake_batches USING (true) WITH CHECK (true);
    CREATE POLICY wakes_of_gateways ON work_wake_batches AS RESTRICTIVE TO bc_gateway
      USING (queue IN ('node-observe', 'join'))
      WITH CHECK (queue IN ('node-observe', 'join') AND cardinality(keys) BETWEEN 1 AND 32);
  END IF;
  -- What is settled stays settled: neither its result nor its end is written again.
  IF NOT EXISTS (SELECT 1 FROM pg_policies WHERE schemaname = 'public' AND policyname = 'commands_settled_stay') THEN
    ALTER TABLE commands ENABLE ROW LEVEL SECURITY;
    CREATE POLICY commands_all ON commands USING (true) WITH CHECK (true);
    CREATE POLICY commands_settled_stay ON commands AS RESTRICTIVE FOR UPDATE TO bc_gateway
      USING (settled_at IS NULL) WITH CHECK (true);
  END IF;
  -- A tunnel that is closed stays closed as it was told, and a ticket that is used up stays so.
  IF NOT EXISTS (SELECT 1 FROM pg_policies WHERE schemaname = 'public' AND policyname = 'tunnels_closed_stay') THEN
    ALTER TABLE tunnels ENABLE ROW LEVEL SECURITY;
    CREATE POLICY tunnels_all ON tunnels USING (true) WITH CHECK (true);
    CREATE POLICY tunnels_closed_stay ON tunnels AS RESTRICTIVE FOR UPDATE TO bc_gateway
      USING (closed_at IS NULL) WITH CHECK (taken_at IS NOT NULL);
  END IF;
END $$;
