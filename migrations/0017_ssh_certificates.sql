-- Certificates that let somebody log in on a node by OpenSSH.

-- The keys that sign them, by their public halves. The newest signs; nodes trust the others for as long as a certificate of theirs is good.
CREATE TABLE IF NOT EXISTS ssh_ca_keys (
  public_key  text PRIMARY KEY,
  -- Since when it is the one that signs, or was.
  current_at  timestamptz NOT NULL DEFAULT compute_now(),
  -- No node is told to trust it from then on.
  retired_at  timestamptz
);

CREATE TABLE IF NOT EXISTS ssh_certs (
  cert_id     uuid PRIMARY KEY,
  -- What nodes are told to refuse, and what sshd logs.
  serial      bigint NOT NULL UNIQUE CHECK (serial > 0),
  ca_key      text NOT NULL REFERENCES ssh_ca_keys,
  node_id     uuid NOT NULL REFERENCES nodes,
  -- Whose the node was then.
  tenant_id   uuid NOT NULL REFERENCES tenants,
  account     text NOT NULL,
  key_fingerprint text NOT NULL,
  user_id     uuid NOT NULL REFERENCES users,
  -- What it was asked for with: it is good for as long as that may ask for it.
  token_id    uuid NOT NULL,
  source_ip   text NOT NULL,
  reason      text NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  valid_before timestamptz NOT NULL,
  revoked_at  timestamptz,
  revoke_reason text NOT NULL DEFAULT '',
  -- Its time is over everywhere: its node need not be told of it any more.
  over_at     timestamptz
);
CREATE INDEX IF NOT EXISTS ssh_certs_by_tenant ON ssh_certs (tenant_id, cert_id DESC);
CREATE INDEX IF NOT EXISTS ssh_certs_by_user ON ssh_certs (user_id, created_at);
CREATE INDEX IF NOT EXISTS ssh_certs_of_node ON ssh_certs (node_id) WHERE over_at IS NULL;
CREATE INDEX IF NOT EXISTS ssh_certs_by_end ON ssh_certs (valid_before);

-- When it was last decided that a tunnel may go on: one of which that is not known for a while does not.
ALTER TABLE tunnels ADD COLUMN IF NOT EXISTS decided_at timestamptz;
-- How many a tenant has on a node is asked with each that is opened.
CREATE INDEX IF NOT EXISTS tunnels_of_node ON tunnels (node_id, tenant_id) WHERE closed_at IS NULL;
