-- Secrets of tenants, and what nodes were told of them.

-- A value is sealed for its row by a key-encryption key that is not in the database, and no answer of the API has it. User data
-- that was given with an instance is one without a name, which goes with the instance.
CREATE TABLE IF NOT EXISTS secrets (
  secret_id   uuid PRIMARY KEY,
  tenant_id   uuid NOT NULL REFERENCES tenants,
  name        text,
  -- Whose user data it is; its row comes after this one in their transaction.
  instance_id uuid UNIQUE,
  -- Goes up with each put.
  version     bigint NOT NULL DEFAULT 1 CHECK (version > 0),
  sealed      bytea NOT NULL CHECK (octet_length(sealed) <= 66560),
  -- The name of the key it is wrapped by.
  kek_id      text NOT NULL,
  size_bytes  integer NOT NULL CHECK (size_bytes BETWEEN 1 AND 65536),
  created_at  timestamptz NOT NULL DEFAULT compute_now(),
  updated_at  timestamptz NOT NULL DEFAULT compute_now(),
  UNIQUE (tenant_id, name),
  CHECK ((name IS NULL) = (instance_id IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS secrets_by_tenant ON secrets (tenant_id, secret_id DESC) WHERE name IS NOT NULL;
CREATE INDEX IF NOT EXISTS secrets_by_key ON secrets (kek_id, secret_id);

-- Its user data, until it has ended: a secret that an instance names does not go.
ALTER TABLE instances ADD COLUMN IF NOT EXISTS user_data_secret uuid
  CONSTRAINT instances_user_data REFERENCES secrets;
CREATE INDEX IF NOT EXISTS instances_by_user_data ON instances (user_data_secret) WHERE user_data_secret IS NOT NULL;

-- Requests of nodes that were judged, so that none is answered twice.
CREATE TABLE IF NOT EXISTS secret_requests (
  request_id  uuid PRIMARY KEY,
  node_id     uuid NOT NULL REFERENCES nodes,
  secret_id   uuid NOT NULL,
  -- released, or why not.
  outcome     text NOT NULL,
  at          timestamptz NOT NULL DEFAULT compute_now()
);
CREATE INDEX IF NOT EXISTS secret_requests_by_node ON secret_requests (node_id, at);
CREATE INDEX IF NOT EXISTS secret_requests_by_age ON secret_requests (at);

-- When a refusal was last told of each node and reason.
CREATE TABLE IF NOT EXISTS secret_refusals (
  node_id     uuid NOT NULL REFERENCES nodes,
  reason      text NOT NULL,
  told_at     timestamptz NOT NULL DEFAULT compute_now(),
  PRIMARY KEY (node_id, reason)
);

-- A gateway leaves nodes' requests for secrets where it leaves joins.
ALTER TABLE join_inbox DROP CONSTRAINT IF EXISTS join_inbox_kind_check;
ALTER TABLE join_inbox ADD CONSTRAINT join_inbox_kind_check CHECK (kind IN ('join', 'renew', 'fresh', 'secret'));
