-- Whom an image lets its SSH keys log in as: what `better-compute ssh` takes when it is not told.
ALTER TABLE images ADD COLUMN IF NOT EXISTS login_user text;

-- Ways into instances and onto nodes' consoles: one row for each ticket, which one connection uses up.

CREATE TABLE IF NOT EXISTS tunnels (
  tunnel_id   uuid PRIMARY KEY,
  -- Whose the instance is, or the node.
  tenant_id   uuid NOT NULL REFERENCES tenants,
  node_id     uuid NOT NULL REFERENCES nodes,
  -- None for the node's own console.
  instance_id uuid REFERENCES instances,
  op          text NOT NULL CHECK (op IN ('ssh', 'tcp', 'console')),
  port        integer CHECK (port BETWEEN 1 AND 65535),
  user_id     uuid NOT NULL REFERENCES users,
  -- What it was opened with: it may go on for as long as that may.
  token_id    uuid NOT NULL,
  source_ip   text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  -- The last moment its ticket is taken, and the last it is open.
  open_until  timestamptz NOT NULL,
  ends_at     timestamptz NOT NULL,
  revoked_at  timestamptz,
  revoke_reason text NOT NULL DEFAULT '',
  -- By the gateway that holds it.
  gateway_id  uuid,
  gateway_epoch bigint,
  taken_at    timestamptz,
  closed_at   timestamptz,
  close_reason text NOT NULL DEFAULT '',
  to_node_bytes   bigint,
  to_client_bytes bigint,
  -- When events said so.
  told_open_at    timestamptz,
  told_closed_at  timestamptz,
  CHECK ((op = 'console') = (port IS NULL)),
  CHECK (taken_at IS NULL OR (gateway_id IS NOT NULL AND gateway_epoch IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS tunnels_by_tenant ON tunnels (tenant_id, tunnel_id DESC);
CREATE INDEX IF NOT EXISTS tunnels_by_end ON tunnels (ends_at);

-- A pool's network stays what it is while addresses of it are leased: an instance's is on its card, and nobody else's may be it.
-- Nameservers are told to guests that are made from then on.
CREATE OR REPLACE FUNCTION pools_network_check() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.policy->'network') - 'nameservers' IS DISTINCT FROM (NEW.policy->'network') - 'nameservers'
      AND EXISTS (SELECT 1 FROM ip_leases l WHERE l.pool_id = NEW.pool_id) THEN
    RAISE EXCEPTION 'the network of the pool is in use' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'pools_network_in_use', TABLE = 'pools';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS pools_network_in_use ON pools;
CREATE TRIGGER pools_network_in_use BEFORE UPDATE OF policy ON pools FOR EACH ROW EXECUTE FUNCTION pools_network_check();
